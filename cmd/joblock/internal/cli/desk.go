package cli

import (
	"context"
	"errors"
	"fmt"
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

// A desk is where the commands for operators ask and act, with what has to be closed after it.
type desk struct {
	ops.Operator
	local   *ops.Desk // nil at a lock server
	name    string    // of the locks' Redis, or of the lock server, for people
	session *session
	closers []io.Closer
}

// Payload returns the payload of a task. A lock server shows none: who may read its jobs need not be allowed to read what they
// are about.
func (d *desk) Payload(ctx context.Context, job string) (ops.Payload, error) {
	if d.local == nil {
		return ops.Payload{}, needsRedis("the payload of a task")
	}
	return d.local.Payload(ctx, job)
}

func (d *desk) Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[ops.Lock, error] {
	return walk(d, q.Share, d.Operator.Locks(ctx, q))
}

func (d *desk) Jobs(ctx context.Context, q ops.JobsQuery) iter.Seq2[ops.Job, error] {
	return walk(d, q.Share, d.Operator.Jobs(ctx, q))
}

func (d *desk) Sequences(ctx context.Context, q ops.SequencesQuery) iter.Seq2[ops.Sequence, error] {
	return walk(d, q.Share, d.Operator.Sequences(ctx, q))
}

// walk refuses a share of Redis' time other than that of every lock server.
func walk[T any](d *desk, share float64, all iter.Seq2[T, error]) iter.Seq2[T, error] {
	if d.local != nil || share == 0 || share == defaultShare {
		return all
	}
	return func(yield func(T, error) bool) {
		var none T
		yield(none, needsRedis(fmt.Sprintf("a --share other than %v", defaultShare)))
	}
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
			d.Operator, d.name = a.Client, a.name
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
	if d.local, err = ops.New(cfg); err != nil {
		return err
	}
	d.Operator = d.local.As(operator(), hostname())
	return nil
}

// source returns who answers, for people.
func source(d ops.Operator) string {
	if outer, ok := d.(*desk); ok && outer.local == nil {
		return "the lock server"
	}
	return "Redis"
}

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
