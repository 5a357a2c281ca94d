package handoff_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/limit"
)

// The table in the package comment.
func TestPoliciesByStateOfTheOtherJob(t *testing.T) {
	type want string
	const (
		enqueued  want = "enqueued"
		duplicate want = "that one"
		replaced  want = "replaced"
		held      want = "held"
	)
	policies := map[string]handoff.OnConflict{
		"Reject": handoff.Reject, "Skip": handoff.Skip, "Replace": handoff.Replace, "KeepLast": handoff.KeepLast,
		"CancelInProgress": handoff.CancelInProgress, // enqueues as KeepLast: the worker ends the other job
	}
	for _, row := range []struct {
		situation                       situation
		untilStarted                    bool
		reject, skip, replace, keepLast want
	}{
		{free, false, enqueued, enqueued, enqueued, enqueued},
		{free, true, enqueued, enqueued, enqueued, ""},
		{pending, false, held, duplicate, replaced, replaced},
		{pending, true, held, duplicate, replaced, ""},
		{scheduled, false, held, duplicate, replaced, replaced},
		{aggregating, false, held, duplicate, replaced, replaced},
		{retrying, false, held, duplicate, replaced, enqueued},
		{running, false, held, duplicate, held, enqueued},
		{started, true, enqueued, enqueued, enqueued, ""},
		{overrunning, false, held, duplicate, held, enqueued},
		{archived, false, enqueued, enqueued, enqueued, enqueued},
		{completed, false, enqueued, enqueued, enqueued, enqueued},
		{enqueuing, false, held, held, held, enqueued},
		{deleted, false, held, held, held, held},
		{requested, false, held, held, held, enqueued},
	} {
		for name, want := range map[string]want{"Reject": row.reject, "Skip": row.skip, "Replace": row.replace, "KeepLast": row.keepLast, "CancelInProgress": row.keepLast} {
			if want == "" {
				continue
			}
			u := handoff.Unique{Key: "k", UntilStarted: row.untilStarted, OnConflict: policies[name]}
			t.Run(strings.Join([]string{string(row.situation), until(row.untilStarted), name}, ", "), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					first := w.bring(t, row.situation, u)
					fence := wantAny(t, w.locks, slotOf(u)).Fence
					second, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", []byte("second")))
					switch want {
					case held:
						w.wantHeld(t, u, first, fence, err)
						return
					case duplicate:
						if err != nil || !second.Duplicate || second.Task.ID != first.ID || second.Replaced != nil {
							t.Errorf("second job: %+v, %v; want the task of the first as a duplicate", second, err)
						}
						return
					}
					if err != nil || second.Duplicate {
						t.Fatalf("second job: %+v, %v", second, err)
					}
					w.wantOnly(t, u, second)
					switch {
					case want == enqueued && second.Replaced != nil:
						t.Errorf("replaced %+v, want nothing replaced", second.Replaced)
					case want == replaced && (second.Replaced == nil || second.Replaced.ID != first.ID || string(second.Replaced.Payload) != "first"):
						t.Errorf("replaced %+v, want the first job", second.Replaced)
					case want == replaced:
						w.wantNoTask(t, first)
					}
				})
			})
		}
	}
}

func until(started bool) string {
	return map[bool]string{false: "until done", true: "until started"}[started]
}

// The error of a duplicate names the job that is in its way.
func TestJobOfADuplicate(t *testing.T) {
	w := newMiniWeb(t)
	u := handoff.Unique{Key: "k"}
	first, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil),
		asynq.Queue("a/b"), asynq.TaskID("x/y"), asynq.ProcessIn(2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil))
	if queue, id, ok := handoff.JobOf(err); !ok || queue != first.Task.Queue || id != first.Task.ID {
		t.Errorf("JobOf(%v) = %q, %q, %v; want %q, %q", err, queue, id, ok, first.Task.Queue, first.Task.ID)
	}
	var e *joblock.Error
	if !errors.As(err, &e) || e.Remaining < 2*time.Hour || e.Remaining > 3*time.Hour {
		t.Errorf("error %v, want from 2 to 3 hours left", err)
	}
	for _, err := range []error{nil, errDown, joblock.ErrHeld, &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Job: "by hand"}} {
		if queue, id, ok := handoff.JobOf(err); ok {
			t.Errorf("JobOf(%v) = %q, %q; want none", err, queue, id)
		}
	}
}

