package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// fakeAsynq is a database of asynq.
type fakeAsynq struct {
	mu     sync.Mutex
	tasks  map[string]*asynq.TaskInfo // by job
	queues map[string]*asynq.QueueInfo
	err    error // of all calls
	asked  int   // how often GetQueueInfo was called
}

func newAsynq() *fakeAsynq {
	return &fakeAsynq{tasks: make(map[string]*asynq.TaskInfo), queues: make(map[string]*asynq.QueueInfo)}
}

// set puts a task into the database.
func (f *fakeAsynq) set(info asynq.TaskInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tasks[envelope.Job(info.Queue, info.ID)] = &info
	if f.queues[info.Queue] == nil {
		f.queues[info.Queue] = &asynq.QueueInfo{Queue: info.Queue}
	}
}

func (f *fakeAsynq) Queues() (names []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for q := range f.queues {
		names = append(names, q)
	}
	return names, f.err
}

func (f *fakeAsynq) GetQueueInfo(queue string) (*asynq.QueueInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if q := f.queues[queue]; q != nil || f.err != nil {
		return q, f.err
	}
	return nil, asynq.ErrQueueNotFound
}

func (f *fakeAsynq) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch info := f.tasks[envelope.Job(queue, id)]; {
	case f.err != nil:
		return nil, f.err
	case f.queues[queue] == nil:
		return nil, asynq.ErrQueueNotFound
	case info == nil:
		return nil, asynq.ErrTaskNotFound
	default:
		return info, nil
	}
}

// memory is an Audit that forgets.
type memory struct {
	mu      sync.Mutex
	entries []AuditEntry
	err     error
	fails   int // the number of the Write that fails, from 1; 0: none
	writes  int
}

func (m *memory) Write(_ context.Context, e AuditEntry) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes++; m.err != nil || m.writes == m.fails {
		return "", errors.Join(m.err, errors.New("the record is away"))
	}
	e.ID, e.At = fmt.Sprint(len(m.entries)+1), Time{time.Now()}
	m.entries = append(m.entries, e)
	return e.ID, nil
}

func (m *memory) Read(context.Context, AuditQuery) iter.Seq2[AuditEntry, error] {
	return func(yield func(AuditEntry, error) bool) {
		for _, e := range slices.Backward(m.entries) {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// stage is a Desk with all that the Desk looks at.
type stage struct {
	*testing.T
	*Desk
	locks *joblock.Locker
	store *faultstore.Store
	asynq *fakeAsynq
	audit *memory
	some  *joblock.Lock // that TestDoctor has taken
}

// staged runs f in virtual time.
func staged(t *testing.T, f func(t *testing.T, s *stage)) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, store *faultstore.Store) {
		s := &stage{T: t, locks: locks, store: store, asynq: newAsynq(), audit: &memory{}}
		var err error
		s.Desk, err = New(Config{Locks: locks, Databases: []Database{{"jobs", s.asynq}}, Audit: s.audit})
		testkit.WantNil(t, "New", err)
		s.who = actor{eva.By, eva.From}
		f(t, s)
	})
}

func (s *stage) acquire(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	s.Helper()
	lock, err := s.locks.TryAcquire(s.Context(), key, opts...)
	testkit.WantNil(s, "TryAcquire", err)
	return lock
}

// park parks a lock for a job, and returns its token.
func (s *stage) park(key, job string) joblock.Token {
	s.Helper()
	token, err := s.acquire(key).Park(s.Context(), joblock.ForJob(job))
	testkit.WantNil(s, "Park", err)
	return token
}

// wait begins to wait for a key, until the test ends.
func (s *stage) wait(key, holder string, acquire func(context.Context, string, ...joblock.AcquireOption) (*joblock.Lock, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if lock, err := acquire(ctx, key, joblock.Holder(holder)); err == nil {
			_ = lock.Release(context.Background())
		}
	})
	s.Cleanup(func() { cancel(); group.Wait() })
	time.Sleep(time.Second)
}

func (s *stage) lock(key string) Lock {
	s.Helper()
	l, err := s.Lock(s.Context(), key)
	testkit.WantNil(s, "Lock", err)
	return l
}

