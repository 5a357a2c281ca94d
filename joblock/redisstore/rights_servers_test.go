//go:build servers

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// The documented rights are enough for all that can happen to a lock, and nothing is
// sent that they do not cover: a call that fails in the background shows here only.
func TestDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	one := func(t *testing.T, replicas int, servers []*redistest.Server, admin redis.UniversalClient, areas []area, rdb redis.UniversalClient) {
		for _, s := range servers {
			s.SetUser(t, "locks", rules(areas...)...)
		}
		store := must(newStore(rdb, &Config{Replicas: replicas}))
		if err := admin.Set(t.Context(), store.name("foreign"), "no lock", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if replicas > 0 {
			beForgiving(store)
		}
		live(t, store)
		for _, s := range servers {
			if denied := s.Denied(t); len(denied) > 0 {
				t.Errorf("%s denied %q", s.Addr(), denied)
			}
		}
	}
	t.Run("one server", func(t *testing.T) {
		srv := redistest.Start(t, wellKept...)
		redistest.Ran(t, srv.Backend())
		rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "locks", Password: redistest.Password})
		defer rdb.Close()
		one(t, 0, []*redistest.Server{srv}, srv.Client(t), onOne, rdb)
	})
	t.Run("replicas", func(t *testing.T) {
		master, _ := withReplica(t)
		redistest.Ran(t, master.Backend())
		rdb := redis.NewClient(&redis.Options{Addr: master.Addr(), Username: "locks", Password: redistest.Password, ReadTimeout: 2 * patience})
		defer rdb.Close()
		one(t, 1, []*redistest.Server{master}, master.Client(t), append(slices.Clone(onOne), replicaRights), rdb)
	})
	t.Run("cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t, 3, 0)
		redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "locks", Password: redistest.Password})
		defer rdb.Close()
		one(t, 0, []*redistest.Server{cluster.Node(0), cluster.Node(1), cluster.Node(2)}, cluster.Client(t),
			append(slices.Clone(onOne), clusterRights, shardRights), rdb)
	})
}

