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

// A desk is what the commands for operators use, with what has to be closed after it.
type desk struct {
	ops.Operator
	local   *ops.Desk // nil with a lock server
	name    string    // the name of the locks' Redis or of the lock server, for display
	session *session
	closers []io.Closer
}

// Payload returns the payload of a task. With a lock server it returns an error: a caller who may list jobs need not be
// allowed to read their payloads.
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

// walk returns all, or an error for a share that the lock server does not support. A lock server uses defaultShare for
// every walk.
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

// desk returns what the commands for operators work with, and sends nothing.
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
		Locks: d.session.Locker, Check: d.session.examine, Audit: ops.NewAudit(d.session.rdb, s.prefix, s.timeout), ExplainActs: true,
		Journal: ops.NewJournal(d.session.rdb, s.prefix, s.timeout),
	}
	for _, a := range databases {
		secure, err := s.tlsConfig(a)
		if err != nil {
			return err
		}
		rdb := s.connect(a, secure, s.timeout/2) // leaves time for the rest of a command whose asynq database does not respond
		d.closers = append(d.closers, rdb)
		cfg.Databases = append(cfg.Databases, ops.Database{Name: a.name(), Asynq: asynq.NewInspectorFromRedisClient(rdb)})
	}
	if d.local, err = ops.New(cfg); err != nil {
		return err
	}
	d.Operator = d.local.As(operator(), hostname())
	return nil
}

// source returns what d reads from, the lock server or Redis, for messages.
func source(d ops.Operator) string {
	if outer, ok := d.(*desk); ok && outer.local == nil {
		return "the lock server"
	}
	return "Redis"
}

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

// withDesk calls f with a desk and the printer of cmd. The context of f ends after --timeout, so f must make a bounded
// number of calls. If an answer comes too late, the error is joblock.ErrUnavailable.
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
var errSilent = &exitError{exitUnavailable, errors.New("no answer from Redis within --timeout")}

// name returns the name of a server for messages: its hosts and its database number.
func (a address) name() string {
	name := strings.Join(a.hosts, ",")
	if a.db != 0 {
		name += "/" + strconv.Itoa(a.db)
	}
	return name
}