// keys returns the sorted keys of Locks.
func (s *stage) keys(q LocksQuery) string {
	s.Helper()
	var keys []string
	for l, err := range s.Locks(s.Context(), q) {
		testkit.WantNil(s, "Locks", err)
		keys = append(keys, l.Key)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// header returns the header of a task that carries the token.
func (s *stage) header(token joblock.Token, job, taskType string, change func(*envelope.Envelope)) map[string]string {
	s.Helper()
	e := envelope.Envelope{Tokens: []joblock.Token{token}, Retries: 3}
	if change != nil {
		change(&e)
	}
	text, err := e.Seal(s.Context(), (*core.Locker)(s.locks).Ring(), job, taskType)
	testkit.WantNil(s, "Seal", err)
	return map[string]string{envelope.Header: text}
}

func TestLockWithItsLineAndItsJob(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		if l := s.lock("unused"); l.State != joblock.StateFree || l.Fence != 0 || len(l.Problems) > 0 {
			t.Errorf("an unused key: %+v", l)
		}
		token := s.park("export:7", "default/1")
		s.asynq.set(asynq.TaskInfo{
			Queue: "default", ID: "1", Type: "export", State: asynq.TaskStateRetry, Retried: 2, MaxRetry: 4, LastErr: "no disk",
			NextProcessAt: time.Now().Add(time.Minute), Headers: s.header(token, "default/1", "export", nil),
		})
		s.wait("export:7", "web:1", s.locks.Acquire)
		s.wait("export:7", "web:2", s.locks.Acquire)
		l := s.lock("export:7")
		if l.State != joblock.StateParked || l.Job != "default/1" || l.Fence == 0 || l.Age < Millis(2*time.Second) || !l.ReservedUntil.Equal(l.Now.Add(l.Reserved.Duration())) {
			t.Errorf("the lock is %+v", l)
		}
		if len(l.Line) != 2 || l.Line[0].Holder != "web:1" || l.Line[1].Position != 2 || !l.Line[0].Since.Before(l.Line[1].Since.Time) || !l.Line[0].Until.After(l.Now.Time) {
			t.Errorf("the line is %+v", l.Line)
		}
		task := l.Task
		if task == nil || task.State != "retry" || task.Attempt != 2 || task.Attempts != 4 || task.LastError != "no disk" || task.Database != "jobs" || !task.carries(l) {
			t.Errorf("the task is %+v", task)
		}
		text, err := json.Marshal(l)
		testkit.WantNil(t, "Marshal", err)
		secret := core.Token(token).Owner()
		if strings.Contains(string(text), secret) || !strings.Contains(string(text), `"reserved_ms":3`) || !strings.Contains(string(text), `"state":"parked"`) {
			t.Errorf("the JSON is %s", text)
		}
		var back Lock
		testkit.WantNil(t, "Unmarshal", json.Unmarshal(text, &back))
		again, _ := json.Marshal(back)
		if string(again) != string(text) {
			t.Errorf("%s came back as %s", text, again)
		}
	})
}

// What else is away does not hide the lock itself.
func TestLockIsShownAlthoughTheRestIsAway(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("export:7", "default/1")
		s.asynq.err = errors.New("connection refused")
		s.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Line)
		l := s.lock("export:7")
		if l.State != joblock.StateParked || l.Task == nil || l.Task.State != TaskUnknown || !strings.Contains(l.Task.Problem, "connection refused") || len(l.Problems) != 1 {
			t.Errorf("%+v, task %+v", l, l.Task)
		}
		e, err := s.Explain(t.Context(), "export:7")
		testkit.WantNil(t, "Explain", err)
		checkSentences(t, e)
		s.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Inspect)
		_, err = s.Lock(t.Context(), "export:7")
		testkit.WantErr(t, err, joblock.ErrUnavailable)
	})
}

