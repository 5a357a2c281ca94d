//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// What an operator writes in a ledger, with the key or the limit.
const (
	pausing  verb = "pausing"  // is about to pause the key
	paused   verb = "paused"   // has paused the key
	resuming verb = "resuming" // is about to resume the key
	setLimit verb = "limit"    // has set the limit to the number of the job
)

// The named limit of the sequences in TestNamedLimitSurvivesKilledProcesses, and the largest value that operators set.
const (
	planLimit = "plan"
	planMost  = 3
)

func init() {
	roles["pauser"] = func() int { return playWorker(func() error { return runOperator(pauseAndResume) }) }
	roles["planner"] = func() int { return playWorker(func() error { return runOperator(changeLimit) }) }
}

// An operator changes the controls, and writes that in the ledger.
type operator struct {
	ctx     context.Context
	locks   *core.Locker
	process string
	book    *ledger
}

// runOperator is a process that changes the controls again and again. Whatever the process before it had set when it was killed
// stays until this process changes it.
func runOperator(act func(o *operator) error) error {
	r, book, err := lineRoleOf()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS")})
	defer rdb.Close()
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	o := &operator{ctx, (*core.Locker)(locks), r.Process, book}
	for ctx.Err() == nil {
		if err := act(o); err != nil && !joblock.Retryable(err) {
			return err
		}
	}
	return errors.Join(locks.Close(context.Background()), book.close())
}

func (o *operator) change(f func(set *controls.Set, fence int64, now time.Time)) error {
	return o.locks.ChangeControls(context.WithoutCancel(o.ctx), "alice", func(set *controls.Set, fence int64, now time.Time) error {
		f(set, fence, now)
		return nil
	})
}

func (o *operator) note(what verb, name string, n int) error {
	return o.book.write(ledgerEntry{verb: what, process: o.process, key: name, job: n})
}

func (o *operator) pauseFor(d time.Duration) {
	select {
	case <-time.After(d):
	case <-o.ctx.Done():
	}
}

// pauseAndResume pauses all keys below "tenant" for some seconds.
func pauseAndResume(o *operator) error {
	if err := o.note(resuming, "tenant", 0); err != nil {
		return err
	}
	if err := o.change(func(set *controls.Set, _ int64, now time.Time) {
		if p := set.Find("tenant"); p != nil {
			p.Resumed = now
		}
	}); err != nil {
		return err
	}
	o.pauseFor(jitter.N(3 * time.Second))
	if o.ctx.Err() != nil {
		return nil
	}
	if err := o.note(pausing, "tenant", 0); err != nil {
		return err
	}
	if err := o.change(func(set *controls.Set, fence int64, now time.Time) {
		set.Remove("tenant")
		set.Pauses = append(set.Pauses, controls.Pause{ID: fence, Key: "tenant", By: "alice", Since: now})
	}); err != nil {
		return err
	}
	if err := o.note(paused, "tenant", 0); err != nil {
		return err
	}
	o.pauseFor(2*time.Second + jitter.N(2*time.Second))
	return nil
}

// changeLimit sets the named limit of the sequences.
func changeLimit(o *operator) error {
	n := 1 + int(jitter.N(planMost))
	if err := o.change(func(set *controls.Set, _ int64, now time.Time) {
		set.Clear(planLimit)
		set.Limits = append(set.Limits, controls.Limit{Name: planLimit, Value: n, By: "alice", Since: now})
	}); err != nil {
		return err
	}
	if err := o.note(setLimit, planLimit, n); err != nil {
		return err
	}
	o.pauseFor(jitter.N(3 * time.Second))
	return nil
}

// linesUnderKills enqueues so many jobs of each key a second, for JOBLOCK_KILLS, while the processes of the pool are killed one
// after the other, and waits until all are done. item makes the n-th job of a key, a task without a lock if How is nil. It returns
// the ledger and the number of jobs of each key.
func (r *lineRig) linesUnderKills(t *testing.T, pool *linePool, keys []string, perSecond int, item func(key string, n int) handoff.Item) ([]ledgerEntry, map[string]int) {
	t.Helper()
	span, counts := killsFor(t), map[string]int{}
	fed, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(fed)
		for {
			var items []handoff.Item
			for _, key := range keys {
				i := item(key, counts[key])
				counts[key]++
				if i.How != nil {
					items = append(items, i)
				} else if _, err := r.client.Enqueue(i.Task); err != nil {
					t.Errorf("enqueue: %v", err)
				}
			}
			r.enqueue(t, items)
			select {
			case <-time.After(time.Second / time.Duration(perSecond)):
			case <-stop:
				return
			}
		}
	}()
	for begin := time.Now(); time.Since(begin) < span; {
		time.Sleep(300*time.Millisecond + jitter.N(600*time.Millisecond))
		pool.kill(t, jitter.Perm(len(pool.procs))[0])
	}
	close(stop)
	<-fed
	last := time.Now()
	r.untilAllAreDone(t, 10*time.Minute)
	pool.stop(t)
	await(t, "no lock to be left", func() bool { return len(left(t, r.locks)) == 0 })
	jobs := 0
	for _, n := range counts {
		jobs += n
	}
	t.Logf("%d kills; %d jobs of %d keys, all done %s after the last kill", pool.kills, jobs, len(keys), time.Since(last).Round(100*time.Millisecond))
	return readLedger(t, r.path), counts
}

