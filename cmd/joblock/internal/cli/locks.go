package cli

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// lockFilter holds the flags that select the locks of a walk.
type lockFilter struct {
	part    string
	states  []string
	job     bool
	queue   string
	older   time.Duration
	waiters int
	own     bool
	share   float64
}

// defaultShare is the default of --share, and the share of every lock server.
const defaultShare = 0.25

// lockStates has the states for --state.
var lockStates = map[string]joblock.State{
	"held": joblock.StateHeld, "parked": joblock.StateParked, "orphaned": joblock.StateOrphaned, "free": joblock.StateFree,
}

func (f *lockFilter) flags(fs *pflag.FlagSet) {
	fs.StringVar(&f.part, "contains", "", "only keys with this `TEXT` anywhere; all locks under PREFIX are read for that")
	fs.StringSliceVar(&f.states, "state", nil, "only locks in this `STATE`: held, parked, orphaned or free; may be repeated (default: the first three)")
	fs.BoolVar(&f.job, "job", false, "only locks of jobs; they are found without a walk over all keys of Redis")
	fs.StringVar(&f.queue, "queue", "", "only locks of jobs in this `QUEUE` of asynq")
	fs.DurationVar(&f.older, "older", 0, "only locks held for at least `DURATION`, such as 90m")
	fs.IntVar(&f.waiters, "waiters", 0, "only locks with at least `N` waiters")
	fs.BoolVar(&f.own, "own", false, "also the keys that only the toolkit itself uses")
	fs.Float64Var(&f.share, "share", defaultShare, "largest part of Redis's time that the walk may take, from 0.001 to 1")
}

// query returns the query for the locks under prefix.
func (f *lockFilter) query(prefix string) (q ops.LocksQuery, err error) {
	q = ops.LocksQuery{
		Prefix: prefix, Contains: f.part, OlderThan: f.older, Waiters: f.waiters, Jobs: f.job || f.queue != "", Queue: f.queue, Own: f.own, Share: f.share,
	}
	for _, name := range f.states {
		state, ok := lockStates[name]
		if !ok {
			return q, usage("--state is %q, must be one of held, parked, orphaned, free", name)
		}
		q.States = append(q.States, state)
	}
	switch {
	case f.older < 0:
		return q, usage("--older is %s, must not be negative", f.older)
	case f.waiters < 0:
		return q, usage("--waiters is %d, must not be negative", f.waiters)
	case !(f.share >= 0.001 && f.share <= 1):
		return q, usage("--share is %v, must be from 0.001 to 1", f.share)
	}
	return q, nil
}

// lockOrder has the orders for --sort. Each order ends with the key.
var lockOrder = map[string]func(a, b ops.Lock) int{
	"key":      func(a, b ops.Lock) int { return 0 },
	"age":      func(a, b ops.Lock) int { return cmp.Compare(b.Age, a.Age) },
	"waiters":  func(a, b ops.Lock) int { return cmp.Compare(b.Waiters, a.Waiters) },
	"reserved": func(a, b ops.Lock) int { return cmp.Compare(a.Reserved, b.Reserved) },
	"state":    func(a, b ops.Lock) int { return cmp.Compare(b.State, a.State) },
}

// lockOrders are the names of the orders.
var lockOrders = []string{"age", "waiters", "reserved", "state", "key"}

func sortLocks(locks []ops.Lock, order string) {
	slices.SortFunc(locks, func(a, b ops.Lock) int {
		if n := lockOrder[order](a, b); n != 0 {
			return n
		}
		return strings.Compare(a.Key, b.Key)
	})
}

