package ops

import (
	"context"
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
	onCancel, onFinish func() error
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
	completed := with(func(i *asynq.TaskInfo) { i.State = asynq.TaskStateCompleted })
	for name, c := range map[string]struct {
		then    Then
		after   time.Duration // of the first cancel
		becomes asynq.TaskInfo
		refuses bool // asynq refuses the first delete, for the next attempt has begun
		did     string
		became  Became
		outcome string
		least   time.Duration
		most    time.Duration
	}{
		"it returns at once":       {ThenDrop, 0, retry, false, "cancel 1, delete 1", BecameDropped, OutcomeDone, 0, time.Second},
		"it returns after a while": {ThenDrop, 4 * time.Second, retry, false, "cancel 1, delete 1", BecameDropped, OutcomeDone, 4 * time.Second, 5 * time.Second},
		"it was the last attempt":  {ThenDrop, time.Second, archived, false, "cancel 1, delete 1", BecameDropped, OutcomeDone, time.Second, 2 * time.Second},
		"it ends well":             {ThenDrop, time.Second, completed, false, "cancel 1", BecameOver, OutcomeDone, time.Second, 2 * time.Second},
		"it does not heed":         {ThenDrop, time.Hour, retry, false, "cancel 1", BecameRunning, OutcomeAsked, EndWait, EndWait + time.Second},
		"the next one has begun":   {ThenDrop, time.Second, second, false, "cancel 1, cancel 1, delete 1", BecameDropped, OutcomeDone, time.Second, 3 * time.Second},
		"it begins as it is deleted": {
			ThenDrop, time.Second, retry, true, "cancel 1, cancel 1, delete 1", BecameDropped, OutcomeDone, time.Second, 3 * time.Second,
		},
		"archive: it returns":              {ThenArchive, 4 * time.Second, retry, false, "cancel 1, archive 1", BecameArchived, OutcomeDone, 4 * time.Second, 5 * time.Second},
		"archive: it was the last attempt": {ThenArchive, time.Second, archived, false, "cancel 1", BecameArchived, OutcomeDone, time.Second, 2 * time.Second},
		"archive: it ends well":            {ThenArchive, time.Second, completed, false, "cancel 1", BecameOver, OutcomeDone, time.Second, 2 * time.Second},
		"archive: it does not heed":        {ThenArchive, time.Hour, retry, false, "cancel 1", BecameRunning, OutcomeAsked, EndWait, EndWait + time.Second},
		"archive: it begins meanwhile":     {ThenArchive, time.Second, retry, true, "cancel 1, cancel 1, archive 1", BecameArchived, OutcomeDone, time.Second, 3 * time.Second},
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
				done, err := s.CancelTask(t.Context(), TaskRequest{Queue: "default", ID: "1", Step: task.Step, Then: c.then, Actor: eva})
				testkit.WantNil(t, "CancelTask", err)
				took := time.Since(began)
				last := s.audit.entries[len(s.audit.entries)-1]
				action := map[Then]string{ThenDrop: "end and delete task", ThenArchive: "end and archive task"}[c.then]
				if did := strings.Join(db.did, ", "); last.Outcome != c.outcome || last.Action != action || done.Audit == "" || done.Became != c.became || took < c.least || took > c.most {
					t.Errorf("%s: %s, %q; took %s; on record is %+v", name, did, done.Became, took, last)
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
		for _, req := range []TaskRequest{{Queue: "default", ID: "1", Then: ThenDrop, Actor: eva}, {Queue: "default", ID: "2", Step: "active-1", Then: ThenArchive, Actor: eva}} {
			if _, err := s.CancelTask(t.Context(), req); !errors.Is(err, joblock.ErrBusy) || len(db.did) > 0 {
				t.Errorf("%+v: %v, %q was done", req, err, db.did)
			}
		}
		recorded := len(s.audit.entries)
		for name, do := range map[string]func(context.Context, TaskRequest) (Acted, error){"cancel": s.CancelTask, "run": s.RunTask, "drop": s.DeleteTask, "archive": s.ArchiveTask} {
			req := TaskRequest{Queue: "default", ID: "1", Then: ThenDrop, Actor: eva}
			if name == "cancel" {
				req.ID, req.Then = "2", "hide"
			}
			if _, err := do(t.Context(), req); !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), string(req.Then)) || len(db.did) > 0 {
				t.Errorf("%s, then %s: %v, %q was done", name, req.Then, err, db.did)
			}
		}
		if len(s.audit.entries) != recorded {
			t.Errorf("on record is %+v", s.audit.entries[recorded:])
		}
	})
}
