package ops

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// ending is a database of asynq whose task does something when it is cancelled.
type ending struct {
	*steerable
	onCancel, onFinish func() error
	onLook             func() // before each look
}

func (e *ending) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	if e.onLook != nil {
		e.onLook()
	}
	return e.steerable.GetTaskInfo(queue, id)
}

func (e *ending) CancelProcessing(id string) error {
	return errors.Join(e.steerable.CancelProcessing(id), e.onCancel())
}

func (e *ending) DeleteTask(queue, id string) error {
	if err := e.onFinish(); err != nil {
		return err
	}
	return e.steerable.DeleteTask(queue, id)
}

func (e *ending) ArchiveTask(queue, id string) error {
	if err := e.onFinish(); err != nil {
		return err
	}
	return e.steerable.ArchiveTask(queue, id)
}

// A job that is ended is gone before its next attempt, whatever its handler does meanwhile; or the record says that it is not.
func TestEndOfATask(t *testing.T) {
	active := asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateActive, MaxRetry: 3}
	with := func(change func(*asynq.TaskInfo)) asynq.TaskInfo {
		info := active
		change(&info)
		return info
	}
	retry := with(func(i *asynq.TaskInfo) { i.State, i.Retried = asynq.TaskStateRetry, 1 })
	second := with(func(i *asynq.TaskInfo) { i.Retried = 1 })
	archived := with(func(i *asynq.TaskInfo) { i.State = asynq.TaskStateArchived })
	snoozed := with(func(i *asynq.TaskInfo) { i.State, i.LastErr = asynq.TaskStateArchived, jobline.ArchiveText+"busy" })
	completed := with(func(i *asynq.TaskInfo) { i.State = asynq.TaskStateCompleted })
	for name, c := range map[string]struct {
		then    Then
		after   time.Duration // of the first cancel
		becomes asynq.TaskInfo
		refuses bool // asynq refuses the first delete, for the next attempt has begun
		did     string
		became  TaskOutcome
		outcome string
		least   time.Duration
		most    time.Duration
	}{
		"it returns at once":       {ThenDrop, 0, retry, false, "cancel 1, delete 1", TaskOutcomeDropped, OutcomeDone, 0, time.Second},
		"it returns after a while": {ThenDrop, 4 * time.Second, retry, false, "cancel 1, delete 1", TaskOutcomeDropped, OutcomeDone, 4 * time.Second, 5 * time.Second},
		"it was the last attempt":  {ThenDrop, time.Second, archived, false, "cancel 1, delete 1", TaskOutcomeDropped, OutcomeDone, time.Second, 2 * time.Second},
		"it ends well":             {ThenDrop, time.Second, completed, false, "cancel 1", TaskOutcomeOver, OutcomeDone, time.Second, 2 * time.Second},
		"it ignores that":          {ThenDrop, time.Hour, retry, false, "cancel 1", TaskOutcomeRunning, OutcomeAsked, EndWait, EndWait + time.Second},
		"the next one has begun":   {ThenDrop, time.Second, second, false, "cancel 1, cancel 1, delete 1", TaskOutcomeDropped, OutcomeDone, time.Second, 3 * time.Second},
		"it begins as it is deleted": {
			ThenDrop, time.Second, retry, true, "cancel 1, cancel 1, delete 1", TaskOutcomeDropped, OutcomeDone, time.Second, 3 * time.Second,
		},
		"archive: it returns":              {ThenArchive, 4 * time.Second, retry, false, "cancel 1, archive 1", TaskOutcomeArchived, OutcomeDone, 4 * time.Second, 5 * time.Second},
		"archive: it was the last attempt": {ThenArchive, time.Second, archived, false, "cancel 1", TaskOutcomeArchived, OutcomeDone, time.Second, 2 * time.Second},
		"archive: it ends well":            {ThenArchive, time.Second, completed, false, "cancel 1", TaskOutcomeOver, OutcomeDone, time.Second, 2 * time.Second},
		"archive: it ignores that":         {ThenArchive, time.Hour, retry, false, "cancel 1", TaskOutcomeRunning, OutcomeAsked, EndWait, EndWait + time.Second},
		"archive: it snoozes":              {ThenArchive, time.Second, snoozed, false, "cancel 1", TaskOutcomeSnoozed, OutcomeAsked, EndWait, EndWait + time.Second},
		"it snoozes":                       {ThenDrop, time.Second, snoozed, false, "cancel 1, delete 1", TaskOutcomeDropped, OutcomeDone, time.Second, 2 * time.Second},
		"archive: it begins meanwhile":     {ThenArchive, time.Second, retry, true, "cancel 1, cancel 1, archive 1", TaskOutcomeArchived, OutcomeDone, time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				db := &ending{steerable: &steerable{fakeAsynq: s.asynq}}
				s.cfg.Databases = []Database{{"jobs", db}}
				s.asynq.set(active)
				cancels := 0
				db.onCancel = func() error {
					next := c.becomes
					if cancels++; cancels > 1 {
						next = with(func(i *asynq.TaskInfo) { i.State, i.Retried = asynq.TaskStateRetry, 2 })
					}
					time.AfterFunc(c.after, func() { s.asynq.set(next) })
					return nil
				}
				refuses := c.refuses
				db.onFinish = func() error {
					if refuses {
						refuses = false
						s.asynq.set(second)
						return errors.New("task is in active state")
					}
					return nil
				}
				_, task, err := s.Job(t.Context(), "default/1")
				testkit.WantNil(t, "Job", err)
				began := time.Now()
				done, err := s.Act(t.Context(), CancelTask{Queue: "default", ID: "1", Step: task.Step, Then: c.then, Reason: eva.Reason})
				testkit.WantNil(t, "CancelTask", err)
				took := time.Since(began)
				last := s.audit.entries[len(s.audit.entries)-1]
				action := map[Then]string{ThenDrop: "end and delete task", ThenArchive: "end and archive task"}[c.then]
				if did := strings.Join(db.did, ", "); last.Outcome != c.outcome || last.Action != action || done.Audit == "" || done.Outcome != c.became || took < c.least || took > c.most {
					t.Errorf("%s: %s, %q; took %s; on record is %+v", name, did, done.Outcome, took, last)
				}
				why := map[TaskOutcome]string{TaskOutcomeRunning: "handler has not returned", TaskOutcomeSnoozed: "snoozes its task"}[c.became]
				if !strings.Contains(last.Error, why) {
					t.Errorf("on record is %q, want something with %q", last.Error, why)
				}
				if did := strings.Join(db.did, ", "); did != c.did {
					t.Errorf("%q was done, want %q", did, c.did)
				}
				time.Sleep(2 * time.Hour) // the timers
			})
		})
	}
}