// live has happen to locks of a store what can happen to them.
func live(t *testing.T, store *store) {
	t.Helper()
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	locks, err := joblock.New(store, &joblock.Config{TTL: 30 * time.Second, WatchForced: true, CallTimeout: patience})
	must("new", err)
	defer store.Close()
	defer func() { must("close", locks.Close(context.Background())) }()

	// Taken, renewed, handed to a job, continued, and given back.
	lock, err := locks.TryAcquire(ctx, "life")
	must("acquire", err)
	must("renew", lock.Renew(ctx))
	must("set memo", memo.Write(ctx, lock, []byte("memo")))
	must("delete memo", memo.Write(ctx, lock, nil))
	token, err := lock.Park(ctx, joblock.ForJob("q/1"), joblock.Reserve(time.Minute))
	must("park", err)
	lock, err = locks.Resume(ctx, token, joblock.ForJob("q/1"))
	must("resume", err)
	must("release", lock.Release(ctx))
	lock, err = locks.TryAcquire(ctx, "life")
	must("acquire after a release", err)
	must("force", locks.ForceRelease(ctx, "life", joblock.Reason("to be seen")))
	select {
	case <-lock.Done():
	case <-time.After(patience):
		t.Error("the holder was not notified that it was forced out")
	}

	// Waited for: by some that give up, and by some that get it.
	lock, err = locks.TryAcquire(ctx, "waited")
	must("acquire", err)
	waiters := func(n int) {
		t.Helper()
		await(t, fmt.Sprintf("%d waiters", n), func() bool {
			st, err := testkit.One(locks.Status(ctx, "waited"))
			must("status", err)
			return st.Waiters == n
		})
	}
	impatient, cancel := context.WithCancel(ctx)
	const few = 3
	left := make(chan error, few)
	for range few {
		go func() {
			_, err := locks.Acquire(impatient, "waited")
			left <- err
		}()
	}
	waiters(few)
	cancel()
	for range few {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that was given up returned %v", err)
		}
	}
	waiters(0)
	got := make(chan error, 1)
	go func() {
		next, err := locks.Acquire(ctx, "waited")
		if err == nil {
			err = next.Release(ctx)
		}
		got <- err
	}()
	waiters(1)
	must("release to a waiter", lock.Release(ctx))
	must("wait", <-got)

	// A queue of which all but the ends have left, and then the first; and one in which
	// everybody has died.
	for _, alive := range []bool{true, false} {
		k := &kit{store: store, t: t}
		key := fmt.Sprint("queue ", alive)
		term := k.acquire(key)
		const n = 1300 // more places than are looked at one by one
		wait := func(i int, patience time.Duration) {
			r, err := store.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "w", Nonce: fmt.Sprint("w", i),
				TTL: long, Retain: long, Inbox: "unread", Patience: patience})
			wantOutcome(t, "join", r, err, driver.OutcomeHeld)
		}
		leave := func(i int) {
			_, err := store.Release(ctx, []driver.ReleaseRequest{{
				Term: driver.Term{Key: key, Owner: "w", Grant: fmt.Sprint("w", i)}, Retain: long}})
			must("leave", err)
		}
		for i := range n {
			wait(i, map[bool]time.Duration{true: long, false: time.Millisecond}[alive])
		}
		if alive {
			for i := 1; i < n-1; i++ {
				leave(i)
			}
			leave(0)
		}
		for range n { // the one that it is granted to gives it up
			rs, err := store.Release(ctx, []driver.ReleaseRequest{k.release(term)})
			must("release a queue", err)
			if rs[0].Outcome == driver.OutcomeOK || rs[0].Outcome == driver.OutcomeReleased {
				break
			}
		}
	}

	// Locks of jobs that do not run: found, kept, freed, and recovered where the record
	// was forgotten by the index.
	k := &kit{store: store, t: t}
	for _, free := range []bool{true, false} {
		term := k.acquire(fmt.Sprint("job ", free))
		park := k.park(term)
		park.Grace = 0
		if !free {
			park.Reserve = time.Millisecond
		}
		r, err := first(store.Park(ctx, []driver.ParkRequest{park}))
		wantOutcome(t, "park", r, err, driver.OutcomeOK)
		due, err := dueOf(ctx, store, 10, long)
		must("due", err)
		// On a busy machine the first lock's entry is due by now as well.
		if !slices.ContainsFunc(due, func(j driver.Entry) bool { return j.Key == term.Key }) {
			t.Errorf("due are %v, want %s", due, term.Key)
		}
		must("settle", removeFrom(ctx, store, due))
		_, err = store.Reserve(ctx, []driver.ReserveRequest{{Key: term.Key, Job: park.Job, Reserve: time.Millisecond, Retain: long}})
		must("reserve", err)
		if free {
			_, err := store.Release(ctx, []driver.ReleaseRequest{{Term: driver.Term{Key: term.Key}, Nonce: k.nonce(),
				Retain: long, Kind: driver.ReleaseForcedIdle, Job: park.Job}})
			must("release of a job", err)
			continue
		}
		time.Sleep(5 * time.Millisecond) // the reservation lapses
		r, err = first(store.Resume(ctx, []driver.ResumeRequest{{Key: term.Key, Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: park.Job}}))
		wantOutcome(t, "recover", r, err, driver.OutcomeOK)
	}

	_, err = store.SealKeys(ctx, driver.SealKeysRequest{})
	must("seal keys", err)
	permit, err := limit.New(locks, 3).Acquire(ctx, "permits")
	must("permit", err)
	_, err = limit.New(locks, 3).Status(ctx, "permits")
	must("status of a limit", err)
	must("release of a permit", permit.Release(ctx))
	for range 2 {
		v, err := singleflight.Do(ctx, locks, "flight", time.Minute, func(context.Context) (int, error) { return 7, nil })
		if err != nil || v != 7 {
			t.Errorf("flight: %d, %v", v, err)
		}
	}
	if _, err := locks.TryAcquire(ctx, "foreign"); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("acquire of something else returned %v", err)
	}
	both, err := locks.AcquireAll(ctx, []string{"all 1", "all 2"})
	must("acquire all", err)
	must("release all", both.Release(ctx))
	for _, err := range locks.List(ctx, joblock.ListOptions{}) {
		must("list", err)
	}
	_, err = memo.Read(ctx, locks, "flight", "none")
	must("peek", err)
}