func keysOf(format string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf(format, i))
	}
	return keys
}

func without(entries []ledgerEntry, verbs ...verb) []ledgerEntry {
	return slices.DeleteFunc(slices.Clone(entries), func(e ledgerEntry) bool { return slices.Contains(verbs, e.verb) })
}

// wantVerdict judges the entries of jobs by the rules of sequences, but for those that do not hold for these jobs.
func wantVerdict(t *testing.T, what string, entries []ledgerEntry, counts map[string]int, butFor ...string) {
	t.Helper()
	v := judge(without(entries, pausing, paused, resuming, setLimit, admitted, takenBack, applied), counts)
	v.complaints = slices.DeleteFunc(v.complaints, func(c complaint) bool { return slices.Contains(butFor, c.rule) })
	t.Logf("%s: %s", what, v)
	if len(v.complaints) > 0 {
		t.Errorf("%s: broken are the rules %q", what, v.rules())
	}
}

// ofKeys returns the entries of some keys, and all kills.
func ofKeys(entries []ledgerEntry, prefix string) []ledgerEntry {
	return slices.DeleteFunc(slices.Clone(entries), func(e ledgerEntry) bool {
		return e.verb != killing && !strings.HasPrefix(e.key, prefix)
	})
}

// Jobs of sequences, and tasks without locks, wait for a rate, while their workers are killed. By the ledger no second has more
// admitted starts of a key than the rate, the sequences stay in order, no job is lost, and none is charged but for a killed
// worker.
func TestRateSurvivesKilledProcesses(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	killsFor(t)
	r := newLineRig(t, true)
	pool := r.pool(t, lineRole{Work: 20 * time.Millisecond, Short: true, Bare: true, Rate: rateN}, 4)
	keys := append(keysOf("seq-%04d", 10), keysOf("free-%04d", 10)...)
	entries, counts := r.linesUnderKills(t, pool, keys, rateN, func(key string, n int) handoff.Item {
		item := handoff.Item{Task: lineTask(key, n), How: handoff.Sequence{Key: key}}
		if strings.HasPrefix(key, "free") {
			item.How = nil
		}
		return item
	})
	free := map[string]int{}
	for key, n := range counts {
		if strings.HasPrefix(key, "free") {
			free[key] = n
			delete(counts, key)
		}
	}
	wantVerdict(t, "sequences", ofKeys(entries, "seq"), counts)
	wantVerdict(t, "other jobs", ofKeys(entries, "free"), free, ruleOrder, ruleSingle, ruleFence)
	most := mostIn(admittedAt(entries), time.Second)
	t.Logf("at most %d starts of a key were admitted within a second, and at most %d handlers began", most, mostIn(startedAt(entries), time.Second))
	if most > rateN {
		t.Errorf("%d starts of a key were admitted within a second, want at most %d", most, rateN)
	}
}

// Tenants are paused and resumed all the time by an operator's process, which is killed, as the workers are. By the ledger no job
// is lost, out of order or charged, but for a killed worker.
func TestPauseSurvivesKilledProcesses(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	killsFor(t)
	r := newLineRig(t, true)
	pool := r.pool(t, lineRole{Work: 20 * time.Millisecond, Short: true}, 3, "pauser")
	entries, counts := r.linesUnderKills(t, pool, keysOf("tenant:%04d", 12), 1, func(key string, n int) handoff.Item {
		return handoff.Item{Task: lineTask(key, n), How: handoff.Sequence{Key: key}}
	})
	wantVerdict(t, "paused sequences", entries, counts)
	var since time.Time // of the pause in force
	var latest time.Duration
	pauses, during := 0, 0
	for _, e := range entries {
		switch {
		case e.verb == paused:
			since = e.at
			pauses++
		case e.verb == resuming || e.verb == pausing:
			since = time.Time{}
		case e.verb == started && !since.IsZero():
			during++
			latest = max(latest, e.at.Sub(since))
		}
	}
	t.Logf("%d pauses; %d jobs started after a pause was set, the latest %s after it", pauses, during, latest)
	if pauses == 0 {
		t.Error("nothing was paused")
	}
}

