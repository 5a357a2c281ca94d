package handoff_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// sweep is one replacement on a real Redis, through a proxy that strikes its
// commands from one of them on.
type sweep struct {
	u             handoff.Unique
	queue         string
	direct        *web // not through the proxy
	first, second *asynq.TaskInfo
	struck        int
	err           error
}

// replaceStruck replaces the job "first", which waits, by the job id. Of the commands for that, beginning with
// the nth, as many as times are struck.
func replaceStruck(t *testing.T, db *redistest.Database, u handoff.Unique, id string, n, times int, action redistest.Action) *sweep {
	t.Helper()
	name := fmt.Sprintf("%s-%s-%d-%d", u.Key, id, n, times)
	s := &sweep{u: u, queue: "q-" + name, direct: sweepWeb(t, db.Options(), 0)}
	s.u.Key = name
	options := func(id string) []asynq.Option {
		return []asynq.Option{asynq.Queue(s.queue), asynq.TaskID(id + "-" + name)}
	}
	first, err := s.direct.jobs.Enqueue(t.Context(), s.u, asynq.NewTask("export", []byte("first")), options("first")...)
	if err != nil {
		t.Fatal(err)
	}
	s.first = first.Task

	proxy := redistest.NewProxy(t, db.Addr())
	patience := time.Duration(0)
	if times < 0 { // no command is answered again
		patience = time.Second
	}
	through := db.Options()
	through.Addr = proxy.Addr()
	w := sweepWeb(t, through, patience)
	if err := (*core.Locker)(w.locks).Ring().Ready(t.Context()); err != nil { // connects
		t.Fatal(err)
	}
	seen := 0
	fault := proxy.Times(times, func(c redistest.Command) bool {
		if slices.Contains([]string{"HELLO", "CLIENT", "PING", "SELECT"}, c.Name()) {
			return false
		}
		seen++
		return seen >= n
	}, action)
	second, err := w.jobs.Enqueue(t.Context(), s.u, asynq.NewTask("export", []byte("second")), options(id)...)
	s.second, s.err, s.struck = second.Task, err, fault.Hits()
	return s
}

// sweepWeb returns the web side of a process that waits for the server as long as patience; 0 for the defaults.
func sweepWeb(t *testing.T, opts *redis.Options, patience time.Duration) *web {
	t.Helper()
	client := func() *redis.Client {
		opts := *opts
		opts.MaxRetries, opts.ReadTimeout = 1, patience
		rdb := redis.NewClient(&opts)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	w := &web{rdb: client(), faults: &faults{}}
	var err error
	w.locks, err = joblock.New(testkit.Must(redisstore.New(client(), nil)), &joblock.Config{
		TTL: 5 * time.Second, CallTimeout: patience, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A process that has died cannot clean up after a call without an answer.
		if err := w.locks.Close(context.Background()); err != nil && !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("close the Locker: %v", err)
		}
	})
	w.connect(t, nil)
	return w
}

// wantReplaced checks that the second job alone is there and has the key.
func (s *sweep) wantReplaced(t *testing.T) {
	t.Helper()
	if s.err != nil || s.second == nil {
		t.Fatalf("%v, %v; want it to succeed", s.second, s.err)
	}
	if s.second.ID != s.first.ID {
		s.direct.wantNoTask(t, s.first)
	}
	if left := s.left(t); len(left) != 1 || !bytes.Equal(left[0].Payload, s.second.Payload) {
		t.Errorf("left are %d tasks, %+v; want the second alone", len(left), left)
	}
	s.direct.wantOnly(t, s.u, handoff.Result{Task: s.second})
}

var sweeps = []handoff.Unique{
	{Key: "done", OnConflict: handoff.Replace},
	{Key: "last", OnConflict: handoff.KeepLast},
}

// Any one reply is lost: the command is sent again, and it is a success.
func TestReplacementWithALostReply(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	for _, u := range sweeps {
		for _, id := range []string{"second", "first"} {
			t.Run(u.Key+" by "+id, func(t *testing.T) {
				for n := 1; ; n++ {
					s := replaceStruck(t, db, u, id, n, 1, redistest.DropReply())
					s.wantReplaced(t)
					if s.struck == 0 {
						if n < 8 {
							t.Errorf("only %d commands; this test shows nothing", n-1)
						}
						break
					}
				}
			})
		}
	}
}
