package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// wantRefusalOf checks what Refuse answers to a request whose handler got err.
func wantRefusalOf[C ~string](t *testing.T, r *http.Request, err error, status int, code C, retryAfter string) body {
	t.Helper()
	w := httptest.NewRecorder()
	handoff.Refuse(w, r, err)
	return wantRefusal(t, w, status, code, retryAfter)
}

func TestRefuse(t *testing.T) {
	w := newMiniWeb(t)
	ctx := t.Context()
	task := asynq.NewTask("export", nil)
	if _, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: "k"}, task); err != nil {
		t.Fatal(err)
	}
	_, held := w.jobs.Enqueue(ctx, handoff.Unique{Key: "k"}, task)
	own := func() error {
		_, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: "own"}, task, asynq.TaskID("own"))
		return err
	}
	if err := own(); err != nil {
		t.Fatal(err)
	}
	ownTask := own()
	_, noKey := w.jobs.Enqueue(ctx, handoff.Unique{}, task)
	_, badKey := w.jobs.Enqueue(ctx, handoff.Unique{Key: joblock.Key("export", "")}, task)
	_, noType := w.jobs.Enqueue(ctx, handoff.Unique{Key: "l"}, asynq.NewTask("", nil))
	_, noLock := w.jobs.Enqueue(ctx, handoff.Carry(nil), task)
	lost := acquire(t, w.locks, "lost")
	if err := w.locks.ForceRelease(ctx, "lost"); err != nil {
		t.Fatal(err)
	}
	_ = lost.Renew(ctx) // which finds out
	_, wasLost := w.jobs.Enqueue(ctx, handoff.Carry(lost), task)
	for name, tc := range map[string]struct {
		err        error
		status     int
		code       string
		retryAfter string
	}{
		"held":                {held, 429, joblock.CodeOf(joblock.ErrHeld), someSeconds},
		"held, wrapped":       {fmt.Errorf("start the export: %w", held), 429, joblock.CodeOf(joblock.ErrHeld), someSeconds},
		"busy":                {&joblock.Error{Code: joblock.CodeOf(joblock.ErrBusy), Remaining: 2 * time.Second}, 429, joblock.CodeOf(joblock.ErrBusy), "2"},
		"timeout":             {joblock.ErrTimeout, 429, joblock.CodeOf(joblock.ErrTimeout), "1"},
		"unavailable":         {&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Err: errDown}, 503, joblock.CodeOf(joblock.ErrUnavailable), "1"},
		"closed":              {joblock.ErrClosed, 503, joblock.CodeOf(joblock.ErrClosed), "1"},
		"not sent":            {fmt.Errorf("%w: %w", handoff.ErrNotSent, errDown), 503, joblock.CodeOf(joblock.ErrTimeout), "1"},
		"lost":                {wasLost, 503, joblock.CodeOf(joblock.ErrLost), "1"},
		"bad key":             {badKey, 400, joblock.CodeOf(joblock.ErrInvalid), ""},
		"no key":              {noKey, 500, claimFailed, ""},
		"a task with no type": {noType, 500, claimFailed, ""},
		"no lock":             {noLock, 500, claimFailed, ""},
		"another's":           {errors.New("the database is on fire"), 500, claimFailed, ""},
		"task ID conflict":    {fmt.Errorf("start the export: %w", asynq.ErrTaskIDConflict), 409, "TASK_EXISTS", ""},
		"duplicate task":      {asynq.ErrDuplicateTask, 409, "TASK_EXISTS", ""},
		"its own task":        {ownTask, 409, "TASK_EXISTS", ""},
		"none at all":         {nil, 500, claimFailed, ""},
		"no refusal":          {(*handoff.Refusal)(nil), 500, claimFailed, ""},
		"no refusal, wrapped": {fmt.Errorf("start the export: %w", (*handoff.Refusal)(nil)), 500, claimFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log testkit.Log
			h := (&handoff.Guard{Locks: w.locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{NoLock: true}))(http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) { handoff.Refuse(w, r, tc.err) }))
			wantRefusal(t, serve(h), tc.status, tc.code, tc.retryAfter)
			switch tc.status {
			case 500:
				wantOneEntry(t, &log, "ERROR", "")
			case 503, 400:
				wantOneEntry(t, &log, "WARN", "")
			default:
				if log.String() != "" {
					t.Errorf("log is %q", log.String())
				}
			}
			if tc.err != nil && tc.status == 429 { // without a Middleware around it
				wantRefusalOf(t, httptest.NewRequest(http.MethodPost, "/", nil), tc.err, tc.status, tc.code, tc.retryAfter)
			}
		})
	}
}

// A handler behind a Middleware refuses as that does.
func TestRefuseAnswersAsTheMiddleware(t *testing.T) {
	locks := newMemLocker(t)
	held := &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: "k", Remaining: time.Hour}
	outer := (&handoff.Guard{Locks: locks, OnRefusal: func(http.ResponseWriter, *http.Request, handoff.Refusal) { t.Error("the outer one was asked") }}).Middleware(fixed(handoff.Claim{Key: "a"}))
	inner := (&handoff.Guard{Locks: locks, MaxRetryAfter: 7 * time.Second, OnRefusal: func(w http.ResponseWriter, _ *http.Request, f handoff.Refusal) {
		if f.Err != held || f.RetryAfter != 7*time.Second {
			t.Errorf("refusal is %+v", f)
		}
		w.WriteHeader(http.StatusConflict)
	}}).Middleware(fixed(handoff.Claim{Key: "b"}))
	w := serve(outer(inner(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handoff.Refuse(w, r, held) }))))
	if w.Code != http.StatusConflict {
		t.Errorf("status is %d, want that of OnRefusal", w.Code)
	}
}

