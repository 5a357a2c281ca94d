package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
)

// steerable is a database of asynq that counts what is done to its tasks.
type steerable struct {
	*fakeAsynq
	did []string
}

func (s *steerable) RunTask(_, id string) error    { s.did = append(s.did, "run "+id); return nil }
func (s *steerable) DeleteTask(_, id string) error { s.did = append(s.did, "delete "+id); return nil }
func (s *steerable) ArchiveTask(_, id string) error {
	s.did = append(s.did, "archive "+id)
	return nil
}
func (s *steerable) CancelProcessing(id string) error {
	s.did = append(s.did, "cancel "+id)
	return nil
}

// An action on a task hits what the operator has seen, or nothing.
func TestActionsAreTiedToTheStepThatWasSeen(t *testing.T) {
	failed := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	seen := asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateRetry, Retried: 1, MaxRetry: 3, LastFailedAt: failed}
	active := asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateActive, MaxRetry: 3}
	moved := func(info asynq.TaskInfo, change func(*asynq.TaskInfo)) asynq.TaskInfo {
		change(&info)
		return info
	}
	for name, c := range map[string]struct {
		seen, now asynq.TaskInfo
		do        string
	}{
		"run: it has failed again":       {seen, moved(seen, func(i *asynq.TaskInfo) { i.Retried++; i.LastFailedAt = failed.Add(time.Minute) }), "run"},
		"run: it has failed uncharged":   {seen, moved(seen, func(i *asynq.TaskInfo) { i.LastFailedAt = failed.Add(time.Minute) }), "run"},
		"run: it is archived":            {seen, moved(seen, func(i *asynq.TaskInfo) { i.State = asynq.TaskStateArchived }), "run"},
		"archive: it is pending":         {seen, moved(seen, func(i *asynq.TaskInfo) { i.State = asynq.TaskStatePending }), "archive"},
		"archive: it runs":               {seen, moved(active, func(i *asynq.TaskInfo) { i.Retried = 1 }), "archive"},
		"delete: it is pending":          {seen, moved(seen, func(i *asynq.TaskInfo) { i.State = asynq.TaskStatePending }), "delete"},
		"cancel: the next attempt runs":  {active, moved(active, func(i *asynq.TaskInfo) { i.Retried = 1; i.LastFailedAt = failed }), "cancel"},
		"cancel: the same attempt again": {active, moved(active, func(i *asynq.TaskInfo) { i.LastFailedAt = failed }), "cancel"},
		"cancel: it waits for a retry":   {active, seen, "cancel"},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				db := &steerable{fakeAsynq: s.asynq}
				s.cfg.Databases = []Database{{"jobs", db}}
				act := func(step string) error {
					_, err := s.Act(t.Context(), VerbOf(c.do+" task").With(Args{Job: "default/1", Step: step, Reason: eva.Reason}))
					return err
				}
				s.asynq.set(c.seen)
				_, task, err := s.Job(t.Context(), "default/1")
				testkit.WantNil(t, "Job", err)
				s.asynq.set(c.now)
				_, now, err := s.Job(t.Context(), "default/1")
				testkit.WantNil(t, "Job", err)
				err = act(task.Step)
				if want := fmt.Sprintf("the task has moved on: it is at step %s by now, not at %s", now.Step, task.Step); !errors.Is(err, joblock.ErrBusy) || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want ErrBusy and %q", err, want)
				}
				if last := s.audit.entries[len(s.audit.entries)-1]; len(db.did) > 0 || last.Outcome != OutcomeRefused || last.Step != task.Step {
					t.Errorf("%q was done; on record is %+v", db.did, last)
				}
				s.asynq.set(c.seen)
				for _, step := range []string{task.Step, ""} {
					testkit.WantNil(t, c.do, act(step))
				}
				if want := c.do + " 1"; len(db.did) != 2 || db.did[0] != want {
					t.Errorf("%q was done, want %q twice", db.did, want)
				}
				if last := s.audit.entries[len(s.audit.entries)-1]; (last.Outcome == OutcomeAsked) != (c.do == "cancel") {
					t.Errorf("on record is %+v", last)
				}
				testkit.WantErr(t, act("\x1b"), joblock.ErrInvalid)
			})
		})
	}
}

// A job in line shows its place, and not the time that asynq has for its task. Its task cannot be run before its turn.
func TestAJobInLine(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		p.Desk.cfg.Audit = new(memory)
		client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
		testkit.WantNil(t, "NewClient", err)
		defer func() { testkit.WantNil(t, "Close", client.Close(context.Background())) }()
		for _, id := range []string{"a", "b", "c"} {
			_, err := client.Enqueue(t.Context(), handoff.Sequence{Key: "ledger"}, asynq.NewTask("t", nil, asynq.TaskID(id)))
			testkit.WantNil(t, "Enqueue", err)
		}
		locks, task, err := p.Job(t.Context(), "default/c")
		if err != nil || !task.Waits || task.Sequence != "ledger" || !task.NextAt.IsZero() || len(locks) != 1 || locks[0].Place.Position != 2 {
			t.Errorf("%+v, %+v, %v", task, locks, err)
		}
		run := func(id string) error {
			_, err := p.Act(t.Context(), RunTask{Queue: "default", ID: id, Reason: eva.Reason})
			return err
		}
		if err := run("c"); !errors.Is(err, joblock.ErrBusy) || !strings.Contains(err.Error(), `the job waits in line for "ledger", place 2`) {
			t.Errorf("%v, want ErrBusy and the place", err)
		}
		if info, err := p.inspector.GetTaskInfo("default", "c"); err != nil || info.State != asynq.TaskStateScheduled || time.Until(info.NextProcessAt) < envelope.Wait-time.Hour {
			t.Errorf("%+v, %v", info, err)
		}
		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "c"))
		testkit.WantNil(t, "run of an archived task", run("c"))
	})
}

