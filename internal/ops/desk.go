package ops

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// Desk shows an operator the locks in one store, and performs the operator's actions on them. A Desk keeps no state:
// every call reads the store. A Desk is safe for concurrent use. Make a Desk with New.
type Desk struct {
	cfg Config
	in  *core.Locker
	who actor
}

// As returns a Desk whose actions are recorded under the operator's name by, of 1 to 256 bytes. The parameter from is the
// operator's machine or address, up to 256 bytes, or "" if it is not known. Without As every action is refused.
func (d *Desk) As(by, from string) Operator {
	as := *d
	as.who = actor{by, from}
	return &as
}

// Config configures a Desk. Only the field Locks is required.
type Config struct {
	Locks *joblock.Locker

	// Check checks the servers of the store, as redisstore.Check does. Without it, Doctor does not check the servers.
	Check func(context.Context) (redisstore.Report, error)

	// Databases are the asynq databases whose tasks have locks in the store. Without them, a Desk shows only the names of
	// jobs, not their state.
	Databases []Database

	// Scopes are the values of Config.Scope of the schedulers whose nodes Doctor checks. Default: all scopes that any
	// scheduler has had in the last year.
	Scopes []string

	// Audit records actions. Without an Audit every action is refused.
	Audit Audit

	// ExplainActs makes Explain show the actions of operators, with names and reasons. Set it only for callers who may
	// read the Audit.
	ExplainActs bool

	// Acted, if set, is called after each action with its outcome: an Outcome of AuditEntry, or "not recorded".
	Acted func(action, outcome string)

	// Follow, unless nil, runs the function wait in a goroutine of its own, until wait returns or the context that Follow
	// passes to it ends. wait waits for the end of an execution that TriggerCron has requested, and records how the
	// execution ended. An error from Follow says, without a full stop, why it does not run wait.
	Follow func(wait func(context.Context)) error

	// Logger gets a line if the end of a triggered execution could not be recorded. Default: no logging.
	Logger *slog.Logger

	// Journal reads past events of locks and cron jobs. Without it, no past events are shown.
	Journal *Journal
}

// Database is a database of asynq.
type Database struct {
	Name  string // for display
	Asynq Inspector
}

// Inspector is the part of an *asynq.Inspector that a Desk uses.
type Inspector interface {
	Queues() ([]string, error)
	GetQueueInfo(queue string) (*asynq.QueueInfo, error)
	GetTaskInfo(queue, id string) (*asynq.TaskInfo, error)
}

// New returns a Desk, and sends nothing to the store. The error is joblock.ErrInvalid for a Locker that joblock.New has
// not made, and for a Database without an Inspector.
func New(cfg Config) (*Desk, error) {
	d := &Desk{cfg: cfg, in: (*core.Locker)(cfg.Locks)}
	if err := d.in.Check("new desk"); err != nil && !errors.Is(err, joblock.ErrClosed) {
		return nil, err
	}
	if i := slices.IndexFunc(cfg.Databases, func(db Database) bool { return db.Asynq == nil }); i >= 0 {
		return nil, core.Invalid("new desk", "", "the database %q has no Inspector", cfg.Databases[i].Name)
	}
	d.cfg.Databases, d.cfg.Scopes = slices.Clone(cfg.Databases), slices.Clone(cfg.Scopes)
	return d, nil
}
