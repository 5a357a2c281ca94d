package ops

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// The type ending is a database of asynq whose task does something when it is cancelled.
type ending struct {
	*steerable
	onCancel, onDelete func() error
}

func (e *ending) CancelProcessing(id string) error {
	return errors.Join(e.steerable.CancelProcessing(id), e.onCancel())
}

func (e *ending) DeleteTask(queue, id string) error {
	if err := e.onDelete(); err != nil {
		return err
	}
	return e.steerable.DeleteTask(queue, id)
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
	for name, c := range map[string]struct {
		after   time.Duration // of the first cancel
		becomes asynq.TaskInfo
		refuses bool // asynq refuses the first delete, for the next attempt has begun
		did     string
		outcome string
		least   time.Duration
		most    time.Duration
	}{
		"it returns at once":       {0, retry, false, "cancel 1, delete 1", OutcomeDone, 0, time.Second},
		"it returns after a while": {4 * time.Second, retry, false, "cancel 1, delete 1", OutcomeDone, 4 * time.Second, 5 * time.Second},
		"it was the last attempt":  {time.Second, with(func(i *asynq.TaskInfo) { i.State = asynq.TaskStateArchived }), false, "cancel 1, delete 1", OutcomeDone, time.Second, 2 * time.Second},
		"it ends well":             {time.Second, with(func(i *asynq.TaskInfo) { i.State = asynq.TaskStateCompleted }), false, "cancel 1", OutcomeDone, time.Second, 2 * time.Second},
		"it does not heed":         {time.Hour, retry, false, "cancel 1", OutcomeAsked, endWait, endWait + time.Second},
		"the next one has begun":   {time.Second, second, false, "cancel 1, cancel 1, delete 1", OutcomeDone, time.Second, 3 * time.Second},
		"it begins as it is deleted": {
			time.Second, retry, true, "cancel 1, cancel 1, delete 1", OutcomeDone, time.Second, 3 * time.Second,
		},
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
				db.onDelete = func() error {
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
				done, err := s.EndTask(t.Context(), TaskRequest{Queue: "default", ID: "1", Step: task.Step, Actor: eva})
				testkit.WantNil(t, "EndTask", err)
				took := time.Since(began)
				last := s.audit.entries[len(s.audit.entries)-1]
				if did := strings.Join(db.did, ", "); last.Outcome != c.outcome || last.Action != "end task" || done.Audit == "" || took < c.least || took > c.most {
					t.Errorf("%s: %s; took %s; on record is %+v", name, did, took, last)
				}
				if did := strings.Join(db.did, ", "); did != c.did {
					t.Errorf("%q was done, want %q", did, c.did)
				}
				time.Sleep(2 * time.Hour) // the timers
			})
		})
	}
}

// A task that does not run, or not any more as it was seen, is not ended.
func TestEndOfATaskIsRefused(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		db := &steerable{fakeAsynq: s.asynq}
		s.cfg.Databases = []Database{{"jobs", db}}
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateRetry, Retried: 1, MaxRetry: 3})
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "2", Type: "t", State: asynq.TaskStateActive, Retried: 1, MaxRetry: 3})
		for _, req := range []TaskRequest{{Queue: "default", ID: "1", Actor: eva}, {Queue: "default", ID: "2", Step: "active-1", Actor: eva}} {
			if _, err := s.EndTask(t.Context(), req); !errors.Is(err, joblock.ErrBusy) || len(db.did) > 0 {
				t.Errorf("%+v: %v, %q was done", req, err, db.did)
			}
		}
	})
}