// However long the job is scheduled ahead, the key does not lapse before it is due.
func TestKeyDoesNotLapseUnderAScheduledJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		ahead := testkit.Size(6*time.Hour, 48*time.Hour) // six hours are many reservations, too
		task, later := asynq.NewTask("export", nil), asynq.ProcessIn(ahead)
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, task, later); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ahead)
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, task, later); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("after %s: %v, want ErrHeld", ahead, err)
		}
	})
}

// Nor while it waits in its queue, as long as some process asks: here what the keeper of
// package worker does. asynq's uniqueness is a time to guess.
func TestKeyDoesNotLapseUnderAWaitingJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		task := asynq.NewTask("export", nil)
		if _, err := w.client.Enqueue(task, asynq.Unique(time.Hour)); err != nil {
			t.Fatal(err)
		}
		first, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, task)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(30 * time.Minute)
			reserve := []jobs.Reservation{{Key: "k", Job: envelope.Job(first.Task.Queue, first.Task.ID)}}
			if err := jobs.Reserve(t.Context(), w.locks, reserve...)[0]; err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, task); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("after five hours: %v, want ErrHeld", err)
		}
		if _, err := w.client.Enqueue(task, asynq.Unique(time.Hour)); err != nil {
			t.Errorf("asynq.Unique: %v; it has been repaired, say so in the package comment", err)
		}
	})
}

// An enqueue that asynq refuses leaves no lock behind; with asynq.Unique it does.
func TestTaskIDConflictLeavesNothingBehind(t *testing.T) {
	w := newMiniWeb(t)
	id := asynq.TaskID("report-7")
	if _, err := w.client.Enqueue(asynq.NewTask("export", []byte("other")), id); err != nil {
		t.Fatal(err)
	}
	task := asynq.NewTask("export", nil)
	for _, policy := range []handoff.OnConflict{handoff.Reject, handoff.Skip, handoff.Replace, handoff.KeepLast, handoff.CancelInProgress} {
		u := handoff.Unique{Key: "k", OnConflict: policy}
		if got, err := w.jobs.Enqueue(t.Context(), u, task, id); !errors.Is(err, asynq.ErrTaskIDConflict) || got.Task != nil {
			t.Errorf("%+v, %v; want ErrTaskIDConflict", got, err)
		}
		wantState(t, w.locks, "k", joblock.StateFree)
		wantState(t, w.locks, slotOf(u), joblock.StateFree)
	}
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, task); err != nil {
		t.Errorf("after the conflict: %v", err)
	}

	if _, err := w.client.Enqueue(task, id, asynq.Unique(time.Hour)); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Fatalf("asynq: %v", err)
	}
	if _, err := w.client.Enqueue(task, asynq.Unique(time.Hour)); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("asynq.Unique: %v; it has been repaired, say so in the package comment", err)
	}
}

func TestBadUniqueIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		u    handoff.Unique
		opts []asynq.Option
	}{
		"no key":                  {u: handoff.Unique{}},
		"no key, KeepLast":        {u: handoff.Unique{OnConflict: handoff.KeepLast}},
		"key too long":            {u: handoff.Unique{Key: strings.Repeat("k", driver.MaxKeyBytes+1)}},
		"key too long, KeepLast":  {u: handoff.Unique{Key: strings.Repeat("k", driver.MaxKeyBytes-4), OnConflict: handoff.KeepLast}},
		"the toolkit's key":       {u: handoff.Unique{Key: "k%next"}},
		"another, KeepLast":       {u: handoff.Unique{Key: "k%#1", OnConflict: handoff.KeepLast}},
		"an empty part":           {u: handoff.Unique{Key: joblock.Key("index", "")}},
		"empty part, KeepLast":    {u: handoff.Unique{Key: joblock.Key("index", ""), OnConflict: handoff.KeepLast}},
		"unknown policy":          {u: handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress + 1}},
		"Limit below 0":           {u: handoff.Unique{Key: "k", Limit: -1}},
		"Limit too great":         {u: handoff.Unique{Key: "k", Limit: limit.Max + 1}},
		"Limit with Skip":         {u: handoff.Unique{Key: "k", Limit: 2, OnConflict: handoff.Skip}},
		"Limit until started":     {u: handoff.Unique{Key: "k", Limit: 2, UntilStarted: true}},
		"Limit, key too long":     {u: handoff.Unique{Key: strings.Repeat("k", driver.MaxKeyBytes), Limit: 2}},
		"Limit, the toolkit's":    {u: handoff.Unique{Key: "k%next", Limit: 2}},
		"Limit, an empty part":    {u: handoff.Unique{Key: joblock.Key("index", ""), Limit: 2}},
		"KeepLast until started":  {u: handoff.Unique{Key: "k", OnConflict: handoff.KeepLast, UntilStarted: true}},
		"cancel until started":    {u: handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress, UntilStarted: true}},
		"no key, cancel":          {u: handoff.Unique{OnConflict: handoff.CancelInProgress}},
		"Limit with cancel":       {u: handoff.Unique{Key: "k", Limit: 2, OnConflict: handoff.CancelInProgress}},
		"key too long, cancel":    {u: handoff.Unique{Key: strings.Repeat("k", driver.MaxKeyBytes-4), OnConflict: handoff.CancelInProgress}},
		"asynq's own uniqueness":  {u: handoff.Unique{Key: "k"}, opts: []asynq.Option{asynq.Unique(time.Hour)}},
		"delay beyond all bounds": {u: handoff.Unique{Key: "k"}, opts: []asynq.Option{asynq.ProcessIn(driver.MaxPeriod)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMiniWeb(t)
			w.faults.setDown(errors.New("asked Redis before checking"))
			got, err := w.jobs.Enqueue(t.Context(), tc.u, asynq.NewTask("export", nil), tc.opts...)
			if !errors.Is(err, joblock.ErrInvalid) || got.Task != nil {
				t.Errorf("%+v, %v; want ErrInvalid", got, err)
			}
			for st, err := range w.locks.List(t.Context(), joblock.ListOptions{Ended: true}) {
				t.Errorf("%+v, %v; want no lock", st, err)
			}
		})
	}
}

// A key as long as can be works with every policy that adds nothing to it.
func TestLongestKey(t *testing.T) {
	w := newMiniWeb(t)
	for policy, n := range map[handoff.OnConflict]int{handoff.Replace: driver.MaxKeyBytes, handoff.KeepLast: driver.MaxKeyBytes - 5} {
		u := handoff.Unique{Key: strings.Repeat("k", n), OnConflict: policy}
		if _, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil)); err != nil {
			t.Error(err)
		}
	}
}

func TestTaskKey(t *testing.T) {
	if got, want := handoff.TaskKey(asynq.NewTask("mail:welcome", []byte("7"))),
		"unique:mail%3Awelcome:7902699be42c8a8e46fbbb4501726517"; got != want {
		t.Errorf("TaskKey = %q, want %q: keys must not change between releases", got, want)
	}
	if got := handoff.TaskKey(nil); got != "" {
		t.Errorf("TaskKey(nil) = %q", got)
	}
	same := handoff.TaskKey(asynq.NewTaskWithHeaders("a", nil, map[string]string{"h": "1"}, asynq.Queue("low")))
	if same != handoff.TaskKey(asynq.NewTask("a", []byte{})) {
		t.Error("headers, options or a nil payload make a difference")
	}
	seen := map[string]string{}
	for _, task := range [][2]string{{"a", ""}, {"a", "b"}, {"ab", ""}, {"a:b", ""}, {"a%3Ab", ""}, {"a", ":b"}, {"", "a"}} {
		key := handoff.TaskKey(asynq.NewTask(task[0], []byte(task[1])))
		if other, dup := seen[key]; dup {
			t.Errorf("%q and %q have the same key", task, other)
		}
		if kind, ok := keyspace.TaskType(key); task[0] != "" && (!ok || kind != task[0]) {
			t.Errorf("operators read that %s is of the type %q, not %q", key, kind, task[0])
		}
		seen[key] = task[0] + " " + task[1]
	}
}

