package ledger

import (
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// SetBack is how far the clock must be behind a ledger to count as set back. A node's clock reading errs by less.
const SetBack = 10 * time.Second

// Moment is when and where a ledger is updated.
type Moment struct {
	Now   time.Time // the store's clock
	Floor time.Time // without a ledger, ticks count from here
	Since time.Time // when this node registered the job; see Ledger.Follows
	Spec  spec.Spec // the spec of Ledger.Spec; unused if Ledger.Spec is that of the job
	Order Order
	Node  string
	ID    string // of this node's record

	Over   Decision // by a node that is not up with the job: this node decides in its place; zero: there is none
	Unseen bool     // other nodes may consider this node down: it decides nothing again; see Ledger.Follows
}

// Kind is the kind of a News. Package scheduler has events of the same names.
type Kind string

const (
	NewsMissed     Kind = "missed"
	NewsOverlapped Kind = "overlapped"
	NewsPaused     Kind = "paused"
	NewsLost       Kind = "lost"
	NewsStuck      Kind = "stuck"
	NewsRedefined  Kind = "redefined"
	NewsSpec       Kind = "spec"
	NewsContested  Kind = "contested"
	NewsClock      Kind = "clock"
	NewsBackfilled Kind = "backfilled"
)

// News is something that a node reports after writing the ledger.
type News struct {
	Kind  Kind
	Tick  Tick   // the newest of Count ticks; zero if the News is not about a tick
	Node  string // the node that has skipped the ticks, has lost the execution or has updated the ledger
	Count int
	Err   error
}

func tickAt(t time.Time) Tick { return Tick{At: t, Cause: CauseTick} }
