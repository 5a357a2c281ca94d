package ops

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// A Desk shows the same of one server and, see TestDeskOnACluster, of a cluster.
func TestDeskOnAServer(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	deskOf(t, db.Client(t))
}

func deskOf(t *testing.T, rdb redis.UniversalClient) {
	store := testkit.Must(redisstore.New(rdb, nil))
	locks, err := joblock.New(store, &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(t, "joblock.New", err)
	t.Cleanup(func() { _ = locks.Close(context.Background()); _ = store.Close() })
	d, err := New(Config{Locks: locks, Check: func(ctx context.Context) (redisstore.Report, error) { return redisstore.Check(ctx, store) }, Audit: NewAudit(rdb, keyspace.DefaultPrefix, time.Minute)})
	testkit.WantNil(t, "New", err)
	d.who = actor{eva.By, eva.From}
	desk(t, d, locks)
}

func desk(t *testing.T, d *Desk, locks *joblock.Locker) {
	ctx := t.Context()
	const n = 600
	var want []string
	for i := range n {
		key := fmt.Sprintf("k%03d", i)
		lock, err := locks.TryAcquire(ctx, key)
		testkit.WantNil(t, "TryAcquire", err)
		if i%2 == 0 {
			_, err = lock.Park(ctx, joblock.ForJob(fmt.Sprintf("default/%d", i)))
			testkit.WantNil(t, "Park", err)
			want = append(want, key)
		}
	}
	permits := limit.New(locks, 2)
	for range 2 {
		_, err := permits.TryAcquire(ctx, "geo")
		testkit.WantNil(t, "TryAcquire", err)
	}
	_, err := permits.TryAcquire(ctx, "geo")
	testkit.WantErr(t, err, joblock.ErrHeld)
	time.Sleep(2 * driver.MinPeriod) // the record of the number of permits is held for so long

	done := 0.0
	for query, want := range map[*LocksQuery]int{
		{Prefix: "k"}: n, {Jobs: true}: n / 2, {Jobs: true, Queue: "other"}: 0, {Prefix: "geo", Own: true}: 2, {Prefix: "geo", Own: true, Ended: true}: 3,
	} {
		seen := make(map[string]bool)
		query.Share, query.Progress = 1, func(part float64) { done = part }
		for l, err := range d.Locks(ctx, *query) {
			testkit.WantNil(t, "Locks", err)
			seen[l.Key] = true
		}
		if len(seen) != want || done != 1 {
			t.Errorf("%+v: %d locks and %v of the walk, want %d and 1", query, len(seen), done, want)
		}
	}
	var bound []string
	for j, err := range d.Jobs(ctx, JobsQuery{Share: 1}) {
		testkit.WantNil(t, "Jobs", err)
		bound = append(bound, j.Key)
		if j.Job != j.Lock.Job || j.Lock.State != joblock.StateParked || j.Task.State != TaskUnknown {
			t.Errorf("%+v", j)
		}
	}
	slices.Sort(bound)
	if !slices.Equal(slices.Compact(bound), want) {
		t.Errorf("%d locks of jobs, want %d", len(bound), len(want))
	}
	p, err := d.Permits(ctx, "geo", 0)
	if err != nil || p.Kind != KindLimit || p.N != 2 || p.Taken != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	wait, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = locks.Acquire(wait, "k001", joblock.Holder("waiter"))
	}()
	var l Lock
	for ; len(l.Line) == 0; time.Sleep(5 * time.Millisecond) {
		l, err = d.Lock(ctx, "k001")
		testkit.WantNil(t, "Lock", err)
	}
	if len(l.Line) != 1 || l.Line[0].Holder != "waiter" || l.Line[0].Since.IsZero() || len(l.Problems) > 0 {
		t.Errorf("%+v", l)
	}
	cancel()
	<-ended
	forced, err := d.Act(ctx, ForceRelease{Key: "k000", Fence: 1, IfIdle: true, Reason: eva.Reason})
	testkit.WantErr(t, err, joblock.ErrNotOwner)
	forced, err = d.Act(ctx, ForceRelease{Key: "k000", Fence: forced.Before.Fence, IfIdle: true, Reason: eva.Reason})
	if err != nil || forced.After.Ended != driver.EndedForced || !strings.Contains(forced.After.Reason, eva.By) {
		t.Errorf("%+v, %v", forced, err)
	}
	var outcomes []string
	for e, err := range d.Audit(ctx, AuditQuery{Key: "k000"}) {
		testkit.WantNil(t, "Audit", err)
		outcomes = append(outcomes, e.Outcome)
	}
	if want := []string{OutcomeDone, "", OutcomeRefused}; !slices.Equal(outcomes, want) {
		t.Errorf("outcomes %q, want %q", outcomes, want)
	}
	found, err := findings(d.Doctor(ctx))
	if err != nil || !slices.ContainsFunc(found, func(f Finding) bool { return f.Subject == "keeper" && f.Severity == Fault }) {
		t.Errorf("%+v, %v", found, err)
	}
}