// An attempt whose time is up is marked, in a list too. What is said of it names how long it has run.
func TestAttemptsThatRunForTooLong(t *testing.T) {
	for name, c := range map[string]struct {
		info asynq.TaskInfo
		held bool
		age  time.Duration
		ran  bool
		long string
	}{
		"in time":            {asynq.TaskInfo{State: asynq.TaskStateActive, Timeout: time.Hour}, true, 50 * time.Minute, true, ""},
		"just over":          {asynq.TaskInfo{State: asynq.TaskStateActive, Timeout: time.Hour}, true, time.Hour + 5*time.Second, true, ""},
		"timeout":            {asynq.TaskInfo{State: asynq.TaskStateActive, Timeout: time.Hour}, true, 2 * time.Hour, true, "has run for 2 h, and its time was up 1 h ago: its handler ignores its context."},
		"deadline":           {asynq.TaskInfo{State: asynq.TaskStateActive, Timeout: 5 * time.Hour}, true, 2 * time.Hour, true, "has run for 2 h, and its time was up 1 h 30 min ago"},
		"no bound":           {asynq.TaskInfo{State: asynq.TaskStateActive}, true, 9 * time.Hour, true, ""},
		"lease has run out":  {asynq.TaskInfo{State: asynq.TaskStateActive, Timeout: time.Hour}, false, 2 * time.Hour, true, "Its worker renews the lock no longer."},
		"its worker is dead": {asynq.TaskInfo{State: asynq.TaskStateActive, Timeout: time.Hour, IsOrphaned: true}, false, 2 * time.Hour, false, ""},
		"none runs":          {asynq.TaskInfo{State: asynq.TaskStateRetry, Timeout: time.Hour}, false, 2 * time.Hour, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				token := s.park("k", "default/1")
				opts := []joblock.ResumeOption{joblock.ForJob("default/1"), joblock.Reserve(24 * time.Hour)}
				if !c.held {
					opts = append(opts, joblock.NoRenew())
				}
				_, err := s.locks.Resume(t.Context(), token, opts...)
				testkit.WantNil(t, "Resume", err)
				c.info.Queue, c.info.ID, c.info.Type = "default", "1", "t"
				if name == "deadline" {
					c.info.Deadline = time.Now().Add(30 * time.Minute)
				}
				s.asynq.set(c.info)
				time.Sleep(c.age)
				jobs, _, err := s.Job(t.Context(), "default/1")
				if err != nil || len(jobs) != 1 {
					t.Fatalf("%+v, %v", jobs, err)
				}
				j := jobs[0]
				if (j.Ran.Duration().Round(time.Minute) == c.age.Round(time.Minute)) != c.ran || (j.Long == "") != (c.long == "") || !strings.Contains(j.Long, c.long) {
					t.Errorf("ran for %s; %q", j.Ran, j.Long)
				}
				e, err := s.Explain(t.Context(), "k")
				if text := strings.Join(e.Text, " "); err != nil || !strings.Contains(text, j.Long) {
					t.Errorf("%s, without %q; %v", text, j.Long, err)
				}
			})
		})
	}
}

// A suspicion says how long the others had for what they have not done.
func TestSuspicionsNameTheirGrace(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.keep(keyspace.Keepers, 1, workerstats.Keeper{Every: 30_000})
		s.park("left", "default/1")
		token := s.park("held", "default/2")
		_, err := s.locks.Resume(t.Context(), token, joblock.ForJob("default/2"))
		testkit.WantNil(t, "Resume", err)
		for _, id := range []string{"1", "2"} {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: id, Type: "t", State: asynq.TaskStateArchived})
		}
		for _, c := range []struct {
			after time.Duration
			want  map[string]string
		}{
			{2*time.Minute - time.Second, map[string]string{"left": "", "held": ""}},
			{2 * time.Second, map[string]string{"left": "no keeper has freed the lock, 2 min 1 s later; 2 min are enough for that.", "held": ""}},
			{time.Minute, map[string]string{"left": "3 min 1 s later", "held": "a holder still runs under the lock, 3 min 1 s later; 3 min are enough for that."}},
		} {
			time.Sleep(c.after)
			for j, err := range s.Jobs(t.Context(), JobsQuery{}) {
				testkit.WantNil(t, "Jobs", err)
				if want := c.want[j.Key]; (j.Suspect == "") != (want == "") || !strings.Contains(j.Suspect, want) {
					t.Errorf("%s: %q, want %q", j.Key, j.Suspect, want)
				}
			}
		}
	})
}
