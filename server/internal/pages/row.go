package pages

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// Row is what a list shows of a lock. A walk keeps many Rows.
type Row struct {
	Key     string
	State   joblock.State
	Holder  string
	Job     string
	Fence   int64
	Since   time.Time
	Ends    time.Time // the end of the lease; zero if no holder runs under the lock
	Until   time.Time // end of the reservation: until then no other caller gets the key, unless it is freed
	Waiters int
	Role    ops.Role
	Group   string
	Number  int
	How     string // how the last holding of a free key ended
	Reason  string
	Renewed time.Time // when the lease of a held lock began or was last renewed
	Pulse   ops.Pulse
	Silent  bool // two renewals are overdue
	Never   bool // Silent, but perhaps the holder does not renew automatically
	Late    bool // one renewal is overdue, and the holder renews automatically
	Unknown bool // the store has no record of the key
}

func rowOf(l ops.Lock) Row {
	r := Row{
		Key: l.Key, State: l.State, Holder: l.Holder, Job: l.Job, Fence: l.Fence, Since: l.Since.Time, Until: l.ReservedUntil.Time,
		Waiters: l.Waiters, Role: l.Role, Group: l.Group, Number: l.Number, Reason: l.Reason,
	}
	if l.State == joblock.StateHeld {
		r.Ends = l.ExpiresAt.Time
	}
	if l.State == joblock.StateHeld {
		pulse := l.Pulse()
		r.Renewed, r.Pulse = l.Renewed.Time, pulse
		r.Silent, r.Never = pulse == ops.PulseSilent || pulse == ops.PulseNever, pulse == ops.PulseNever
		r.Late = pulse == ops.PulseLate && (l.Renewed.After(l.Changed.Time) || l.Job != "") // workers renew
	}
	r.Unknown = l.Unknown()
	switch l.Role {
	case ops.RolePermit:
		r.Waiters = 0 // a waiter for a limit waits for each of its permits, and is counted in the line of the limit
	case ops.RoleGate:
		if r.Locked() {
			r.Waiters++ // the holder of the gate is the first in line
		}
	}
	if l.State == joblock.StateFree {
		r.Since, r.Until, r.How = l.Changed.Time, time.Time{}, l.How()
	}
	return r
}

// Locked reports whether the key is taken.
func (r Row) Locked() bool { return joblock.Status{State: r.State}.Locked() }

// Inner reports whether only the toolkit itself has a use for the key.
func (r Row) Inner() bool {
	switch r.Role {
	case ops.RoleLock, ops.RolePermit, ops.RoleSlot, ops.RoleNext:
		return false
	}
	return true
}

// walkLocks walks over all locks, including those of the toolkit itself, which show the state of limits.
func (h *Handler) walkLocks(ctx context.Context, share float64, add func(Row), progress func(float64)) error {
	for l, err := range h.cfg.Desk.Locks(ctx, ops.LocksQuery{Own: true, Share: share, Progress: progress}) {
		if err != nil {
			return err
		}
		h.clock(l.Now)
		add(rowOf(l))
	}
	return nil
}

// A keyName is a key that is held or remembered.
type keyName struct {
	key   string
	role  ops.Role
	group string
}

// walkKeys walks over all keys, including free keys that the store remembers, to find the key that a viewer has mistyped.
func (h *Handler) walkKeys(ctx context.Context, share float64, add func(keyName), progress func(float64)) error {
	q := ops.SimilarAmong()
	q.Share, q.Progress = share, progress
	for l, err := range h.cfg.Desk.Locks(ctx, q) {
		if err != nil {
			return err
		}
		add(keyName{l.Key, l.Role, l.Group})
	}
	return nil
}

// walkJobs walks over the jobs that have locks, or wait for them.
func (h *Handler) walkJobs(ctx context.Context, share float64, add func(ops.Job), progress func(float64)) error {
	for j, err := range h.cfg.Desk.Jobs(ctx, ops.JobsQuery{Share: share, Progress: progress}) {
		if err != nil {
			return err
		}
		h.clock(j.Lock.Now)
		add(j)
	}
	return nil
}

// statuses reads the records of the keys on a page. Viewers of the same keys share the result.
func (h *Handler) statuses(ctx context.Context, v *View, what, name string, keys []string) map[string]Row {
	if len(keys) == 0 {
		return nil
	}
	r, err := getAs(ctx, h.cache, name, terms{least: tick - 100*time.Millisecond, newer: patience, any: patienceNew, small: true}, func(ctx context.Context) (map[string]Row, error) {
		list, err := h.cfg.Desk.Statuses(ctx, keys...)
		if err != nil {
			return nil, err
		}
		rows := make(map[string]Row, len(list))
		for _, l := range list {
			h.clock(l.Now)
			rows[l.Key] = rowOf(l)
		}
		return rows, nil
	})
	if err != nil {
		v.stale(what, time.Time{}, err)
		return nil
	}
	v.stale(what, r.at, r.err)
	return r.val
}
