//go:build servers

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// Locks are used in every way while their slot, in which their part of the index is as
// well, goes from master to master, at each stage of a move, by callers that do not
// know of it. The index goes before the records, or after them.
func TestLocksMoveWithTheirSlots(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	k := newKit(t, cluster.Client(t))
	moveLocks(t, cluster, k, func() *store { return must(newStore(k.rdb, nil)) })
	t.Run("one entry", func(t *testing.T) { moveOneEntry(t, cluster, k) })
}

// moveOneEntry has a part of the index with one entry, which is written again, claimed
// and put back while the slot migrates. If a script emptied the index on the way, the
// server would refuse to fill it again, and the entry would be lost.
func moveOneEntry(t *testing.T, cluster *redistest.Cluster, k *kit) {
	ctx := t.Context()
	term := k.acquire("one entry")
	index := k.index(k.part(term.Key))
	req := k.park(term)
	req.Grace = 0
	r, err := k.Park(ctx, req)
	wantOutcome(t, "park", r, err, driver.OutcomeOK)
	listed := func(when string) {
		t.Helper()
		if got := k.rdb.ZRange(ctx, index, 0, -1).Val(); len(got) != 1 || got[0] != "q/1\none entry" {
			t.Errorf("%s the index has %q", when, got)
		}
	}
	again := func(when string, refused int) {
		t.Helper()
		r, err := k.Resume(ctx, driver.ResumeRequest{Key: term.Key, Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1"})
		wantOutcome(t, "resume", r, err, driver.OutcomeOK)
		term.Fence = r.Fence
		req := k.park(term)
		req.Grace = 0
		before := errorStats(t, cluster)["TRYAGAIN"]
		r, err = k.Park(ctx, req)
		wantOutcome(t, "park again", r, err, driver.OutcomeOK)
		if n := errorStats(t, cluster)["TRYAGAIN"] - before; n != refused {
			t.Errorf("%s a Park got TRYAGAIN %d times, want %d", when, n, refused)
		}
		listed(when)
		due, err := dueOf(ctx, k.store, 10, time.Microsecond)
		if err != nil || len(due) != 1 {
			t.Errorf("%s %d are due, %v", when, len(due), err)
		}
		listed(when)
	}
	slot := cluster.Slot(index)
	for _, first := range []string{index, k.name(term.Key)} {
		move := cluster.BeginMove(slot, (cluster.Server(slot)+1)%3)
		again("at the old master", 0)
		move.Move(first)
		again("with "+first+" at the new master", 1)
		move.Move(move.Keys()...)
		again("at the new master", 0)
		move.Finish()
	}
	rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: term.Key, Owner: term.Owner})})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	move := cluster.BeginMove(slot, (cluster.Server(slot)+1)%3)
	due, err := dueOf(ctx, k.store, 10, long)
	if err == nil {
		err = removeFrom(ctx, k.store, due)
	}
	if err != nil || k.rdb.Exists(ctx, index).Val() != 0 {
		t.Errorf("the last entry is not removed: %v", err)
	}
	move.Finish()
}

// moveLocks is the test for stores such as k's, of which open makes more.
func moveLocks(t *testing.T, cluster *redistest.Cluster, k *kit, open func() *store) {
	before := errorStats(t, cluster)
	m := newMovedLocks(t, cluster, k)
	m.open = open
	m.stage("before")
	stop := m.crowd()
	for turn := range 6 { // twice, and back home
		m.move(cluster.Slot(k.index(0)), turn%2 == 0)
	}
	stop()
	m.stage("after")
	m.end()

	got := errorStats(t, cluster)
	t.Logf("error replies: before %v, after %v", before, got)
	for _, answer := range []string{"ASK", "MOVED"} {
		if got[answer] == before[answer] {
			t.Errorf("no call was answered %s: this proves nothing", answer)
		}
	}
	// What scripts with one key are for. Those of the test are the two-key probes.
	if n := got["TRYAGAIN"] - before["TRYAGAIN"]; n <= m.probes {
		t.Errorf("%d calls were answered TRYAGAIN, of which %d are the test's own: this proves nothing", n, m.probes)
	}
}

