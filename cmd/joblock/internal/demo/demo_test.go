package demo

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Everything that the comment of the package lists is there soon, and the demo ends with its context.
func TestEverythingMoves(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	url, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- run(ctx, 0, 10, func(u string) { url <- u }) }()
	var addr string
	select {
	case u := <-url:
		addr = strings.TrimPrefix(u, "redis://")
	case err := <-ended:
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})
	defer inspector.Close()
	cron, err := scheduler.New(locks, &scheduler.Config{Scope: Scope, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}

	desk, err := ops.New(ops.Config{Locks: locks, Journal: ops.NewJournal(rdb, keyspace.DefaultPrefix, time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	audit := ops.NewAudit(rdb, keyspace.DefaultPrefix, time.Minute)
	is := func(key string, state joblock.State, ok func(joblock.Status) bool) func() bool {
		return func() bool {
			st, err := locks.Status(t.Context(), key)
			return err == nil && st[0].State == state && ok(st[0])
		}
	}
	for what, ok := range map[string]func() bool{
		"a deployment waits": is("deploy:shop", joblock.StateHeld, func(st joblock.Status) bool { return st.Waiters > 0 }),
		"a report has died: it has renewed its lease, and two renewals are overdue": func() bool {
			l, err := desk.Lock(t.Context(), "report:monthly")
			return err == nil && l.Pulse() == ops.PulseSilent && strings.HasSuffix(l.Holder, " report.sh")
		},
		"and only the holder after it has reported its end": func() bool {
			told := false
			for e, err := range desk.Events(t.Context(), ops.EventsQuery{Key: "report:monthly"}) {
				if err != nil || e.Kind == event.Lost.String() || e.Kind == event.Released.String() {
					t.Fatalf("the journal has %+v, %v", e, err)
				}
				told = told || e.Prior == driver.EndedLapsed.String()
			}
			return told
		},
		"an import is parked": is("import:prices", joblock.StateParked, func(st joblock.Status) bool {
			return st.Job == "default/import-never-enqueued"
		}),
		"an export runs":           is("export:acct-1", joblock.StateHeld, func(st joblock.Status) bool { return st.Job != "" }),
		"a job is stuck":           is("stuck:invoices", joblock.StateHeld, func(st joblock.Status) bool { return st.Job != "" }),
		"a line of webhooks grows": is("webhooks:shop-2", joblock.StateHeld, func(st joblock.Status) bool { return st.Waiters > 0 }),
		"all permits are taken": func() bool {
			st, err := limit.New(locks, 3).Status(t.Context(), "geocoder")
			return err == nil && st.Taken == 3 && st.Waiters > 0
		},
		"cron has run, and a job is paused": func() bool {
			entries, err := admin.Of(cron).Entries(t.Context())
			done, paused := false, false
			for _, e := range entries {
				done = done || e.Counts.Done > 0
				paused = paused || e.Name == "newsletter" && e.Paused
			}
			return err == nil && len(entries) == 5 && done && paused
		},
		"the journal has a failure of a cron job, and a forced release": func() bool {
			entries, err := rdb.XRange(t.Context(), keyspace.DefaultPrefix+eventlog.Name, "-", "+").Result()
			failed, forced := false, false
			for _, m := range entries {
				e, _, ok := eventlog.Decode(m)
				failed = failed || ok && e.Kind == eventlog.CronKind(string(scheduler.Failed)) && e.Scope == Scope && e.Name == "rates"
				forced = forced || ok && e.Kind == event.Forced.String() && e.Key == "reindex:catalog"
			}
			return err == nil && failed && forced
		},
		"the audit has who has forced it": func() bool {
			for e, err := range audit.Read(t.Context(), ops.AuditQuery{Key: "reindex:catalog"}) {
				if err == nil && e.By == "eva" && e.Action == "force release" && e.Outcome == ops.OutcomeDone {
					return true
				}
			}
			return false
		},
		"asynq has tasks": func() bool {
			info, err := inspector.GetQueueInfo("webhooks")
			return err == nil && info.Scheduled > 0
		},
	} {
		for over := time.Now().Add(90 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(over) {
				t.Fatalf("gave up waiting: %s", what)
			}
		}
	}
	if err := locks.Close(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the demo does not end")
	}
}

func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = Run(t.Context(), listener.Addr().(*net.TCPAddr).Port, func(string) { t.Error("the demo is ready") })
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v, want an error that says that the port is in use", err)
	}
}
