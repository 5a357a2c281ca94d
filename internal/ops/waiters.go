package ops

import (
	"context"
	"iter"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Waiter is a place in the line of a key, of a process that waits in a call or of a job.
type Waiter struct {
	Position int    `json:"position"`         // from 1: the first in line
	Holder   string `json:"holder,omitempty"` // label of the process
	Job      string `json:"job,omitempty"`    // the job that waits, as "queue/taskID"; empty for a process
	Since    Time   `json:"since"`            // when the waiter took the place
	Until    Time   `json:"until"`            // when the place expires unless its owner asks again

	// Chosen says that the waiter of a limit is first in line and waits for any permit to become free. Since is then when
	// it became the first.
	Chosen bool `json:"chosen,omitempty"`
}

// Waiters iterates over the line of key, in the order in which the store will serve it. For the key of a limit that is
// the line for a permit. Expired places are left out. The walk may miss a place that is taken or given up meanwhile. An
// error ends the walk; see Lock.
func (d *Desk) Waiters(ctx context.Context, key string) iter.Seq2[Waiter, error] {
	return func(yield func(Waiter, error) bool) {
		line, first, err := d.lineOf(ctx, key)
		if err != nil {
			yield(Waiter{}, err)
			return
		}
		n := 0
		if first != nil {
			if n++; !yield(*first, nil) {
				return
			}
		}
		for p, err := range jobs.Line(ctx, d.cfg.Locks, line) {
			if err != nil {
				yield(Waiter{}, err)
				return
			}
			n++
			w := Waiter{Position: n, Holder: p.Holder, Job: p.Job, Since: Time{p.Since}, Until: Time{p.Until}}
			if !yield(w, nil) {
				return
			}
		}
	}
}

// lineOf returns the key whose queue is the line of key. For a limit that is the queue of the gate, and the waiter that
// has the gate is the first in line; see package limit.
func (d *Desk) lineOf(ctx context.Context, key string) (line string, first *Waiter, err error) {
	const op = "line"
	if err := d.in.Check(op, key); err != nil {
		return "", nil, err
	}
	line, _ = driver.LineOf(key)
	if role, group, _ := roleOf(key); role == RolePermit || role == RoleKeeper {
		line = group
	}
	gate := keyspace.Gate(line)
	if len(gate) > driver.MaxKeyBytes {
		return line, nil, nil // too long for a limit
	}
	recs, err := d.in.Inspect(ctx, op, key, driver.InspectRequest{Keys: []string{line, gate}})
	if err != nil {
		return "", nil, err
	}
	at := lockOf(recs[1])
	if recs[0].Waiters > 0 || at.State == driver.StateForeign || at.State == driver.StateFree && at.Waiters == 0 {
		return line, nil, nil
	}
	if at.State == driver.StateHeld {
		first = &Waiter{Position: 1, Holder: at.Holder, Since: at.Since, Until: at.ExpiresAt, Chosen: true}
	}
	return gate, first, nil
}