// What an enqueue under a Unique writes for the worker.
func TestEnvelopeOfAUniqueJob(t *testing.T) {
	w := newMiniWeb(t)
	for name, tc := range map[string]struct {
		u                                  handoff.Unique
		tokens, untilStart, fromIt, newest []string
	}{
		"until done":    {handoff.Unique{Key: "a"}, []string{"a"}, nil, nil, nil},
		"until started": {handoff.Unique{Key: "b", UntilStarted: true}, []string{"b"}, []string{"b"}, nil, nil},
		"keep last":     {handoff.Unique{Key: "c", OnConflict: handoff.KeepLast}, []string{"c%next", "c"}, []string{"c%next"}, []string{"c"}, []string{"c%next"}},
		"cancel":        {handoff.Unique{Key: "d", OnConflict: handoff.CancelInProgress}, []string{"d%next", "d"}, []string{"d%next"}, []string{"d"}, []string{"d%next"}},
		"replace":       {handoff.Unique{Key: "e", OnConflict: handoff.Replace}, []string{"e"}, nil, nil, []string{"e"}},
		// If such a job is interrupted, it must run again even if a newer job has run meanwhile.
		"replace until started": {handoff.Unique{Key: "f", OnConflict: handoff.Replace, UntilStarted: true}, []string{"f"}, []string{"f"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			// From its own handler, say: what an earlier envelope left must not count.
			headers := map[string]string{"trace": "t-9", envelope.Header: "old"}
			info, err := w.jobs.Enqueue(t.Context(), tc.u, asynq.NewTaskWithHeaders("export", nil, headers))
			if err != nil {
				t.Fatal(err)
			}
			env, ok, err := envelopekit.Read(w.task(t, info.Task.Queue, info.Task.ID).Headers)
			if !ok || err != nil || info.Task.Headers["trace"] != "t-9" {
				t.Fatalf("%v, %v, headers %v", ok, err, info.Task.Headers)
			}
			if want := tc.u.OnConflict == handoff.CancelInProgress; env.Cancel != want {
				t.Errorf("Cancel is %t, want %t", env.Cancel, want)
			}
			for _, list := range []struct {
				what string
				got  []joblock.Token
				want []string
			}{{"tokens", env.Tokens, tc.tokens}, {"until start", env.UntilStart, tc.untilStart}, {"from start", env.FromStart, tc.fromIt}, {"newest", env.Newest, tc.newest}} {
				var got []string
				for _, token := range list.got {
					got = append(got, token.Key())
				}
				if strings.Join(got, " ") != strings.Join(list.want, " ") {
					t.Errorf("%s are of %q, want %q", list.what, got, list.want)
				}
			}
		})
	}
}

// Two calls at once: of all policies one job has the key in the end, and with
// Replace and KeepLast every call succeeds but those that gave up.
func TestManyAtOnce(t *testing.T) {
	for _, policy := range []handoff.OnConflict{handoff.Reject, handoff.Skip, handoff.Replace, handoff.KeepLast, handoff.CancelInProgress} {
		w := newMiniWeb(t)
		u := handoff.Unique{Key: "k", OnConflict: policy}
		const n = 16
		results := make(chan error, n)
		for range n {
			go func() {
				_, err := w.jobs.Enqueue(context.Background(), u, asynq.NewTask("export", nil))
				results <- err
			}()
		}
		ok := 0
		for range n {
			if err := <-results; err == nil {
				ok++
			} else if !errors.Is(err, joblock.ErrHeld) {
				t.Errorf("policy %d: %v", policy, err)
			}
		}
		if policy == handoff.Reject && ok != 1 || ok == 0 {
			t.Errorf("policy %d: %d calls succeeded", policy, ok)
		}
		tasks, err := w.inspector.ListPendingTasks("default")
		if err != nil || len(tasks) != 1 {
			t.Fatalf("policy %d: %d tasks, %v; want one", policy, len(tasks), err)
		}
		w.wantOnly(t, u, handoff.Result{Task: tasks[0]})
	}
}
