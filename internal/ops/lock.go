package ops

import (
	"context"
	"fmt"
	"strings"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Lock is a key as an operator sees it. Fields without a value are left out of the JSON.
type Lock struct {
	Key   string        `json:"key"`
	State joblock.State `json:"state"`

	Owner  string `json:"owner,omitempty"`  // a digest, the same as in logs and events; never the token
	Holder string `json:"holder,omitempty"` // label of the present or last holder
	Job    string `json:"job,omitempty"`    // the job that the lock is bound to, as "queue/taskID"
	Fence  int64  `json:"fence,omitempty"`  // what Force and ForceRelease compare
	First  int64  `json:"first,omitempty"`  // the fence with which the present holding began; see joblock.Status

	Since         Time   `json:"since,omitzero"`          // when the key was acquired
	Changed       Time   `json:"changed,omitzero"`        // when the lock was last acquired, parked, resumed or ended
	Renewed       Time   `json:"renewed,omitzero"`        // when the lease began or was last renewed; see Pulse
	TTL           Millis `json:"ttl_ms,omitzero"`         // the length of that lease
	ByHand        bool   `json:"by_hand,omitempty"`       // the holder renews its lease by hand, if at all; see PulseByHand
	EndedAt       Time   `json:"ended_at,omitzero"`       // when the last holding of a free key ended or lapsed
	Age           Millis `json:"age_ms,omitzero"`         // time since Since; 0 unless Locked
	Lease         Millis `json:"lease_ms,omitzero"`       // what is left of the lease unless it is renewed; 0 unless held
	Reserved      Millis `json:"reserved_ms,omitzero"`    // the time until the key becomes free by itself; 0 if it is free
	ExpiresAt     Time   `json:"expires_at,omitzero"`     // when the lease ends unless it is renewed
	ReservedUntil Time   `json:"reserved_until,omitzero"` // when the key becomes free by itself

	// Ended, Reason and FreedBy describe how the last holding of a free key ended. Reason is the reason of the release;
	// after a forced release it also names the operator. FreedBy says who freed the key, if its owner did not; then Ended
	// is driver.EndedForced.
	Ended   driver.Ended `json:"ended,omitempty"`
	Reason  string       `json:"reason,omitempty"`
	FreedBy ReleasedBy   `json:"freed_by,omitempty"`

	Waiters int `json:"waiters,omitempty"` // places in the line; for a while this includes waiters that have died

	// Role says what the key is for, if the toolkit made it. Group is the key of the limit of a permit, or of the
	// sequence of a slot, and Number is the number of the permit or slot.
	Role   Role   `json:"role,omitempty"`
	Group  string `json:"group,omitempty"`
	Number int    `json:"number,omitempty"`

	Now Time `json:"now,omitzero"` // the store's clock when the key was read; zero if the store has no record of the key

	// The fields below are set only by Desk.Lock, which reads one key.

	Line    []Waiter      `json:"line,omitempty"`    // the first waiters, at most LineShown; Waiters has all
	Newest  string        `json:"newest,omitempty"`  // the newest job that waits for the key, with handoff.KeepLast, CancelInProgress or Debounce
	Permits *Permits      `json:"permits,omitempty"` // if the key is that of a limit, or of a sequence with several slots
	Task    *Task         `json:"task,omitempty"`    // the task of Job, as asynq sees it
	Holds   *HoldStats    `json:"holds,omitempty"`   // how long recent holders took, if a caller waits and there is a journal
	Lately  *RecentEvents `json:"lately,omitempty"`  // recent refusals and lapsed leases, if there is a journal

	Rate   string  `json:"rate,omitempty"`   // the state of the key's rate in sentences, if it has one
	Paused []Pause `json:"paused,omitempty"` // the pauses that hold back the jobs of the key; their Waiting is not set

	// Problems say, in sentences, what could not be read. The fields concerned are not set.
	Problems []string `json:"problems,omitempty"`
}

// LineShown is the maximum number of waiters in Lock.Line.
const LineShown = 20

// Locked reports whether the key is held, parked or orphaned, or in a state that only a newer server knows: that key must
// not be taken for free.
func (l Lock) Locked() bool { return l.State != joblock.StateFree && l.State != joblock.StateForeign }

// Lock reads one key, with its line, its permits and its job. A free key is no error: its State is joblock.StateFree. If
// only the key itself could be read, Lock.Problems says what is missing.
//
// Errors: joblock.ErrInvalid for a bad key, joblock.ErrUnavailable, joblock.ErrClosed.
func (d *Desk) Lock(ctx context.Context, key string) (Lock, error) {
	lock, err := d.read(ctx, "status", key)
	if err != nil {
		return Lock{}, err
	}
	for w, err := range d.Waiters(ctx, key) {
		if err != nil {
			lock.problem("The line could not be read: %s.", err)
			break
		}
		if lock.Line = append(lock.Line, w); len(lock.Line) == LineShown {
			break
		}
	}
	if _, cools := envelope.ParseCooling(lock.Job); lock.Job != "" && !cools && lock.Locked() && len(d.cfg.Databases) > 0 {
		task := d.asynq().task(ctx, lock.Job)
		lock.Task = &task
	}
	lock.Paused = d.covering(ctx, key)
	lock.Rate = d.rate(ctx, key)
	if lock.Job != "" && lock.Locked() {
		lock.Newest = d.newest(ctx, key)
	}
	permits, err := d.permitsForKey(ctx, lock)
	switch {
	case err != nil:
		lock.problem("The permits could not be read: %s.", err)
	case permits.Kind != "":
		lock.Permits = &permits
		lock.Now.Time = latest(lock.Now.Time, permits.Now.Time) // the key of a limit has no record of its own
		lock.Waiters = max(lock.Waiters, permits.Waiting)
	}
	lock.journal(ctx, d)
	return lock, nil
}

// newest returns the job that waits for key and will have it next, with handoff.KeepLast and the like, or "".
func (d *Desk) newest(ctx context.Context, key string) string {
	next := keyspace.Next(key)
	if keyspace.CheckApplication(key) != "" || len(next) > driver.MaxKeyBytes {
		return ""
	}
	lock, err := d.read(ctx, "status", next)
	if err != nil || !lock.Locked() {
		return ""
	}
	return lock.Job
}

func (d *Desk) read(ctx context.Context, op, key string) (Lock, error) {
	if err := d.in.Check(op, key); err != nil {
		return Lock{}, err
	}
	recs, err := d.in.Inspect(ctx, op, key, driver.InspectRequest{Keys: []string{key}})
	if err != nil {
		return Lock{}, err
	}
	return lockOf(recs[0]), nil
}

func lockOf(rec driver.Record) Lock { return show(joblock.Status(core.StatusOf(rec))) }

// show returns the Lock for a status.
func show(st joblock.Status) Lock {
	now := st.Now
	l := Lock{
		Key: st.Key, State: st.State, Owner: st.Owner, Holder: st.Holder, Job: st.Job, Fence: st.Fence, First: st.First,
		Since: Time{st.Since}, Changed: Time{st.Changed}, Renewed: Time{st.Renewed}, TTL: Millis(st.TTL), EndedAt: Time{st.EndedAt},
		Age: Millis(st.Age), Lease: Millis(st.Lease), Reserved: Millis(st.Reserved),
		Ended: st.Ended, Reason: st.Reason, Waiters: st.Waiters, Now: Time{now},
	}
	l.ByHand = l.Locked() && st.ByHand
	if st.Lease > 0 {
		l.ExpiresAt = Time{now.Add(st.Lease)}
	}
	if st.Reserved > 0 {
		l.ReservedUntil = Time{now.Add(st.Reserved)}
	}
	if st.Ended == driver.EndedForced {
		l.FreedBy = freerOf(st.Reason)
	}
	l.Role, l.Group, l.Number = roleOf(st.Key)
	return l
}

// ReleasedBy says who freed a key, if its owner did not.
type ReleasedBy string

// The values of ReleasedBy. The store does not record who freed a key, so they are derived from the reason.
const (
	FreedByKeeper  ReleasedBy = "keeper"  // a keeper, because the job had ended
	FreedByProgram ReleasedBy = "program" // a program that enqueues jobs or runs them, because the job had ended or was not enqueued
	FreedByForce   ReleasedBy = "force"   // any other caller: an operator, or the application by Locker.ForceRelease
)

func freerOf(reason string) ReleasedBy {
	if strings.HasPrefix(reason, workerstats.KeeperReason) {
		return FreedByKeeper
	}
	for _, begin := range []string{"its job ", "job "} { // reasons that begin so come from packages handoff and worker
		if strings.HasPrefix(reason, begin) && !isSigned(reason) {
			return FreedByProgram
		}
	}
	return FreedByForce
}

// How describes in a few words how the last holding of a free key ended, or returns "" if the store does not know.
func (l Lock) How() string {
	switch {
	case l.State != joblock.StateFree || l.Ended == driver.EndedNone:
		return ""
	case l.FreedBy == FreedByKeeper:
		return "freed by a keeper"
	case l.FreedBy == FreedByProgram:
		return "freed by a program"
	case l.FreedBy == FreedByForce && isSigned(l.Reason):
		return "freed by an operator"
	case l.FreedBy == FreedByForce:
		return "freed by force"
	}
	return l.Ended.String()
}

func (l *Lock) problem(format string, args ...any) {
	l.Problems = append(l.Problems, fmt.Sprintf(format, args...))
}
