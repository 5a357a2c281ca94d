package cli

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// The type deskFace is what the commands for operators ask and do: an *ops.Desk with Redis, or an *api at a lock server.
type deskFace interface {
	Lock(ctx context.Context, key string) (ops.Lock, error)
	Statuses(ctx context.Context, keys ...string) ([]ops.Lock, error)
	Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[ops.Lock, error]
	Waiters(ctx context.Context, key string) iter.Seq2[ops.Waiter, error]
	Permits(ctx context.Context, key string, n int) (ops.Permits, error)
	Explain(ctx context.Context, key string) (ops.Explanation, error)
	Jobs(ctx context.Context, q ops.JobsQuery) iter.Seq2[ops.Job, error]
	Job(ctx context.Context, job string) ([]ops.Job, ops.Task, error)
	Sequences(ctx context.Context, q ops.SequencesQuery) iter.Seq2[ops.Sequence, error]
	Keeper(ctx context.Context) (ops.Keeper, error)
	Doctor(ctx context.Context) (ops.Checkup, error)
	Actions(ctx context.Context, q ops.AuditQuery) iter.Seq2[ops.AuditEntry, error]

	Events(ctx context.Context, q ops.EventsQuery) iter.Seq2[ops.Event, error]
	Follow(q ops.EventsQuery, after string) (feed, error)
	History(ctx context.Context, q ops.HistoryQuery) (ops.History, error)

	Force(ctx context.Context, req ops.ForceRequest) (ops.Forced, error)
	Payload(ctx context.Context, job string) (ops.Payload, error)
	RunTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	DeleteTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	ArchiveTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	CancelTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	SkipJob(ctx context.Context, who ops.Actor, key string, fence int64) (ops.Acted, error)

	CronScopes(ctx context.Context) ([]string, error)
	CronJobs(ctx context.Context, scope string) ([]ops.CronJob, error)
	CronJob(ctx context.Context, scope, name string) (ops.CronJob, error)
	CronNext(ctx context.Context, scope, name string, n int) ([]ops.CronTick, error)
	CronNodes(ctx context.Context, scope string) ([]ops.CronNode, error)
	CronPause(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
	CronResume(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
	CronTrigger(ctx context.Context, scope, name string, wait bool, who ops.Actor) (ops.Acted, error)
	CronForget(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
	CronCount(ctx context.Context, scope, name string, from, to time.Time) (int, error)
	CronBackfill(ctx context.Context, scope, name string, from, to time.Time, who ops.Actor) (int, ops.Acted, error)
	CronStopBackfill(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
}

// The type desk is a deskFace, with what has to be closed after it.
type desk struct {
	deskFace
	name    string // of the locks' Redis, or of the lock server, for people
	session *session
	closers []io.Closer
}

// closePatience is how long a command that only reads waits for its calls to end.
const closePatience = 100 * time.Millisecond

// The method desk returns what the commands for operators work with, and sends nothing.
func (s *server) desk() (*desk, error) {
	d := &desk{}
	if err := d.open(s); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *desk) open(s *server) (err error) {
	if a, err := s.api(os.Getenv); a != nil || err != nil {
		if err == nil {
			d.deskFace, d.name = a, a.name
			d.closers = append(d.closers, closeFunc(func() error { return a.Client.Close(context.Background()) }))
		}
		return err
	}
	if d.session, err = s.open(os.Getenv, joblock.Config{}); err != nil {
		return err
	}
	at, databases, err := s.databases(os.Getenv)
	if err != nil {
		return err
	}
	d.name = at.name()
	cfg := ops.Config{
		Locks: d.session.Locker, Check: d.session.store.Examine, Audit: ops.NewAudit(d.session.rdb, s.prefix, s.timeout), ExplainActs: true,
		Journal: ops.NewJournal(d.session.rdb, s.prefix, s.timeout),
	}
	for _, a := range databases {
		secure, err := s.tlsConfig(a)
		if err != nil {
			return err
		}
		rdb := s.connect(a, secure, s.timeout/2) // leaves time for the rest of a command whose asynq is silent
		d.closers = append(d.closers, rdb)
		cfg.Databases = append(cfg.Databases, ops.Database{Name: a.name(), Asynq: asynq.NewInspectorFromRedisClient(rdb)})
	}
	inner, err := ops.New(cfg)
	d.deskFace = redisDesk{inner}
	return err
}

// source returns who answers, for people.
func source(d deskFace) string {
	if outer, ok := d.(*desk); ok {
		d = outer.deskFace
	}
	if _, ok := d.(*api); ok {
		return "the lock server"
	}
	return "Redis"
}

// The type feed follows the journal: an *ops.Feed, or a *client.Feed at a lock server.
type feed interface {
	Next(ctx context.Context, atMost time.Duration) ([]ops.Event, error)
	Close()
}

// The type redisDesk is an *ops.Desk as a deskFace.
type redisDesk struct{ *ops.Desk }

func (d redisDesk) Follow(q ops.EventsQuery, after string) (feed, error) {
	f, err := d.Desk.Follow(q, after)
	return redisFeed{f}, err
}

type redisFeed struct{ *ops.Feed }

func (redisFeed) Close() {}

// The type closeFunc is an io.Closer.
type closeFunc func() error

func (f closeFunc) Close() error { return f() }

func (d *desk) close() {
	if d.session != nil {
		d.session.close(closePatience)
	}
	for _, c := range d.closers {
		_ = c.Close()
	}
}

// withDesk runs f with a desk and the printer of cmd. The context of f ends after --timeout: for commands that ask a
// bounded number of questions. With an answer that comes too late, the error is joblock.ErrUnavailable.
func (s *server) withDesk(cmd *cobra.Command, o *output, f func(ctx context.Context, d *desk, p *printer) error) error {
	p, err := o.printer(cmd)
	if err != nil {
		return err
	}
	d, err := s.desk()
	if err != nil {
		return err
	}
	defer d.close()
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), s.timeout, errSilent)
	defer cancel()
	return f(ctx, d, p)
}

// errSilent is the cause with which the context of a command ends after --timeout.
var errSilent = &exitError{exitUnavailable, errors.New("no answer of Redis within --timeout")}

// The method name returns how people know a server: its hosts and its database.
func (a address) name() string {
	name := strings.Join(a.hosts, ",")
	if a.db != 0 {
		name += "/" + strconv.Itoa(a.db)
	}
	return name
}