// A handler that calls Guard.Do itself answers its error with Guard.Refuse as OnRefusal says, whether the Guard has refused
// or the function has failed. A refusal that the Guard has logged is not logged again.
func TestGuardRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		away := newStore()
		away.Set(faultstore.Fault{Err: errDown}, faultstore.Acquire)
		var got []handoff.Refusal
		guard := &handoff.Guard{Locks: newLocker(t, away), Logger: log.JSON(), MaxRetryAfter: 7 * time.Second, OnRefusal: func(w http.ResponseWriter, _ *http.Request, f handoff.Refusal) {
			got = append(got, f)
			w.WriteHeader(http.StatusTeapot)
		}}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		refused := guard.Do(r.Context(), handoff.Claim{Key: "k"}, func(context.Context) error { t.Error("called"); return nil })
		if !errors.Is(refused, joblock.ErrUnavailable) {
			t.Errorf("the error %v does not match ErrUnavailable", refused)
		}
		failed := guard.Do(r.Context(), handoff.Claim{NoLock: true}, func(context.Context) error {
			return &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: "k", Remaining: time.Hour}
		})
		for i, err := range []error{refused, fmt.Errorf("start the export: %w", refused), failed} {
			w := httptest.NewRecorder()
			guard.Refuse(w, r, err)
			if w.Code != http.StatusTeapot || len(got) != i+1 {
				t.Fatalf("error %d: status is %d after %d calls, want that of OnRefusal", i, w.Code, len(got))
			}
		}
		wantOneEntry(t, &log, "WARN", "")
		if got[0].Status != 503 || got[1] != got[0] {
			t.Errorf("refusals are %+v and %+v, want the one of the Guard twice", got[0], got[1])
		}
		if f := got[2]; f.Status != 429 || f.RetryAfter != 7*time.Second {
			t.Errorf("of the function's error the refusal is %+v", f)
		}
		if f := handoff.RefusalOf(t.Context(), refused); f.Status != 503 || *f != got[0] {
			t.Errorf("RefusalOf returns %+v, want the one of the Guard", f)
		}
		w := httptest.NewRecorder()
		(*handoff.Guard)(nil).Refuse(w, r, refused)
		wantRefusal(t, w, http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrUnavailable), "1")
		wantRefusalOf(t, r, refused, http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrUnavailable), "1")
	})
}

// Whatever is the matter, a client learns a code and when to come again. The key may
// be a secret (an HMAC is to keep it from being guessed), and so may be who has it.
func TestAnswersRevealNoMoreThanACode(t *testing.T) {
	full := joblock.Error{
		Op: "acquire", Key: joblock.Secret("0123456789abcdef").Key("export", "acct-7"), Holder: "host-1:4711", Job: "default/job-1", Remaining: time.Second,
		Ended: driver.EndedForced, Reason: "reason-1", Detail: "detail-1", Err: errors.New("10.0.0.1:6379: refused"),
	}
	secrets := []string{full.Key, full.Holder, full.Job, "job-1", full.Reason, full.Detail, "10.0.0.1", "acct-7"}
	for _, code := range []string{
		joblock.CodeOf(joblock.ErrHeld), joblock.CodeOf(joblock.ErrTimeout), joblock.CodeOf(joblock.ErrNotFound), joblock.CodeOf(joblock.ErrNotOwner), joblock.CodeOf(joblock.ErrAlreadyReleased),
		joblock.CodeOf(joblock.ErrBusy), joblock.CodeOf(joblock.ErrLost), joblock.CodeOf(joblock.ErrUnavailable), joblock.CodeOf(joblock.ErrInvalid), joblock.CodeOf(joblock.ErrClosed), "", "OTHER",
	} {
		e := full
		e.Code = code
		var text string
		claim := func(*http.Request) (handoff.Claim, error) { return handoff.Claim{}, &e }
		byMiddleware := serve((&handoff.Guard{Locks: newMemLocker(t), Logger: silent}).Middleware(claim)(accept))
		byHandler := serve((&handoff.Guard{Locks: newMemLocker(t), Logger: silent}).Middleware(fixed(handoff.Claim{NoLock: true}))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				handoff.Refuse(w, r, &e)
				text = handoff.RefusalOf(r.Context(), &e).Error() // with which many a handler answers
			})))
		for _, w := range []*httptest.ResponseRecorder{byMiddleware, byHandler} {
			answer := fmt.Sprint(w.Header(), w.Body, text)
			for _, secret := range secrets {
				if strings.Contains(answer, secret) {
					t.Errorf("%q: the answer has %q in it: %s", code, secret, answer)
				}
			}
		}
	}
}

// What was forgotten is named where it shows.
func TestEnqueueSaysWhatWasForgotten(t *testing.T) {
	w := newMiniWeb(t)
	task := asynq.NewTask("export", nil)
	says := func(err error, text string, want error) {
		t.Helper()
		if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("error is %v, want %v that says %q", err, want, text)
		}
	}
	var late *joblock.Lock
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		late, _ = joblock.FromContext(r.Context())
		if late == nil {
			_, err := w.jobs.Enqueue(r.Context(), handoff.Carry(late), task)
			says(err, "handoff.Middleware", joblock.ErrInvalid)
		}
	})
	serve(handler)
	serve(handoff.Middleware(w.locks, fixed(handoff.Claim{Key: "k"}))(handler))
	_, err := w.jobs.Enqueue(t.Context(), handoff.Carry(late), task)
	says(err, "handoff.Keep", joblock.ErrAlreadyReleased)
	if n := w.tasks(t); n != 0 {
		t.Errorf("%d tasks were enqueued", n)
	}
}