// errorStats counts error replies by their first word, over all nodes.
func errorStats(t *testing.T, cluster *redistest.Cluster) map[string]int {
	t.Helper()
	sum := make(map[string]int)
	for _, addr := range cluster.Addrs() {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		text, err := rdb.Info(context.Background(), "errorstats").Result()
		if err := errors.Join(err, rdb.Close()); err != nil {
			t.Fatal(err)
		}
		for name, val := range parseInfo(text) {
			if kind, ok := strings.CutPrefix(name, "errorstat_"); ok {
				n, _ := strconv.Atoi(strings.TrimPrefix(val, "count="))
				sum[kind] += n
			}
		}
	}
	return sum
}

// movedLocks are locks in one slot, but for those elsewhere, with what is known of
// them.
type movedLocks struct {
	*kit
	t       *testing.T
	cluster *redistest.Cluster
	open    func() *store // for others who use the same locks
	probes  int           // calls with two keys that were answered by TRYAGAIN
	stages  int
	asks    bool // waiters may have to ask for their grants

	held   []driver.Term          // here and elsewhere
	parked map[string]driver.Term // by key, each for the job of its name
	line   driver.Term            // the holder of the key that is waited for
	queue  []string               // nonces of those who wait for it
	pushed chan string

	turn  driver.Term // of the job that has the key of a sequence
	whose string      // the job
	jobs  []string    // that wait for it
}

// name is a key that begins with "moved " and s. All such keys are in one part.
func (m *movedLocks) name(s string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("moved ", s, " ", i); m.part(key) == 0 {
			return key
		}
	}
}

func (m *movedLocks) job(key string) string { return "q/" + key }

func newMovedLocks(t *testing.T, cluster *redistest.Cluster, k *kit) *movedLocks {
	m := &movedLocks{kit: k, t: t, cluster: cluster, parked: make(map[string]driver.Term), pushed: make(chan string, 100)}
	for i := range 6 {
		m.held = append(m.held, k.acquire(m.name(fmt.Sprint("held-", i))), k.acquire(fmt.Sprint("elsewhere-", i)))
		m.park(m.name(fmt.Sprint("parked-", i)))
	}
	stop, err := k.Subscribe(context.Background(), "inbox", func(p driver.Push) { m.pushed <- p.Nonce })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	m.line = k.acquire(m.name("line"))
	m.turn.Key, m.whose = m.name("turns"), "q/turn-0"
	r, err := k.Take(context.Background(), m.turnOf(m.whose))
	wantOutcome(t, "take", r, err, driver.OutcomeOK)
	m.turn = driver.Term{Key: m.turn.Key, Owner: m.turnOf(m.whose).Owner, Fence: r.Fence}
	for range 3 {
		m.join()
		m.lineUp()
	}
	return m
}

// turnOf returns the Take with which a job waits for its turn.
func (m *movedLocks) turnOf(job string) driver.TakeRequest {
	return driver.TakeRequest{
		Key: m.turn.Key, Owner: "owner of " + job, Nonce: "place of " + job, Job: job, Reserve: long, Retain: long, Patience: long,
	}
}

// lineUp puts two jobs at the end of the line of jobs, and takes the first of them out of it.
func (m *movedLocks) lineUp() {
	m.t.Helper()
	ctx := context.Background()
	for range 2 {
		job := "q/turn-" + m.nonce()
		r, err := m.Take(ctx, m.turnOf(job))
		wantOutcome(m.t, "line up", r, err, driver.OutcomeHeld)
		if r.Ahead < len(m.jobs) || !r.Since.Equal(r.Now) {
			m.t.Errorf("a new place has %d before it since %v, want at least %d since %v", r.Ahead, r.Since, len(m.jobs), r.Now)
		}
		m.jobs = append(m.jobs, job)
	}
	leaves := m.jobs[len(m.jobs)-2]
	rs, err := m.store.Release(ctx, []driver.ReleaseRequest{{
		Term:  driver.Term{Key: m.turn.Key, Grant: m.turnOf(leaves).Nonce},
		Nonce: m.nonce(), Kind: driver.ReleaseForcedIdle, Job: leaves, Retain: long,
	}})
	wantOutcomes(m.t, "leave", rs, err, 1, driver.OutcomeOK)
	m.jobs = slices.Delete(m.jobs, len(m.jobs)-2, len(m.jobs)-1)
}

