package pages

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// A steered is a Desk with one job.
type steered struct {
	*chronicle
	task ops.Task
	did  []string
}

func (s *steered) Job(context.Context, string) ([]ops.Job, ops.Task, error) {
	l := s.lock
	return []ops.Job{{Job: s.task.Job(), Key: l.Key, Lock: l, Task: s.task}}, s.task, nil
}

func (s *steered) Explain(_ context.Context, key string) (ops.Explanation, error) {
	return ops.Explanation{Key: key, Lock: s.lock, Actions: []ops.Offer{
		{Name: ops.ActCancelTask, Args: ops.Args{Job: "default/1"}, Effect: "The handler is asked to stop."},
		{Name: ops.ActEndArchive, Args: ops.Args{Job: "default/1"}, Effect: "It is archived; it can be run later."},
		{Name: ops.ActEndDelete, Args: ops.Args{Job: "default/1"}, Effect: "It is deleted."},
	}}, nil
}

func (s *steered) As(string, string) ops.Operator { return s }

func (s *steered) Act(_ context.Context, a ops.Action) (ops.ActionResult, error) {
	req := a.(ops.CancelTask)
	s.did = append(s.did, string(req.Then)+" "+req.ID+" at "+req.Step+": "+req.Reason)
	s.acts = append(s.acts, ops.AuditEntry{ID: "9-0", At: ops.Time{Time: time.Now()}, Action: "end and delete task", Key: s.task.Job(), By: "x", Reason: req.Reason, Outcome: "asked", Error: "the handler has not returned within 10 s"})
	return ops.ActionResult{Audit: "9-0"}, nil
}

func (s *steered) handler(t *testing.T) *Handler {
	h, err := New(Config{Desk: s, Recorded: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// A job is ended with one form, which says before what happens to it otherwise.
func TestEndOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := ops.Time{Time: time.Now()}
		task := ops.Task{Queue: "default", ID: "1", Type: "invoices", State: "active", Attempt: 1, Attempts: 26, Step: "active-1", Timeout: ops.Millis(time.Hour)}
		lock := ops.Lock{Key: "stuck", State: joblock.StateHeld, Fence: 7, Job: "default/1", Changed: now, Now: now, Task: &task}
		s := &steered{chronicle: &chronicle{fake: &fake{}, lock: lock}, task: task}
		h := s.handler(t)
		get := func(path string) string { t.Helper(); return h.get(path, someone).Body.String() }
		page := get("lock?key=stuck")
		wantPage(t, page, true, "End the job, delete it…", "act?do=end-and-delete-task&amp;job=default%2F1&amp;key=stuck", "End the job, archive it…", "act?do=end-and-archive-task&amp;job=default%2F1&amp;key=stuck", "It is archived; it can be run later.", "joblock jobs cancel --then archive")
		wantPage(t, page, false, "joblock jobs run")
		wantPage(t, get("job?job=default/1"), true, "End the job, delete it…", "End the job, archive it…")
		page = get("act?do=end-and-delete-task&job=default%2F1&key=stuck")
		wantPage(t, page, true, "<title>End the job, delete it: stuck (invoices) · joblock</title>", "It is deleted.", "which the record of the action says after 10 s", "Attempt 1 of 26 goes on, for at most 1 h in all", "attempt 2 follows", "Its time is up at", "01:00:00 UTC", "in 1 h", `value="active-1"`)
		wantPage(t, page, false, "Everything stays as it is")
		form := url.Values{"do": {"end-and-delete-task"}, "job": {"default/1"}, "key": {"stuck"}, "step": {"active-1"}, "reason": {"TICKET-5"}, "fence": {"7"}}
		r := httptest.NewRequest(http.MethodPost, "http://localhost/act", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		h.Serve(w, r, "act", someone)
		if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || len(s.did) != 1 || s.did[0] != "drop 1 at active-1: TICKET-5" {
			t.Fatalf("%d, %q, %s", w.Code, s.did, w.Body)
		} else {
			wantPage(t, get(to), true, "end and delete task", "asked: the handler has not returned within 10 s")
		}
		form.Set("do", "end-and-archive-task")
		r = httptest.NewRequest(http.MethodPost, "http://localhost/act", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w = httptest.NewRecorder()
		h.Serve(w, r, "act", someone)
		if w.Code != http.StatusSeeOther || s.did[len(s.did)-1] != "archive 1 at active-1: TICKET-5" {
			t.Errorf("%d, %q", w.Code, s.did)
		}
		s.task.State, s.task.Step = "retry", "retry-1"
		time.Sleep(2 * time.Second)
		wantPage(t, get("act?do=end-and-delete-task&job=default%2F1"), true, "The task is retry by now")
	})
}

// What happens to a task without an action, and when.
func TestFateOfATask(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	lock := &ops.Explanation{Lock: ops.Lock{Changed: ops.Time{Time: at}}}
	for _, c := range []struct {
		task ops.Task
		lock *ops.Explanation
		want string
		at   time.Time
	}{
		{ops.Task{State: "retry", Attempt: 1, Attempts: 26, NextAt: ops.Time{Time: at}}, nil, "Attempt 2 of 26 begins at", at},
		{ops.Task{State: "scheduled", Attempts: 3, NextAt: ops.Time{Time: at}}, nil, "Attempt 1 of 3 begins at", at},
		{ops.Task{State: "scheduled", Attempts: 3, Waits: true, NextAt: ops.Time{Time: at}}, nil, "starts when its turn comes", time.Time{}},
		{ops.Task{State: "pending", Attempts: 3}, nil, "Attempt 1 of 3 begins as soon as a worker is free.", time.Time{}},
		{ops.Task{State: "active", Attempt: 3, Attempts: 3}, nil, "Attempt 3 of 3 goes on.", time.Time{}},
		{ops.Task{State: "active", Attempt: 1, Attempts: 3, Timeout: ops.Millis(time.Hour)}, lock, "If it fails, attempt 2 follows. Its time is up at", at.Add(time.Hour)},
		{ops.Task{State: "active", Crashed: true}, nil, "schedules the next attempt within two minutes", time.Time{}},
		{ops.Task{State: "archived"}, nil, "does not run again", time.Time{}},
		{ops.Task{State: "archived", Halts: true}, nil, "its sequence halts", time.Time{}},
		{ops.Task{State: "archived", Snoozed: true}, nil, "comes back", time.Time{}},
		{ops.Task{State: "aggregating"}, nil, "others of its group", time.Time{}},
		{ops.Task{State: "absent"}, nil, "", time.Time{}},
	} {
		if text, when := idle(c.task, c.lock); !strings.Contains(text, c.want) || !when.Equal(c.at) || c.want == "" && text != "" {
			t.Errorf("%+v: %q %s, want %q %s", c.task, text, when, c.want, c.at)
		}
	}
	next := ops.CronJob{Next: ops.Time{Time: at}}
	for do, want := range map[string]string{ops.ActCronPause: "at its next tick, at", ops.ActCronPauseAll: "run as before", ops.ActCronResumeAll: "stay paused", ops.ActCronForget: "The record stays"} {
		if text, _ := cronIdle(do, next); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", do, text, want)
		}
	}
	next.Paused = true
	if text, when := cronIdle(ops.ActCronResume, next); !strings.Contains(text, "stays paused") || !when.IsZero() {
		t.Error(text, when)
	}
}