func TestLocksAreFiltered(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.acquire("a:held")
		s.park("a:parked", "default/1")
		s.park("b:parked", "low/1")
		orphan := s.park("b:orphaned", "default/2")
		_, err := s.locks.Resume(t.Context(), orphan, joblock.ForJob("default/2"), joblock.TTL(time.Second), joblock.NoRenew())
		testkit.WantNil(t, "Resume", err)
		testkit.WantNil(t, "Release", s.acquire("a:free", joblock.Retain(time.Hour)).Release(t.Context()))
		time.Sleep(2 * time.Second)
		s.wait("a:held", "w", s.locks.Acquire)
		permits := limit.New(s.locks, 1)
		_, err = permits.Acquire(t.Context(), "geo")
		testkit.WantNil(t, "Acquire", err)
		s.wait("geo", "w", permits.Acquire) // so the gate is held
		for _, c := range []struct {
			q    LocksQuery
			want string
		}{
			{LocksQuery{}, "a:held a:parked b:orphaned b:parked geo%#1"},
			{LocksQuery{Prefix: "a:"}, "a:held a:parked"},
			{LocksQuery{States: []joblock.State{joblock.StateParked, joblock.StateOrphaned}}, "a:parked b:orphaned b:parked"},
			{LocksQuery{Ended: true, Prefix: "a:"}, "a:free a:held a:parked"},
			{LocksQuery{States: []joblock.State{joblock.StateFree}, Prefix: "a:"}, "a:free"},
			{LocksQuery{OlderThan: 2 * time.Second}, "a:held a:parked b:orphaned b:parked"},
			{LocksQuery{OlderThan: time.Hour}, ""},
			{LocksQuery{Contains: "park"}, "a:parked b:parked"},
			{LocksQuery{Contains: ":p", Prefix: "b", Jobs: true}, "b:parked"},
			{LocksQuery{Contains: "a:x"}, ""},
			{LocksQuery{Waiters: 1}, "a:held geo%#1"},
			{LocksQuery{Own: true, Prefix: "geo"}, "geo%#1 geo%#gate"},
			{LocksQuery{Jobs: true}, "a:parked b:orphaned b:parked"},
			{LocksQuery{Queue: "default"}, "a:parked b:orphaned"},
			{LocksQuery{Jobs: true, Prefix: "a:"}, "a:parked"},
			{LocksQuery{Jobs: true, States: []joblock.State{joblock.StateOrphaned}}, "b:orphaned"},
		} {
			if got := s.keys(c.q); got != c.want {
				t.Errorf("%+v: %s; want %s", c.q, got, c.want)
			}
		}
		before := s.store.Calls(faultstore.List)
		due := s.store.Calls(faultstore.Due)
		s.keys(LocksQuery{Jobs: true})
		if s.store.Calls(faultstore.List) != before || s.store.Calls(faultstore.Due) != due {
			t.Error("the locks of jobs were read by a walk over all keys, or with claims")
		}
		for _, err := range s.Locks(t.Context(), LocksQuery{Contains: "\x00"}) {
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
		for range s.Locks(t.Context(), LocksQuery{Jobs: true, Share: 2}) {
		}
		for _, err := range s.Locks(t.Context(), LocksQuery{Jobs: true, Share: 2}) {
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
	})
}

// 512 records would be read to find out whether a key has permits or slots. The key of a lock mostly has none.
func TestLockOfAProcessReadsNoPermits(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.acquire("export:7")
		calls := s.store.Calls(faultstore.Inspect)
		if l := s.lock("export:7"); l.Permits != nil {
			t.Errorf("%+v", l.Permits)
		}
		if n := s.store.Calls(faultstore.Inspect) - calls; n != 4 { // its record; whose line it is; the pauses, once a second; the gate and the number of a limit
			t.Errorf("%d calls of Inspect, want 4", n)
		}

		// No caller was refused a permit of these limits. One of the keys is also that of a lock.
		permits := limit.New(s.locks, 3)
		for _, key := range []string{"export:7", "geo"} {
			_, err := permits.Acquire(t.Context(), key)
			testkit.WantNil(t, "Acquire", err)
		}
		if l := s.lock("geo"); l.Permits == nil || l.Permits.Taken != 1 {
			t.Errorf("geo: %+v", l.Permits)
		}
		if l := s.lock("export:7"); l.Permits != nil {
			t.Errorf("export:7: %+v", l.Permits)
		}
		p, err := s.Permits(t.Context(), "export:7", 0)
		if err != nil || p.Taken != 1 {
			t.Errorf("Permits: %+v, %v", p, err)
		}
		for range 2 {
			_, err := permits.Acquire(t.Context(), "export:7")
			testkit.WantNil(t, "Acquire", err)
		}
		_, err = permits.TryAcquire(t.Context(), "export:7")
		testkit.WantErr(t, err, joblock.ErrHeld)
		if l := s.lock("export:7"); l.Permits == nil || l.Permits.Taken != 3 {
			t.Errorf("after a refusal: %+v", l.Permits)
		}
	})
}

