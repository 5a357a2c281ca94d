package pages

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
)

// A bill says what was asked of the store, and of asynq's.
type bill struct {
	calls   int
	records int
	busy    time.Duration // of the store
}

func (b bill) less(other bill) bill {
	return bill{b.calls - other.calls, b.records - other.records, b.busy - other.busy}
}

// A billed store is in memory, and takes as long as Redis on a slow core: so much for each call, and for each record.
// It answers one call at a time.
type billed struct {
	driver.Store
	calls, records atomic.Int64
	turn           chan struct{} // no mutex: time goes on in a bubble only while goroutines wait for channels
}

const (
	callTime   = 60 * time.Microsecond
	recordTime = 15 * time.Microsecond
)

func (s *billed) bill() bill {
	calls, records := int(s.calls.Load()), int(s.records.Load())
	return bill{calls, records, time.Duration(calls)*callTime + time.Duration(records)*recordTime}
}

func (s *billed) take(records int) {
	s.calls.Add(1)
	s.records.Add(int64(records))
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	time.Sleep(callTime + time.Duration(records)*recordTime)
}

func (s *billed) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	s.take(len(req.Keys))
	return s.Store.Inspect(ctx, req)
}

func (s *billed) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	page, err := s.Store.List(ctx, req)
	s.take(len(page.Records))
	return page, err
}

func (s *billed) Entries(ctx context.Context, req driver.EntriesRequest) (driver.EntriesPage, error) {
	page, err := s.Store.Entries(ctx, req)
	s.take(len(page.Entries))
	return page, err
}

func (s *billed) Line(ctx context.Context, req driver.LineRequest) (driver.LinePage, error) {
	s.take(0)
	return s.Store.Line(ctx, req)
}

// tasks is an asynq in which every task is scheduled. A call takes as long as one of the store.
type tasks struct{ *billed }

func (t tasks) Queues() ([]string, error) { t.take(0); return []string{"default"}, nil }

func (t tasks) GetQueueInfo(queue string) (*asynq.QueueInfo, error) {
	t.take(0)
	return &asynq.QueueInfo{Queue: queue}, nil
}

func (t tasks) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	t.take(0)
	return &asynq.TaskInfo{Queue: queue, ID: id, State: asynq.TaskStateScheduled}, nil
}

// No page asks much of the store, neither the first time nor while it stays open, and no page waits long for what it asks.
// The time is virtual, so a busy machine changes nothing.
func TestWhatAPageAsksOfTheStore(t *testing.T) {
	const all, jobs, cron = 2000, 300, 500
	for path, most := range map[string]struct{ first, second int }{ // records: of the first view, and for each second that a page is open
		"":                                {4500, 400}, // a little of everything, and the doctor looks
		"locks":                           {1200, 450},
		"lock?key=k:00001":                {1200, 250},
		"jobs":                            {1500, 450},
		"job?job=default/1":               {1200, 300},
		"sequences":                       {1500, 300},
		"limits":                          {1200, 400},
		"cron":                            {600, 400},
		"cronjob?scope=shop&name=job-001": {30, 30},
		"nodes":                           {600, 300},
		"doctor":                          {1100, 300},
		"help":                            {0, 0},
	} {
		name, _, _ := strings.Cut(path, "?")
		t.Run(cmp.Or(name, "overview"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Second) // look-ups without a waiter
				store := &billed{Store: memstore.New(&memstore.Config{Silent: true}), turn: make(chan struct{}, 1)}
				quiet := slog.New(slog.DiscardHandler)
				end := func(l *joblock.Locker) { testkit.WantNil(t, "Close", l.Close(context.Background())) }
				fill, err := joblock.New(store.Store, &joblock.Config{Logger: quiet})
				testkit.WantNil(t, "New", err)
				defer end(fill)
				for i := range all {
					l, err := fill.TryAcquire(t.Context(), fmt.Sprintf("k:%05d", i), joblock.TTL(time.Hour), joblock.NoRenew())
					testkit.WantNil(t, "TryAcquire", err)
					if i < jobs {
						_, err = l.Park(t.Context(), joblock.ForJob(fmt.Sprint("default/", i)), joblock.Reserve(time.Hour))
						testkit.WantNil(t, "Park", err)
					}
				}
				if name == "" || strings.HasPrefix(name, "cron") || name == "nodes" {
					ctx, stop := context.WithCancel(t.Context())
					node, err := scheduler.New(fill, &scheduler.Config{Scope: "shop", Node: "n1", Logger: quiet})
					testkit.WantNil(t, "scheduler.New", err)
					for i := range cron {
						testkit.WantNil(t, "Func", node.Func(fmt.Sprintf("job-%03d", i), "0 3 * * *", func(context.Context) error { return nil }, scheduler.RunAtStart("1")))
					}
					over := make(chan struct{})
					go func() { defer close(over); _ = node.Run(ctx) }()
					defer func() { stop(); <-over }()
					time.Sleep(time.Minute)
				}
				locks, err := joblock.New(store, &joblock.Config{Logger: quiet})
				testkit.WantNil(t, "New", err)
				defer end(locks)
				desk, err := ops.New(ops.Config{Locks: locks, Scopes: []string{"shop"}, Databases: []ops.Database{{Name: "jobs", Asynq: tasks{store}}}})
				testkit.WantNil(t, "ops.New", err)
				h, err := New(Config{Desk: desk, Scopes: []string{"shop"}, Logger: quiet})
				testkit.WantNil(t, "New", err)
				defer h.Close()

				view := func() (asked bill, took time.Duration) {
					before, began := store.bill(), time.Now()
					if w := h.get(path, someone); w.Code != http.StatusOK {
						t.Errorf("%d %s", w.Code, w.Body)
					}
					return store.bill().less(before), time.Since(began)
				}
				asked, took := view()
				t.Logf("first: %d calls, %d records, %s", asked.calls, asked.records, took)
				if took > firstLook+20*time.Millisecond || asked.records > most.first {
					t.Errorf("the first view is too dear, want %d records at most", most.first)
				}
				view()          // a first walk may have found other rows by now
				synctest.Wait() // until what goes on behind waits for the store
				before := store.bill()
				for range 5 { // other viewers, at the same time
					if _, took := view(); took > 0 {
						t.Errorf("the next viewer waits for %s", took)
					}
				}
				if asked := store.bill().less(before); asked.calls > 0 {
					t.Errorf("the next viewers cost %d calls", asked.calls)
				}
				time.Sleep(5 * time.Second) // the first walks
				before = store.bill()
				slowest, began := time.Duration(0), time.Now()
				for time.Since(began) < 9*time.Second { // as a stream does
					_, took := view()
					slowest = max(slowest, took)
					time.Sleep(tick)
				}
				asked = store.bill().less(before)
				long := time.Since(began).Seconds()
				share := asked.busy.Seconds() / long
				t.Logf("open: %.1f calls and %.0f records a second, %.2f %% of the store's time; the slowest view waits for %s",
					float64(asked.calls)/long, float64(asked.records)/long, 100*share, slowest)
				if slowest > patience || share > 0.01 || float64(asked.records) > float64(most.second)*long {
					t.Errorf("a page that stays open is too dear, want %d records a second at most", most.second)
				}
			})
		})
	}
}