// lockColumns returns the columns of a table of locks. The first is the key. If ended is true, the table may have free
// keys.
func lockColumns(p *printer, ended bool) []column[ops.Lock] {
	all := []column[ops.Lock]{
		{head: "KEY", text: func(l ops.Lock) string { return l.Key }},
		{head: "STATE", text: stateText, role: stateRole},
		{head: "HOLDER", text: func(l ops.Lock) string { return l.Holder }},
		{head: "SINCE", text: func(l ops.Lock) string {
			if !l.Locked() {
				return ""
			}
			return p.when(l.Since.Time, l.Age.Duration())
		}},
		{head: headEnded, text: func(l ops.Lock) string { return p.when(l.EndedAt.Time, l.Now.Sub(l.EndedAt.Time)) }},
		{head: "LEASE", text: leaseText},
		{head: "RESERVED", text: reservedText},
		{head: "WAITERS", text: func(l ops.Lock) string { return count(l.Waiters) }},
		{head: "JOB", text: func(l ops.Lock) string { return ops.JobName(l.Job) }},
		{head: "FENCE", wide: true, text: func(l ops.Lock) string { return count(l.Fence) }},
		{head: "OWNER", wide: true, text: func(l ops.Lock) string { return l.Owner }},
		{head: "RENEWED", wide: true, text: func(l ops.Lock) string { return renewedText(p, l) }, role: pulseRole},
		{head: "ROLE", wide: true, text: func(l ops.Lock) string { return string(l.Role) }},
		{head: "REASON", wide: true, text: func(l ops.Lock) string { return l.Reason }},
	}
	if ended {
		return all
	}
	return slices.DeleteFunc(all, func(c column[ops.Lock]) bool { return c.head == headEnded })
}

const headEnded = "ENDED"

// peoples filters the rows of a walk with inner's query for display. Callers that wait for a limit wait for each of its
// permits; peoples counts them once, in a row for the limit. It leaves out the toolkit's other keys unless --own was
// given.
func (f *lockFilter) peoples(rows iter.Seq2[ops.Lock, error]) iter.Seq2[ops.Lock, error] {
	return func(yield func(ops.Lock, error) bool) {
		for l, err := range rows {
			if err == nil {
				switch l.Role {
				case ops.RolePermit:
					l.Waiters = 0
				case ops.RoleGate:
					if l.State == joblock.StateHeld {
						l.Waiters++ // the holder of the gate is the first in line
					}
					switch {
					case f.own:
					case l.Waiters == 0 || len(f.states) > 0 || f.older > 0:
						continue
					default:
						l = ops.Lock{Key: l.Group, Role: ops.RoleLimit, State: joblock.StateFree, Waiters: l.Waiters, Now: l.Now}
					}
				case ops.RoleLock, ops.RoleSlot, ops.RoleNext:
				default:
					if !f.own {
						continue
					}
				}
				if l.Waiters < f.waiters {
					continue
				}
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// inner returns the query whose rows peoples filters.
func (f *lockFilter) inner(q ops.LocksQuery) ops.LocksQuery {
	if !q.Jobs {
		q.Own = true
	}
	q.Waiters = 0
	return q
}

// stateText returns the state. For a free key it adds how the last lock on the key ended.
func stateText(l ops.Lock) string {
	if l.Role == ops.RoleLimit {
		return "limit"
	}
	if how := l.How(); how != "" {
		return l.State.String() + " (" + how + ")"
	}
	return l.State.String()
}

func stateRole(l ops.Lock) role {
	switch l.State {
	case joblock.StateHeld:
		return good
	case joblock.StateParked:
		return warning
	case joblock.StateOrphaned, joblock.StateForeign:
		return bad
	}
	return faint
}

// renewedText returns when the lease began or was last renewed, and what that means for the holder.
func renewedText(p *printer, l ops.Lock) string {
	text := p.when(l.Renewed.Time, l.Quiet())
	switch l.Pulse() {
	case ops.PulseLate:
		text += " (late)"
	case ops.PulseSilent:
		text += " (dead, hangs or cut off)"
	case ops.PulseNever:
		text += " (never since it began)"
	case ops.PulseByHand:
		text += " (by hand, if at all)"
	}
	return text
}

func pulseRole(l ops.Lock) role {
	switch l.Pulse() {
	case ops.PulseLate, ops.PulseNever:
		return warning
	case ops.PulseSilent:
		return bad
	}
	return plain
}

// leaseText returns what is left of the lease, or "" if no holder runs under the lock.
func leaseText(l ops.Lock) string {
	if l.Lease == 0 {
		return ""
	}
	return span(l.Lease.Duration())
}

// reservedText returns the time until another caller can get the lock, unless the lock is renewed or released.
func reservedText(l ops.Lock) string {
	if !l.Locked() {
		return ""
	}
	return span(l.Reserved.Duration())
}

// count returns the text of a number, "" for 0.
func count[N int | int64](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}
