package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// The type desk is an ops.Desk, with what has to be closed after it.
type desk struct {
	*ops.Desk
	name    string // of the locks' Redis, for people
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
	if d.session, err = s.open(os.Getenv, joblock.Config{}); err != nil {
		return err
	}
	at, databases, err := s.databases(os.Getenv)
	if err != nil {
		return err
	}
	d.name = at.name()
	cfg := ops.Config{
		Locks: d.session.Locker, Check: d.session.store.Check, Audit: ops.NewAudit(d.session.rdb, s.prefix, s.timeout), ExplainActs: true,
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
	d.Desk, err = ops.New(cfg)
	return err
}

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
