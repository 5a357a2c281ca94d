//go:build servers

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/storetest"
)

// withReplica starts a master and a replica that is in step with it.
func withReplica(t testing.TB) (master, replica *redistest.Server) {
	t.Helper()
	master = redistest.Start(t)
	_, port, _ := strings.Cut(master.Addr(), ":")
	replica = redistest.Start(t, "--replicaof", "127.0.0.1 "+port)
	rdb := replica.Client(t)
	deadline := time.Now().Add(30 * time.Second)
	for parseInfo(rdb.Info(context.Background(), "replication").Val())["master_link_status"] != "up" {
		if time.Now().After(deadline) {
			t.Fatal("the replica does not come into step")
		}
		time.Sleep(2 * time.Millisecond)
	}
	return master, replica
}

// patience is how long a busy machine may take to have a replica answer.
const patience = 20 * time.Second

// patient returns a client of srv for stores that wait for long.
func patient(t testing.TB, srv *redistest.Server) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), ReadTimeout: 2 * patience})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// beForgiving has s wait for replicas for longer than Config allows.
func beForgiving(s *store) {
	s.renew.Close() // its timeouts are short
	s.renew, s.renewals, s.replicaTimeout = s.ops, unmerged(s.ops, s.calls.via), patience
}

// acknowledged returns a store that wants one replica, on a master.
func acknowledged(t testing.TB, rdb redis.UniversalClient) *kit {
	t.Helper()
	s := must(newStore(rdb, &Config{Replicas: 1}))
	beForgiving(s)
	t.Cleanup(func() { s.Close() })
	return &kit{store: s, t: t, rdb: rdb}
}

func TestConformanceAcknowledged(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: 2 * patience})
	t.Cleanup(func() { rdb.Close() })
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		h := harnessWith(t, rdb, &Config{
			Prefix: fmt.Sprintf("test %d:", n.Add(1)), Replicas: 1,
		})
		beForgiving(h.Store.(*store))
		h.Advance = time.Sleep
		h.Deaf = true
		return h
	})
}

// A replica that does not answer turns grants into errors, and refusals into
// nothing but themselves.
func TestGrantsWaitForReplicas(t *testing.T) {
	master, replica := withReplica(t)
	redistest.Ran(t, master.Backend())
	k := acknowledged(t, patient(t, master))
	ctx := context.Background()
	held, parked, renewed := k.acquire("held"), k.acquire("parked"), k.acquire("renewed")
	park := k.park(parked)
	r, err := k.Park(ctx, park)
	wantOutcome(t, "park", r, err, driver.OutcomeOK)

	replica.Stop()
	k.replicaTimeout = 50 * time.Millisecond // whatever it is, there will be no answer
	short := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, errTooFew) {
			t.Errorf("%s without the replica returned %v", what, err)
		}
	}
	acquire := driver.AcquireRequest{Key: "new", Owner: "a", Nonce: k.nonce(), TTL: long, Retain: long}
	_, err = k.Acquire(ctx, acquire)
	short("acquire", err)
	// Sent again it finds its own grant, and must not believe it, not on a connection
	// either that has written nothing.
	again := func() *kit {
		k2 := acknowledged(t, patient(t, master))
		k2.replicaTimeout = k.replicaTimeout
		return k2
	}
	_, err = again().Acquire(ctx, acquire)
	short("acquire again", err)
	resume := driver.ResumeRequest{Key: "parked", Owner: parked.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: park.Job}
	_, err = k.Resume(ctx, resume)
	short("resume", err)
	_, err = again().Resume(ctx, resume)
	short("resume again", err)
	parking := k.park(held)
	_, err = k.Park(ctx, parking)
	short("park", err)
	_, err = again().Park(ctx, parking)
	short("park again", err)
	taking := k.taking("taken")
	_, err = k.Take(ctx, taking)
	short("take", err)
	_, err = again().Take(ctx, taking)
	short("take again", err)
	takes, err := k.store.Take(ctx, []driver.TakeRequest{k.taking("another"), k.taking("renewed")})
	short("take of two", err)
	if takes[0].Outcome != driver.OutcomeUnknown || takes[1].Outcome != driver.OutcomeHeld {
		t.Errorf("takes without the replica: outcomes %d and %d, want none and a refusal", takes[0].Outcome, takes[1].Outcome)
	}
	stale := held
	stale.Fence--
	rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(renewed), k.renewal(stale)})
	short("renew", err)
	if rs[0].Outcome != driver.OutcomeUnknown || rs[1].Outcome != driver.OutcomeNotOwner {
		t.Errorf("renewals without the replica: outcomes %d and %d, want none and a refusal", rs[0].Outcome, rs[1].Outcome)
	}
	rs, err = k.Renew(ctx, []driver.RenewRequest{k.renewal(renewed)})
	short("one renewal", err)
	if rs[0].Outcome != driver.OutcomeUnknown {
		t.Errorf("one renewal without the replica has outcome %d", rs[0].Outcome)
	}
	r, err = k.Acquire(ctx, driver.AcquireRequest{Key: "renewed", Owner: "b", Nonce: k.nonce(), TTL: long, Retain: long})
	wantOutcome(t, "acquire of a held key", r, err, driver.OutcomeHeld)
	rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(renewed)})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)

	replica.Cont()
	k.replicaTimeout = patience
	r, err = k.Acquire(ctx, acquire)
	wantOutcome(t, "acquire again", r, err, driver.OutcomeOK)
	r, err = k.Resume(ctx, resume)
	wantOutcome(t, "resume again", r, err, driver.OutcomeOK)
}