// nextJob ends the job that has its turn; the first in the line of jobs has it then.
func (m *movedLocks) nextJob() {
	m.t.Helper()
	ctx := context.Background()
	rs, err := m.Release(ctx, []driver.ReleaseRequest{m.release(m.turn)})
	wantOutcomes(m.t, "release to the next job", rs, err, 1, driver.OutcomeOK)
	next := ""
	if len(m.jobs) > 0 {
		next = m.jobs[0]
	}
	if got := rs[0].Next; got != next && !(m.asks && got == "") { // a call that was sent again does not tell
		m.t.Fatalf("%q is next, want %q", got, next)
	}
	if next == "" {
		return
	}
	r, err := m.Take(ctx, m.turnOf(next))
	wantOutcome(m.t, "take by the next job", r, err, driver.OutcomeOK)
	if r.Fence <= m.turn.Fence {
		m.t.Errorf("%s has fence %d after %d", next, r.Fence, m.turn.Fence)
	}
	m.turn.Owner, m.turn.Fence, m.whose, m.jobs = m.turnOf(next).Owner, r.Fence, next, m.jobs[1:]
}

// keepTurns is what the keeper does for the jobs of the line, which are due. Those that are not in line any more are
// removed from the index.
func (m *movedLocks) keepTurns(due []driver.Entry) {
	m.t.Helper()
	ctx := context.Background()
	wants := map[string]driver.Outcome{m.whose: driver.OutcomeOK}
	for _, job := range m.jobs {
		wants[job] = driver.OutcomeHeld
	}
	var over []driver.Entry
	for _, e := range due {
		want, there := wants[e.Job]
		if delete(wants, e.Job); !there {
			over = append(over, e)
			continue
		}
		rs, err := m.Reserve(ctx, []driver.ReserveRequest{{Key: e.Key, Job: e.Job, Nonce: m.turnOf(e.Job).Nonce, Reserve: long, Retain: long}})
		wantOutcomes(m.t, "keep the place of "+e.Job, rs, err, 1, want)
	}
	if len(wants) > 0 {
		m.t.Errorf("jobs are in line but not in the index: %v", wants)
	}
	if err := removeFrom(ctx, m.store, over); err != nil {
		m.t.Fatal(err)
	}
}

// park takes a key and parks it for its job.
func (m *movedLocks) park(key string) {
	m.t.Helper()
	req := m.kit.park(m.acquire(key))
	req.Job, req.Grace = m.job(key), 0
	r, err := m.Park(context.Background(), req)
	wantOutcome(m.t, "park", r, err, driver.OutcomeOK)
	m.parked[key] = driver.Term{Key: key, Owner: req.Owner, Fence: r.Fence}
}

// join puts another waiter at the end of the line.
func (m *movedLocks) join() {
	m.t.Helper()
	nonce := m.nonce()
	r, err := m.Acquire(context.Background(), m.waiting(nonce))
	wantOutcome(m.t, "join the line", r, err, driver.OutcomeHeld)
	if r.Ahead != len(m.queue) {
		m.t.Errorf("%d are ahead in the line, want %d", r.Ahead, len(m.queue))
	}
	m.queue = append(m.queue, nonce)
}

func (m *movedLocks) waiting(nonce string) driver.AcquireRequest {
	return driver.AcquireRequest{
		Key: m.line.Key, Owner: nonce, Nonce: nonce, TTL: long, Retain: long, Inbox: "inbox", Patience: long,
	}
}

// next frees the key that is waited for; the first in line gets it, by a push or by asking.
func (m *movedLocks) next() {
	m.t.Helper()
	ctx := context.Background()
	rs, err := m.Release(ctx, []driver.ReleaseRequest{m.release(m.line)})
	wantOutcomes(m.t, "release to the line", rs, err, 1, driver.OutcomeOK)
	var nonce string
	if m.asks {
		nonce = m.queue[0]
		await(m.t, "the grant to the first in line", func() bool {
			r, err := m.Acquire(ctx, m.waiting(nonce))
			return err == nil && r.Outcome == driver.OutcomeOK
		})
	} else {
		select {
		case nonce = <-m.pushed:
		case <-time.After(time.Minute):
			m.t.Fatal("the first in line was not notified")
		}
	}
	recs, err := m.Inspect(ctx, driver.InspectRequest{Keys: []string{m.line.Key}})
	if err != nil || nonce != m.queue[0] || recs[0].Owner != nonce || recs[0].Fence <= m.line.Fence {
		m.t.Fatalf("granted to %s, the record is %+v, %v; want it of %s, with a fence after %d", nonce, recs, err, m.queue[0], m.line.Fence)
	}
	m.line = driver.Term{Key: m.line.Key, Owner: nonce, Fence: recs[0].Fence}
	m.queue = m.queue[1:]
}