func TestPermitsOfALimit(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		p, err := s.Permits(t.Context(), "geo", 0)
		if err != nil || p.Kind != "" || p.N != 0 {
			t.Errorf("a key without permits: %+v, %v", p, err)
		}
		permits := limit.New(s.locks, 3)
		for range 3 {
			_, err := permits.TryAcquire(t.Context(), "geo")
			testkit.WantNil(t, "TryAcquire", err)
		}
		s.wait("geo", "first", permits.Acquire)
		s.wait("geo", "second", permits.Acquire)
		s.wait("geo", "third", permits.Acquire)
		for _, key := range []string{"geo", "geo%#2", "geo%#gate"} {
			p, err := s.Permits(t.Context(), key, 7)
			if err != nil || p.Key != "geo" || p.Kind != KindLimit || p.N != 3 || p.Taken != 3 || p.Waiting != 3 || len(p.Permits) != 3 || p.Permits[1].Number != 2 {
				t.Errorf("%s: %+v, %v", key, p, err)
			}
		}
		var line []string
		for w, err := range s.Waiters(t.Context(), "geo") {
			testkit.WantNil(t, "Waiters", err)
			line = append(line, fmt.Sprintf("%d %s %t", w.Position, w.Holder, w.Chosen))
		}
		if got := strings.Join(line, ", "); got != "1 first true, 2 second false, 3 third false" {
			t.Errorf("the line is %s", got)
		}
		e, err := s.Explain(t.Context(), "geo")
		testkit.WantNil(t, "Explain", err)
		checkSentences(t, e)
		if text := strings.Join(e.Text, " "); e.Frees.By != ByHolder || e.Frees.Latest.IsZero() || !strings.Contains(text, "3 of 3 permits are taken") || !strings.Contains(text, "Next in line is first") {
			t.Errorf("%+v", e)
		}
		time.Sleep(2 * time.Minute)
		_, err = limit.New(s.locks, 2).TryAcquire(t.Context(), "geo", joblock.Holder("geo-9"))
		testkit.WantErr(t, err, joblock.ErrHeld)
		time.Sleep(time.Minute)
		p, err = s.Permits(t.Context(), "geo", 0)
		if got := p.Changed(); err != nil || p.First != "geo-9" || got != "geo-9 was the first to say 2 and not 3, 1 min ago" {
			t.Errorf("%q, %+v, %v", got, p, err)
		}
	})
}

func TestJobsAndSuspects(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("a", "default/lives")
		s.park("b", "default/gone")
		s.park("c", "elsewhere/1")
		done := s.park("d", "default/done")
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "lives", Type: "t", State: asynq.TaskStatePending})
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "done", Type: "t", State: asynq.TaskStateCompleted, CompletedAt: time.Now(),
			Headers: s.header(done, "default/done", "t", nil)})
		list := func(q JobsQuery) string {
			t.Helper()
			var all []string
			for j, err := range s.Jobs(t.Context(), q) {
				testkit.WantNil(t, "Jobs", err)
				all = append(all, fmt.Sprintf("%s %s %s %t", j.Job, j.Key, j.Task.State, j.Suspect != ""))
			}
			slices.Sort(all)
			return strings.Join(all, ", ")
		}
		const all = "default/done d completed %t, default/gone b absent %t, default/lives a pending false, elsewhere/1 c no queue true"
		if got, want := list(JobsQuery{}), fmt.Sprintf(all, true, true); got != want {
			t.Errorf("without a keeper: %s; want %s", got, want)
		}
		freed := func() string {
			t.Helper()
			var all []string
			for j, err := range s.Jobs(t.Context(), JobsQuery{}) {
				testkit.WantNil(t, "Jobs", err)
				left := time.Duration(0)
				if !j.FreedAt.IsZero() {
					left = j.FreedAt.Sub(j.Lock.Now.Time).Round(time.Second)
				}
				all = append(all, fmt.Sprintf("%s by %s (%s) in %s", j.Key, j.FreedBy, j.Freed(), left))
			}
			slices.Sort(all)
			return strings.Join(all, ", ")
		}
		if got, want := freed(), "a by job (the end of its reservation) in 1h0m0s, b by reservation (the end of its reservation) in 1h0m0s, "+
			"c by reservation (the end of its reservation) in 1h0m0s, d by reservation (the end of its reservation) in 1h0m0s"; got != want {
			t.Errorf("without a keeper %s; want %s", got, want)
		}
		keeper := s.acquire(keyspace.Permit(keyspace.Keepers, 1), core.OwnKey)
		if got, want := freed(), "a by job (its job) in 0s, b by keeper (the keeper) in 1m30s, c by reservation (the end of its reservation) in 1h0m0s, d by keeper (the keeper) in 30s"; got != want {
			t.Errorf("with a keeper %s; want %s", got, want)
		}
		testkit.WantNil(t, "Release", keeper.Release(t.Context()))
		if got, want := list(JobsQuery{Suspects: true, Queue: "default"}), "default/done d completed true, default/gone b absent true"; got != want {
			t.Errorf("suspects: %s; want %s", got, want)
		}
		s.asynq.queues["default"].Paused = true
		asked := s.asynq.asked
		for j, err := range s.Jobs(t.Context(), JobsQuery{}) {
			testkit.WantNil(t, "Jobs", err)
			if paused := j.Task.State == "pending" || j.Task.State == "completed"; j.Task.Paused != paused {
				t.Errorf("%s is %s, paused %t", j.Job, j.Task.State, j.Task.Paused)
			}
		}
		if n := s.asynq.asked - asked; n != 1 {
			t.Errorf("asynq was asked for a queue %d times, want once for all its tasks", n)
		}
		jobs, task, err := s.Job(t.Context(), "default/lives")
		if err != nil || len(jobs) != 1 || jobs[0].Key != "a" || task.State != "pending" {
			t.Errorf("%+v, %+v, %v", jobs, task, err)
		}
		jobs, task, err = s.Job(t.Context(), "default/none")
		if err != nil || jobs == nil || len(jobs) != 0 || task.State != TaskAbsent {
			t.Errorf("%+v, %+v, %v", jobs, task, err)
		}
		_, _, err = s.Job(t.Context(), "no job")
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
}