func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// Check says of every right that is missing which it is, and what goes without it.
func TestCheckNamesEveryRightThatIsMissing(t *testing.T) {
	srv := redistest.Start(t, wellKept...)
	redistest.Ran(t, srv.Backend())
	all := append(rules(append(slices.Clone(onOne), replicaRights)...), "+info", "+config|get")
	look := func(t *testing.T, cfg *Config, without ...string) Report {
		t.Helper()
		srv.SetUser(t, "locks", append(slices.Clone(all), without...)...)
		rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "locks", Password: redistest.Password})
		defer rdb.Close()
		s := must(newStore(rdb, cfg))
		defer s.Close()
		r, err := Check(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return toChange(r)
	}
	if r := look(t, nil); len(r) != 0 {
		t.Errorf("with all rights found %v", r)
	}
	for _, a := range append(slices.Clone(onOne), replicaRights) {
		cfg := &Config{}
		if a.rights[0] == replicaRights.rights[0] {
			cfg.Replicas = 1
		}
		for _, r := range a.rights {
			t.Run(r.rule, func(t *testing.T) {
				f := wantFinding(t, look(t, cfg, "-"+r.rule), a.severity, a.subject)
				if !strings.Contains(f.Found, r.rule) || !strings.Contains(f.Fix, "+"+r.rule) || f.Means != a.means {
					t.Errorf("found %s, want %s named", f, r.rule)
				}
			})
		}
	}
	for without, fix := range map[string]string{"resetkeys": "~joblock:*", "resetchannels": "&joblock:*"} {
		t.Run(without, func(t *testing.T) {
			subject, severity := lockRights.subject, Fault
			if without == "resetchannels" {
				subject, severity = pushRights.subject, Warning
			}
			if f := wantFinding(t, look(t, nil, without), severity, subject); !strings.Contains(f.Fix, fix) {
				t.Errorf("found %s, want the fix %s", f, fix)
			}
		})
	}
	t.Run("neither INFO nor CONFIG", func(t *testing.T) {
		if f := wantFinding(t, look(t, nil, "-info"), Note, "permissions"); !strings.Contains(f.Found, "INFO") {
			t.Errorf("found %q, want it to name INFO", f.Found)
		}
	})
}

func TestCheckNamesTheRightsThatAreMissingInACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0, wellKept...)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	for _, r := range slices.Concat([]right{{}}, deathRights.rights, clusterRights.rights) {
		for i := range 3 {
			all := append(rules(append(slices.Clone(onOne), clusterRights, shardRights)...), "+info", "+config|get")
			if r.rule != "" {
				all = slices.DeleteFunc(all, func(have string) bool { return have == "+"+r.rule })
			}
			cluster.Node(i).SetUser(t, "locks", all...)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "locks", Password: redistest.Password})
		got := report(t, rdb)
		rdb.Close()
		if r.rule == "" || r.rule == "pubsub|numsub" { // in a cluster no script asks for NUMSUB
			if len(got) != 0 {
				t.Errorf("without %q found %v", r.rule, got)
			}
			continue
		}
		if f := wantFinding(t, got, Fault, "permissions"); !strings.Contains(f.Found, r.rule) || !strings.Contains(f.Fix, "+"+r.rule) {
			t.Errorf("found %s, want %s named", f, r.rule)
		}
	}
}

// What is missing is named by calls too, and is neither an answer nor "foreign".
func TestMissingRightIsNoAnswer(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	srv.SetUser(t, "locks", append(rules(onOne...), "-hmget")...)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "locks", Password: redistest.Password})
	defer rdb.Close()
	k := newKit(t, rdb)
	r, err := k.Acquire(t.Context(), driver.AcquireRequest{Key: "b", Owner: "o", Nonce: "n", TTL: long, Retain: long})
	if err == nil || r.Outcome != driver.OutcomeUnknown {
		t.Errorf("acquire without HMGET: %+v, %v", r, err)
	}
}

// The probe finds out that pushes do not arrive even where the server cannot say who may publish.
func TestProbeListensToTheServer(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	ctx := context.Background()
	for _, publish := range []string{"+publish", "-publish"} {
		srv.SetUser(t, "locks", append(rules(onOne...), publish)...)
		rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "locks", Password: redistest.Password})
		defer rdb.Close()
		p := &probe{s: newKit(t, rdb).store, id: "probe" + publish}
		if err := errors.Join(p.transitions(ctx), p.handOver(ctx)); err != nil {
			t.Fatalf("%s: %s: %v", publish, p.step, err)
		}
		if heard := p.deaf == ""; heard != (publish == "+publish") {
			t.Errorf("%s: found %q", publish, p.deaf)
		}
	}
}