// move moves a slot to the next master, with the index before or after the records.
func (m *movedLocks) move(slot int, indexFirst bool) {
	m.t.Helper()
	move := m.cluster.BeginMove(slot, (m.cluster.Server(slot)+1)%3)
	what := fmt.Sprintf("slot %d from node %d: ", slot, move.From())
	m.stage(what + "begun")
	keys := move.Keys() // the name of the index is the shortest
	if !indexFirst {
		slices.Reverse(keys)
	}
	move.Move(keys[:len(keys)/2]...)
	m.probe(move, keys)
	m.stage(what + "half")
	move.Move(keys...)
	m.stage(what + "all but announced")
	move.Finish()
	m.stage(what + "done")
}

// probe makes sure that a script with two keys would have failed now.
func (m *movedLocks) probe(move *redistest.SlotMove, keys []string) {
	m.t.Helper()
	if len(keys) < 2 {
		return // the index is by itself
	}
	rdb := redis.NewClient(&redis.Options{Addr: m.cluster.Addrs()[move.From()], MaxRetries: -1})
	defer rdb.Close()
	err := rdb.Exists(context.Background(), keys[0], keys[len(keys)-1]).Err()
	switch {
	case redis.IsTryAgainError(err):
		m.probes++
	default:
		if _, ask := redis.IsAskError(err); !ask { // Redis 6.2 says so there
			m.t.Errorf("keys on both sides at once: %v", err)
		}
	}
}

// stage does a bit of everything, and looks whether all is as it must be. What fails
// is about the stage that was logged last.
func (m *movedLocks) stage(name string) {
	m.t.Helper()
	m.t.Log(name)
	m.stages++
	m.everything(fmt.Sprint(m.stages))
}

func (m *movedLocks) everything(stage string) {
	ctx := context.Background()
	var renewals []driver.RenewRequest
	for _, term := range m.held {
		renewals = append(renewals, m.renewal(term))
	}
	rs, err := m.Renew(ctx, renewals)
	wantOutcomes(m.t, "renew", rs, err, len(m.held), driver.OutcomeOK)
	for i, r := range rs {
		if r.Fence != m.held[i].Fence {
			m.t.Errorf("%s has fence %d, want %d", m.held[i].Key, r.Fence, m.held[i].Fence)
		}
	}

	m.next()
	m.join()
	m.nextJob()
	m.lineUp()

	key := m.name("new-" + stage)
	term := m.acquire(key)
	r, err := m.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "another", Nonce: m.nonce(), TTL: long, Retain: long})
	wantOutcome(m.t, "acquire what is held", r, err, driver.OutcomeHeld)
	rs, err = m.Release(ctx, []driver.ReleaseRequest{m.release(term)})
	wantOutcomes(m.t, "release", rs, err, 1, driver.OutcomeOK)
	if again := m.acquire(key); again.Fence <= term.Fence {
		m.t.Errorf("fence %d after %d", again.Fence, term.Fence)
	} else {
		rs, err = m.Release(ctx, []driver.ReleaseRequest{m.release(again)})
		wantOutcomes(m.t, "release", rs, err, 1, driver.OutcomeOK)
	}

	m.parkedJobs(stage)
	seen := listAll(m.t, m.kit, driver.ListRequest{Prefix: "moved "})
	for _, key := range append(slices.Collect(maps.Keys(m.parked)), m.held[0].Key, m.line.Key) {
		if seen[key] != 1 {
			m.t.Errorf("%s was listed %d times", key, seen[key])
		}
	}

	var keys []string
	for _, term := range m.held {
		keys = append(keys, term.Key)
	}
	recs, err := m.Inspect(ctx, driver.InspectRequest{Keys: append(keys, slices.Collect(maps.Keys(m.parked))...)})
	if err != nil {
		m.t.Fatalf("inspect: %v", err)
	}
	for i, rec := range recs {
		want := driver.StateHeld
		if i >= len(keys) {
			want = driver.StateParked
		}
		if rec.State != want {
			m.t.Errorf("%s is %s, want %s", rec.Key, rec.State, want)
		}
	}
}