// eva is the operator of the tests.
var eva = struct{ By, From, Reason string }{"eva@laptop", "laptop", "hangs since noon"}

func TestForceIsRecorded(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		lock := s.acquire("export:7")
		seen := s.lock("export:7")
		s.wait("export:7", "web:2", func(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error) {
			lock, err := s.locks.Acquire(ctx, key, opts...)
			<-ctx.Done() // has the lock until the test ends
			return lock, err
		})
		done, err := s.Act(t.Context(), ForceRelease{Key: "export:7", Fence: seen.Fence, Reason: eva.Reason})
		testkit.WantNil(t, "Force", err)
		if done.Before.Fence != seen.Fence || done.After.Holder != "web:2" || done.Audit != "1" || len(done.Problems) > 0 {
			t.Errorf("%+v", done)
		}
		asked, ended := s.audit.entries[0], s.audit.entries[1]
		if asked.By != eva.By || asked.Reason != eva.Reason || asked.Key != "export:7" || asked.Fence != seen.Fence || asked.Before.Holder != seen.Holder || asked.Outcome != "" {
			t.Errorf("before: %+v", asked)
		}
		if ended.Of != "1" || ended.Outcome != OutcomeDone || ended.Error != "" {
			t.Errorf("after: %+v", ended)
		}
		_, err = s.Act(t.Context(), ForceRelease{Key: "export:7", Fence: seen.Fence, Reason: eva.Reason})
		testkit.WantErr(t, err, joblock.ErrNotOwner)
		if last := s.audit.entries[2]; len(s.audit.entries) != 3 || last.Outcome != OutcomeRefused || last.Of != "" || last.Error == "" {
			t.Errorf("a fence that has moved on: %+v", last)
		}
		_ = lock.Release(t.Context())
	})
}

// Who has freed a key is in its record, too.
func TestForceSignsTheReason(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.acquire("k")
		_, err := s.Act(t.Context(), ForceRelease{Key: "k", Fence: s.lock("k").Fence, Reason: eva.Reason})
		testkit.WantNil(t, "Force", err)
		if l := s.lock("k"); l.Ended != driver.EndedForced || l.Reason != "hangs since noon (by eva@laptop)" {
			t.Errorf("%+v", l)
		}
	})
	for _, c := range [][3]string{
		{strings.Repeat("ü", 128), "eva", strings.Repeat("ü", 123) + " (by eva)"},
		{"why", strings.Repeat("e", 256), "why"},
		{strings.Repeat("x", 250), "eva", strings.Repeat("x", 247) + " (by eva)"},
	} {
		if got := signed(c[0], c[1]); got != c[2] || len(got) > 256 {
			t.Errorf("%q by %q: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestForceThatCannotBeRecordedIsRefused(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.acquire("k")
		fence := s.lock("k").Fence
		s.audit.fails = 1
		_, err := s.Act(t.Context(), ForceRelease{Key: "k", Fence: fence, Reason: eva.Reason})
		testkit.WantErr(t, err, ErrNotRecorded)
		without, err := New(Config{Locks: s.locks})
		testkit.WantNil(t, "New", err)
		_, err = without.As(eva.By, eva.From).Act(t.Context(), ForceRelease{Key: "k", Fence: fence, Reason: eva.Reason})
		testkit.WantErr(t, err, ErrNotRecorded)
		if l := s.lock("k"); l.State != joblock.StateHeld || l.Fence != fence {
			t.Errorf("after two refusals: %+v", l)
		}
		s.audit.fails = 3
		done, err := s.Act(t.Context(), ForceRelease{Key: "k", Fence: fence, Reason: eva.Reason})
		if err != nil || len(done.Problems) != 1 || !strings.Contains(done.Problems[0], "could not be recorded") {
			t.Errorf("the outcome could not be recorded: %+v, %v", done, err)
		}
	})
}