// The scripts may be unknown to the server in the middle of it all.
func TestAcknowledgedCallsBringTheirScripts(t *testing.T) {
	master, _ := withReplica(t)
	k := acknowledged(t, patient(t, master))
	ctx := context.Background()
	flush := func() {
		t.Helper()
		if err := k.rdb.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var renewals []driver.RenewRequest
	for i := range 5 {
		flush()
		renewals = append(renewals, k.renewal(k.acquire(strconv.Itoa(i))))
	}
	flush()
	rs, err := k.Renew(ctx, renewals)
	wantOutcomes(t, "renew", rs, err, len(renewals), driver.OutcomeOK)
}

// A node of a cluster that does not know the host of another leaves it out.
func TestCallsAreSentOnToTheSameHost(t *testing.T) {
	master, _ := withReplica(t)
	rdb := redis.NewClient(&redis.Options{Addr: master.Addr(), ReadTimeout: 2 * patience,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != master.Addr() { // ":port" would do on this machine
				return nil, fmt.Errorf("dialed %q", addr)
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}})
	t.Cleanup(func() { rdb.Close() })
	k := acknowledged(t, rdb)
	ctx := context.Background()
	held := k.acquire("a")
	cmd := newCall(inspectScript, k.name(held.Key)).cmd(ctx)
	_, port, _ := strings.Cut(master.Addr(), ":")
	as, short := k.follow(ctx, k.ops.(*redis.Client), ":"+port, inspectScript, []*redis.Cmd{cmd})
	if short != nil || as[0].err != nil {
		t.Fatalf("%v, %v", short, as[0].err)
	}
	if rec, _, err := parseRecord(held.Key, as[0].val); err != nil || rec.Fence != held.Fence {
		t.Errorf("%+v, %v", rec, err)
	}
}

// A push is sent before any replica has the grant: the waiter has to ask.
func TestPushesAreAskedFor(t *testing.T) {
	master, replica := withReplica(t)
	store := must(newStore(patient(t, master), &Config{Replicas: 1}))
	beForgiving(store)
	locks, err := joblock.New(store, &joblock.Config{Poll: time.Minute, CallTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(context.Background())
	ctx := context.Background()
	first, err := locks.TryAcquire(ctx, "key")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		lock, err := locks.Acquire(ctx, "key")
		if err == nil {
			err = lock.Release(ctx)
		}
		got <- err
	}()
	for st, err := testkit.One(locks.Status(ctx, "key")); st.Waiters == 0; st, err = testkit.One(locks.Status(ctx, "key")) {
		if err != nil {
			t.Fatal(err)
		}
	}
	replica.Stop()
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		t.Fatalf("the waiter returned %v while no replica had its grant", err)
	case <-time.After(time.Second): // long enough for a push, which takes a fraction of a millisecond
	}
	replica.Cont()
	if err := <-got; err != nil {
		t.Errorf("the waiter returned %v", err)
	}
}

// failOver has eight goroutines take locks until the master is killed, promotes the
// replica, and counts the locks that were granted and that the replica does not have.
func failOver(t *testing.T, replicas int) (granted, lost int) {
	master, replica := withReplica(t)
	rdb := redis.NewClient(&redis.Options{Addr: master.Addr(), MaxRetries: -1, DialerRetries: 1, ReadTimeout: 2 * patience})
	defer rdb.Close()
	s := must(newStore(rdb, &Config{Replicas: replicas}))
	s.replicaTimeout = patience
	defer s.Close()
	ctx := context.Background()
	const goroutines, before = 8, 200
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		locks = make(map[string]driver.Term)
		ready = make(chan struct{})
	)
	for g := range goroutines {
		wg.Go(func() {
			for i := 0; ; i++ {
				key, owner := fmt.Sprintf("%d-%d", g, i), fmt.Sprintf("owner %d-%d", g, i)
				r, err := s.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: owner, Nonce: key, TTL: long, Retain: long})
				if err != nil {
					return // the master is gone
				}
				mu.Lock()
				locks[key] = driver.Term{Key: key, Owner: owner, Fence: r.Fence}
				if len(locks) == before {
					close(ready)
				}
				mu.Unlock()
			}
		})
	}
	<-ready
	master.Kill()
	wg.Wait()

	admin := replica.Client(t)
	if err := admin.Do(ctx, "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	after := must(newStore(admin, nil))
	defer after.Close()
	for key, term := range locks {
		recs, err := after.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		if recs[0].State != driver.StateHeld || recs[0].Owner != term.Owner || recs[0].Fence != term.Fence {
			lost++
		}
	}
	return len(locks), lost
}