// parkedJobs has one job more parked and one done, and the keeper look at all.
func (m *movedLocks) parkedJobs(stage string) {
	ctx := context.Background()
	key := slices.Min(slices.Collect(maps.Keys(m.parked)))
	was := m.parked[key]
	m.park(m.name("parked-at-" + stage))
	r, err := m.Resume(ctx, driver.ResumeRequest{Key: key, Owner: was.Owner, Nonce: m.nonce(), TTL: long, Retain: long, Job: m.job(key)})
	wantOutcome(m.t, "resume", r, err, driver.OutcomeOK)
	if r.Fence <= was.Fence || r.Recovered {
		m.t.Errorf("resumed with fence %d after %d, recovered: %v", r.Fence, was.Fence, r.Recovered)
	}
	was.Fence = r.Fence
	rs, err := m.Release(ctx, []driver.ReleaseRequest{m.release(was)})
	wantOutcomes(m.t, "release the job's", rs, err, 1, driver.OutcomeOK)
	delete(m.parked, key)

	due, err := dueOf(ctx, m.store, 1000, time.Microsecond)
	if err != nil {
		m.t.Fatal(err)
	}
	ofTurns := func(e driver.Entry) bool { return e.Key == m.turn.Key }
	m.keepTurns(slices.DeleteFunc(slices.Clone(due), func(e driver.Entry) bool { return !ofTurns(e) }))
	due = slices.DeleteFunc(due, ofTurns)
	done := slices.IndexFunc(due, func(e driver.Entry) bool { return e.Key == key })
	if done < 0 || len(due) != len(m.parked)+1 {
		m.t.Fatalf("%d are due, want %d and %s, which is done", len(due), len(m.parked), key)
	}
	if err := removeFrom(ctx, m.store, due[done:done+1]); err != nil {
		m.t.Fatal(err)
	}
	var keep []driver.ReserveRequest
	for _, e := range slices.Delete(due, done, done+1) {
		keep = append(keep, driver.ReserveRequest{Key: e.Key, Job: e.Job, Reserve: long, Retain: long})
	}
	rs, err = m.Reserve(ctx, keep)
	wantOutcomes(m.t, "reserve", rs, err, len(m.parked), driver.OutcomeOK)
}

// end frees everything; then nothing is left.
func (m *movedLocks) end() {
	m.t.Helper()
	ctx := context.Background()
	for len(m.queue) > 0 {
		m.next()
	}
	for range len(m.jobs) + 1 {
		m.nextJob()
	}
	var last []driver.ReleaseRequest
	for _, term := range append(slices.Collect(maps.Values(m.parked)), append(m.held, m.line)...) {
		last = append(last, m.release(term))
	}
	rs, err := m.Release(ctx, last)
	wantOutcomes(m.t, "release all", rs, err, len(last), driver.OutcomeOK)
	due, err := dueOf(ctx, m.store, 1000, time.Microsecond)
	for _, e := range due {
		if _, ok := m.parked[e.Key]; !ok && e.Key != m.turn.Key {
			m.t.Errorf("%s is due", e.Key)
		}
	}
	if err != nil || len(due) < len(m.parked) {
		m.t.Errorf("%d are due, want at least %d, %v", len(due), len(m.parked), err)
	}
	if err := removeFrom(ctx, m.store, due); err != nil {
		m.t.Error(err)
	}
	if n := m.rdb.Exists(ctx, m.index(0)).Val(); n != 0 {
		m.t.Error("an entry of the index is left")
	}
	recs, err := m.Inspect(ctx, driver.InspectRequest{Keys: slices.Collect(maps.Keys(listAll(m.t, m.kit, driver.ListRequest{})))})
	if err != nil || len(recs) < len(last) {
		m.t.Errorf("%d records, %v", len(recs), err)
	}
	for _, rec := range recs {
		if rec.State != driver.StateFree || rec.Waiters != 0 {
			m.t.Errorf("%s is %s and has %d waiters", rec.Key, rec.State, rec.Waiters)
		}
	}
}

// A WAIT has to follow each call to the node that it was sent on to.
func TestAcknowledgedLocksMoveWithTheirSlots(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1, "--cluster-node-timeout", "15000") // a fail-over would be another test
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: 2 * patience})
	t.Cleanup(func() { _ = rdb.Close() })
	open := func() *store {
		s := must(newStore(rdb, &Config{Replicas: 1}))
		beForgiving(s)
		return s
	}
	k := &kit{store: open(), t: t, rdb: rdb}
	t.Cleanup(func() { _ = k.Close() })
	moveLocks(t, cluster, k, open)
}