func TestForceRefusesBadInput(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		for name, req := range map[string]ForceRelease{
			"no name":   {Key: "k", Fence: 1, Reason: "x"},
			"no reason": {Key: "k", Fence: 1},
			"no fence":  {Key: "k", Reason: eva.Reason},
			"no key":    {Fence: 1, Reason: eva.Reason},
			"control":   {Key: "k", Fence: 1, Reason: "x"},
		} {
			by := map[string]string{"no name": "", "control": "a\x1b"}
			who, other := by[name]
			if !other {
				who = eva.By
			}
			if _, err := s.As(who, "").Act(t.Context(), req); !errors.Is(err, joblock.ErrInvalid) || len(s.audit.entries) > 0 {
				t.Errorf("%s: %v, %d entries; want ErrInvalid and none", name, err, len(s.audit.entries))
			}
		}
		_, err := s.Act(t.Context(), ForceRelease{Key: "k", Fence: 1, Reason: eva.Reason})
		testkit.WantErr(t, err, joblock.ErrNotFound)
	})
}

// The key of a limit has no record of its own. Its explanation still has a time, and a command for each permit.
func TestExplainTheKeyOfALimit(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		permits := limit.New(s.locks, 2)
		for _, who := range []string{"geo-1", "geo-2"} {
			_, err := permits.TryAcquire(t.Context(), "geo", joblock.Holder(who))
			testkit.WantNil(t, "TryAcquire", err)
		}
		s.wait("geo", "first", permits.Acquire)
		time.Sleep(4 * time.Second)
		e, err := s.Explain(t.Context(), "geo")
		testkit.WantNil(t, "Explain", err)
		checkSentences(t, e)
		text := strings.Join(e.Text, "\n")
		if e.Lock.Now.IsZero() || e.Lock.Waiters != 1 || e.Frees.Within <= 0 || e.Frees.Within.Duration() > time.Minute {
			t.Errorf("now %s, %d waiters, free within %s", e.Lock.Now, e.Lock.Waiters, e.Frees.Within)
		}
		if strings.Contains(text, "The key is free") || strings.Contains(text, "unknown") || !strings.Contains(text, "5 s ago") {
			t.Errorf("the text is: %s", text)
		}
		if len(e.Actions) != 3 {
			t.Fatalf("the actions are %+v", e.Actions)
		}
		for i, a := range e.Actions[1:] {
			l := e.Lock.Permits.Permits[i]
			want := Args{Key: fmt.Sprintf("geo%%#%d", i+1), Fence: l.Fence}
			if a.Name != ActForce || a.Args != want || !strings.Contains(a.Effect, l.Holder) || a.Danger == "" {
				t.Errorf("%+v, want %+v", a, want)
			}
		}
	})
}

// A free key that a walk finds has the time of the walk, as a held key does.
func TestWalkKnowsTheTime(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		testkit.WantNil(t, "Release", s.acquire("free", joblock.Retain(time.Hour)).Release(t.Context()))
		time.Sleep(5 * time.Second)
		n := 0
		for l, err := range s.Locks(t.Context(), LocksQuery{Ended: true}) {
			testkit.WantNil(t, "Locks", err)
			if n++; l.Now.Sub(l.Changed.Time).Round(time.Second) != 5*time.Second {
				t.Errorf("now %s, changed %s; want 5s between", l.Now, l.Changed)
			}
		}
		if n != 1 {
			t.Errorf("%d locks, want 1", n)
		}
	})
}