// Others may do something to the task a second after it was cancelled. What CancelTask did not see it does not touch, and it
// gives up for nothing that passes.
func TestEndOfATaskThatOthersChange(t *testing.T) {
	active := func(retried int) asynq.TaskInfo {
		return asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateActive, Retried: retried, MaxRetry: 3}
	}
	becomes := func(state asynq.TaskState, retried int) func(*fakeAsynq) {
		info := active(retried)
		info.State = state
		return func(f *fakeAsynq) { f.set(info) }
	}
	fails := func(f *fakeAsynq, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.err = err
	}
	away := errors.New("away")
	for name, c := range map[string]struct {
		retried int
		then    func(*fakeAsynq)
		refused error // of each delete
		did     string
		outcome string
		err     error
		after   time.Duration // the end of the call; less than a second more
	}{
		"another caller deletes it": {0, func(f *fakeAsynq) {
			f.mu.Lock()
			defer f.mu.Unlock()
			clear(f.tasks)
		}, nil, "cancel 1", OutcomeDone, nil, time.Second},
		"it is enqueued again":               {1, becomes(asynq.TaskStatePending, 0), nil, "cancel 1", OutcomeAsked, nil, time.Second},
		"it is enqueued again for later":     {1, becomes(asynq.TaskStateScheduled, 0), nil, "cancel 1", OutcomeAsked, nil, time.Second},
		"it is enqueued again, and it runs":  {1, becomes(asynq.TaskStateActive, 0), nil, "cancel 1", OutcomeAsked, nil, time.Second},
		"it is enqueued again, and it fails": {2, becomes(asynq.TaskStateRetry, 1), nil, "cancel 1", OutcomeAsked, nil, time.Second},
		"its worker dies in the first one":   {0, becomes(asynq.TaskStatePending, 0), nil, "cancel 1, delete 1", OutcomeDone, nil, time.Second},
		"its worker stops in a later one":    {1, becomes(asynq.TaskStatePending, 1), nil, "cancel 1, delete 1", OutcomeDone, nil, time.Second},
		"asynq is away for a while": {0, func(f *fakeAsynq) {
			fails(f, away)
			time.AfterFunc(3*time.Second, func() { fails(f, nil); becomes(asynq.TaskStateRetry, 1)(f) })
		}, nil, "cancel 1, delete 1", OutcomeDone, nil, 4 * time.Second},
		"it was deleted before the delete": {0, becomes(asynq.TaskStateRetry, 1), asynq.ErrTaskNotFound, "cancel 1", OutcomeDone, nil, time.Second},
		"the delete fails":                 {0, becomes(asynq.TaskStateRetry, 1), away, "cancel 1", OutcomeUnknown, joblock.ErrUnavailable, time.Second},
		"the operator goes away":           {0, nil, nil, "cancel 1", OutcomeUnknown, joblock.ErrUnavailable, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				db := &ending{steerable: &steerable{fakeAsynq: s.asynq}, onFinish: func() error { return c.refused }}
				s.cfg.Databases = []Database{{"jobs", db}}
				s.asynq.set(active(c.retried))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				db.onCancel = func() error {
					if c.then == nil {
						time.AfterFunc(2*time.Second, cancel)
					} else {
						time.AfterFunc(time.Second, func() { c.then(s.asynq) })
					}
					return nil
				}
				_, task, err := s.Job(ctx, "default/1")
				testkit.WantNil(t, "Job", err)
				began := time.Now()
				_, err = s.Act(ctx, CancelTask{Queue: "default", ID: "1", Step: task.Step, Then: ThenDrop, Reason: eva.Reason})
				took := time.Since(began)
				if !errors.Is(err, c.err) || c.err == nil && err != nil {
					t.Errorf("error %v, want %v", err, c.err)
				}
				last := s.audit.entries[len(s.audit.entries)-1]
				if did := strings.Join(db.did, ", "); did != c.did || last.Outcome != c.outcome || took < c.after || took > c.after+time.Second {
					t.Errorf("%q was done in %s, want %q in %s; on record is %+v, want %s", did, took, c.did, c.after, last, c.outcome)
				}
				time.Sleep(time.Minute) // the timers
			})
		})
	}
}