// With Replicas no lock that was granted is lost in a fail-over to a replica that
// has it; without, those of the last moment may be. JOBLOCK_FAILOVERS sets how
// many are induced.
func TestFailoverLosesNoAcknowledgedLock(t *testing.T) {
	times := 5
	if n := os.Getenv("JOBLOCK_FAILOVERS"); n != "" {
		var err error
		if times, err = strconv.Atoi(n); err != nil {
			t.Fatalf("JOBLOCK_FAILOVERS is %q: %v", n, err)
		}
	}
	for _, replicas := range []int{1, 0} {
		granted, lost, hit := 0, 0, 0
		for range times {
			g, l := failOver(t, replicas)
			granted, lost = granted+g, lost+l
			if l > 0 {
				hit++
			}
		}
		t.Logf("Replicas %d: %d fail-overs, %d locks granted, %d of them lost, in %d of the fail-overs", replicas, times, granted, lost, hit)
		if replicas > 0 && lost > 0 {
			t.Errorf("%d acknowledged locks were lost", lost)
		}
	}
}

func TestCheckFindsTooFewReplicas(t *testing.T) {
	master, replica := withReplica(t)
	for want, replicas := range map[bool]int{false: 1, true: 2} {
		s := must(newStore(patient(t, master), &Config{Replicas: replicas}))
		beForgiving(s)
		if want {
			s.replicaTimeout = 50 * time.Millisecond
		}
		defer s.Close()
		r, err := Check(context.Background(), s)
		if err != nil {
			t.Fatalf("Check with Replicas %d: %v", replicas, err)
		}
		if (r.Err() != nil) != want {
			t.Errorf("Check with Replicas %d found %v", replicas, r)
		}
		if want {
			wantFinding(t, r, Fault, "replicas")
		} else if replica.Pid() == 0 || len(toChange(r)) == 0 {
			t.Errorf("Check with Replicas %d found nothing", replicas)
		}
	}
}

// Following a redirection reads the options of a node's client while that client makes connections. The race
// detector reports it if both touch the same option.
func TestFollowWhileTheNodeIsConnecting(t *testing.T) {
	srv := redistest.Start(t)
	s := must(newStore(srv.Client(t), nil))
	defer s.Close()
	for range 20 {
		node := redis.NewClient(&redis.Options{Addr: srv.Addr()})
		var connecting sync.WaitGroup
		for range 2 {
			connecting.Go(func() { node.Ping(t.Context()) })
		}
		cmds := []*redis.Cmd{newCall(inspectScript, s.name("key")).cmd(t.Context())}
		_, _ = s.follow(t.Context(), node, srv.Addr(), inspectScript, cmds) // to itself
		connecting.Wait()
		node.Close()
	}
}