// The limit of sequences is changed all the time by an operator's process, which is killed, as the workers are. By the ledger no
// more jobs of a key run at a time than the largest value allows, and none is lost, or charged but for a killed worker.
func TestNamedLimitSurvivesKilledProcesses(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	killsFor(t)
	r := newLineRig(t, true)
	pool := r.pool(t, lineRole{Work: 200 * time.Millisecond, Short: true}, 3, "planner")
	entries, counts := r.linesUnderKills(t, pool, keysOf("tenant:%04d", 8), 3, func(key string, n int) handoff.Item {
		return handoff.Item{Task: lineTask(key, n), How: handoff.Sequence{Key: key, Limit: 2, LimitName: planLimit}}
	})
	wantVerdict(t, "sequences with a named limit", entries, counts, ruleOrder, ruleSingle, ruleFence)
	changes := 0
	for _, e := range entries {
		if e.verb == setLimit {
			changes++
		}
	}
	most := mostAtOnce(entries)
	t.Logf("the limit was set %d times; at most %d jobs of a key ran at a time", changes, most)
	if most > planMost || changes == 0 {
		t.Errorf("%d jobs of a key ran at a time, want at most %d", most, planMost)
	}
}

// mostAtOnce returns how many runs of a key there were at a time at most, but for those that lost their lock. A run of a killed
// process ends with its process.
func mostAtOnce(entries []ledgerEntry) (most int) {
	same := func(e ledgerEntry) ledgerEntry {
		return ledgerEntry{process: e.process, key: e.key, job: e.job, fence: e.fence}
	}
	ignored, killed, open := map[ledgerEntry]bool{}, map[string]bool{}, map[string][]ledgerEntry{}
	for _, e := range entries {
		if e.verb == lost {
			ignored[same(e)] = true
		}
	}
	for _, e := range entries {
		run := same(e)
		switch {
		case e.verb == killing:
			killed[e.process] = true
			for key, runs := range open {
				open[key] = slices.DeleteFunc(runs, func(other ledgerEntry) bool { return other.process == e.process })
			}
		case ignored[run] || killed[e.process]:
		case e.verb == started:
			open[e.key] = append(open[e.key], run)
			most = max(most, len(open[e.key]))
		case e.verb == done || e.verb == failed:
			open[e.key] = slices.DeleteFunc(open[e.key], func(other ledgerEntry) bool { return other == run })
		}
	}
	return most
}

// A tenant with many jobs is in line before twenty others, each of which enqueues a job a second, while the workers are killed. By the ledger all jobs ran in their order, none was lost, and none was charged but for a killed worker. The test logs
// how long the small tenants have waited.
func TestFairnessSurvivesKilledProcesses(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	span := killsFor(t)
	r := newLineRig(t, true)
	const large = "seq-large"
	many := int(span.Seconds() * 10)
	var first []handoff.Item
	for n := range many {
		first = append(first, handoff.Item{Task: lineTask(large, n), How: handoff.Sequence{Key: large}})
	}
	for part := range slices.Chunk(first, 1000) {
		r.enqueue(t, part)
	}
	pool := r.pool(t, lineRole{Work: 20 * time.Millisecond, Short: true}, 4)
	type asked struct {
		key  string
		job  int
		when time.Time
	}
	var small []asked
	entries, counts := r.linesUnderKills(t, pool, keysOf("seq-%04d", 20), 1, func(key string, n int) handoff.Item {
		small = append(small, asked{key, n, time.Now()})
		return handoff.Item{Task: lineTask(key, n), How: handoff.Sequence{Key: key}}
	})
	counts[large] = many
	wantVerdict(t, "sequences", entries, counts)
	ends := map[string]time.Time{}
	for _, e := range entries {
		if e.verb == done {
			if name := fmt.Sprint(e.key, " ", e.job); ends[name].IsZero() {
				ends[name] = e.at
			}
		}
	}
	var waits []time.Duration
	for _, a := range small {
		waits = append(waits, ends[fmt.Sprint(a.key, " ", a.job)].Sub(a.when))
	}
	slices.Sort(waits)
	t.Logf("%d jobs of small tenants, each done p50 %s, p99 %s, at the latest %s after its enqueue; the large tenant had %d jobs, and its last was done %s after the first of the others was enqueued",
		len(waits), waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1], many, ends[fmt.Sprint(large, " ", many-1)].Sub(small[0].when))
}