// A task that carries a lock has another token once it is enqueued again: it is left alone, whatever it does by then.
func TestEndOfATaskThatIsEnqueuedAgain(t *testing.T) {
	for _, state := range []asynq.TaskState{asynq.TaskStatePending, asynq.TaskStateActive, asynq.TaskStateRetry, asynq.TaskStateScheduled} {
		staged(t, func(t *testing.T, s *stage) {
			enqueued := func(key string, state asynq.TaskState) asynq.TaskInfo {
				token, err := joblock.NewToken(key, rand.Text(), time.Minute)
				testkit.WantNil(t, "NewToken", err)
				return asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: state, MaxRetry: 3, Headers: s.header(token, "default/1", "t", nil)}
			}
			db := &ending{steerable: &steerable{fakeAsynq: s.asynq}, onFinish: func() error { return nil }}
			db.onCancel = func() error { s.asynq.set(enqueued("k", state)); return nil }
			s.cfg.Databases = []Database{{"jobs", db}}
			s.asynq.set(enqueued("k", asynq.TaskStateActive))
			done, err := s.Act(t.Context(), CancelTask{Queue: "default", ID: "1", Then: ThenDrop, Reason: eva.Reason})
			if did := strings.Join(db.did, ", "); err != nil || done.Outcome != TaskOutcomeReplaced || did != "cancel 1" {
				t.Errorf("%s: %v, %q; %q was done", state, err, done.Outcome, did)
			}
		})
	}
}

// asynq does not answer at one of the looks before the cancel: that is no end of the attempt.
func TestEndOfATaskWithoutAnAnswer(t *testing.T) {
	for look := 1; look <= 3; look++ {
		staged(t, func(t *testing.T, s *stage) {
			db := &ending{steerable: &steerable{fakeAsynq: s.asynq}, onFinish: func() error { return nil }, onCancel: func() error { return nil }}
			s.cfg.Databases = []Database{{"jobs", db}}
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateActive, MaxRetry: 3})
			looks := 0
			db.onLook = func() {
				if looks++; looks == look {
					s.asynq.mu.Lock()
					defer s.asynq.mu.Unlock()
					s.asynq.err = errors.New("away")
				}
			}
			_, err := s.Act(t.Context(), CancelTask{Queue: "default", ID: "1", Then: ThenDrop, Reason: eva.Reason})
			if !errors.Is(err, joblock.ErrUnavailable) || len(db.did) > 0 {
				t.Errorf("at look %d: %v; %q was done", look, err, db.did)
			}
		})
	}
}

// The attempt ends by itself before CancelTask cancels it, at each of the looks before that. Then nothing is done to the task.
func TestEndOfATaskThatHasJustEnded(t *testing.T) {
	late, refused := 0, 0
	for look := 1; ; look++ {
		over := false
		staged(t, func(t *testing.T, s *stage) {
			info := asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateActive, MaxRetry: 3}
			db := &ending{steerable: &steerable{fakeAsynq: s.asynq}, onFinish: func() error { return nil }, onCancel: func() error { return nil }}
			s.cfg.Databases = []Database{{"jobs", db}}
			s.asynq.set(info)
			_, task, err := s.Job(t.Context(), "default/1")
			testkit.WantNil(t, "Job", err)
			looks := 0
			db.onLook = func() {
				if looks++; looks == look {
					info.State, info.Retried = asynq.TaskStateRetry, 1
					s.asynq.set(info)
				}
			}
			_, err = s.Act(t.Context(), CancelTask{Queue: "default", ID: "1", Step: task.Step, Then: ThenDrop, Reason: eva.Reason})
			switch last := s.audit.entries[len(s.audit.entries)-1]; {
			case errors.Is(err, ErrMovedOn) && strings.Contains(err.Error(), "has ended just now"):
				late++
			case errors.Is(err, joblock.ErrBusy):
				refused++
			case err == nil && strings.Join(db.did, ", ") == "cancel 1, delete 1":
				over = true
				return
			default:
				t.Errorf("at look %d: %v, %q; on record is %+v", look, err, db.did, last)
			}
			if len(db.did) > 0 {
				t.Errorf("at look %d: %q was done", look, db.did)
			}
		})
		if over || t.Failed() || look == 10 {
			break
		}
	}
	if refused == 0 || late == 0 {
		t.Errorf("%d calls were refused and %d at the last look, want some of each", refused, late)
	}
}

// A task that does not run, or not any more as it was seen, is not ended.
func TestEndOfATaskIsRefused(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		db := &steerable{fakeAsynq: s.asynq}
		s.cfg.Databases = []Database{{"jobs", db}}
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateRetry, Retried: 1, MaxRetry: 3})
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "2", Type: "t", State: asynq.TaskStateActive, Retried: 1, MaxRetry: 3})
		for _, req := range []CancelTask{{Queue: "default", ID: "1", Then: ThenDrop, Reason: eva.Reason}, {Queue: "default", ID: "2", Step: "active-1", Then: ThenArchive, Reason: eva.Reason}} {
			if _, err := s.Act(t.Context(), req); !errors.Is(err, joblock.ErrBusy) || len(db.did) > 0 {
				t.Errorf("%+v: %v, %q was done", req, err, db.did)
			}
		}
		recorded := len(s.audit.entries)
		_, err := s.Act(t.Context(), CancelTask{Queue: "default", ID: "2", Then: "hide", Reason: eva.Reason})
		if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), "hide") || len(db.did) > 0 {
			t.Errorf("then hide: %v, %q was done", err, db.did)
		}
		if len(s.audit.entries) != recorded {
			t.Errorf("on record is %+v", s.audit.entries[recorded:])
		}
	})
}

// asynq cancels by the ID of a task, in all queues. A cancel does not reach a task of another queue.
func TestCancelOfATaskWhoseIDAnotherOneHas(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		db := &steerable{fakeAsynq: s.asynq}
		s.cfg.Databases = []Database{{"jobs", db}}
		own := asynq.TaskInfo{Queue: "own", ID: "1", Type: "t", State: asynq.TaskStateActive, MaxRetry: 3}
		other := own
		other.Queue = "other"
		s.asynq.set(own)
		s.asynq.set(other)
		for _, then := range []Then{"", ThenDrop, ThenArchive} {
			if _, err := s.Act(t.Context(), CancelTask{Queue: "own", ID: "1", Then: then, Reason: eva.Reason}); !errors.Is(err, joblock.ErrBusy) || len(db.did) > 0 {
				t.Errorf("then %q: %v, %q was done", then, err, db.did)
			}
		}
		other.State = asynq.TaskStatePending
		s.asynq.set(other)
		_, err := s.Act(t.Context(), CancelTask{Queue: "own", ID: "1", Reason: eva.Reason})
		testkit.WantNil(t, "CancelTask", err)
		if got := strings.Join(db.did, ", "); got != "cancel 1" {
			t.Errorf("%q was done", got)
		}
	})
}
