package handoff_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// Behind a Middleware that claims the key, a unique job of the same key would be refused each time because of the request
// itself. It is a 500 whose error names the cure, and not a 429; the log has the error even if the handler drops it.
func TestUniqueJobOfAKeyThatTheRequestHas(t *testing.T) {
	for name, claim := range map[string]handoff.Claim{
		"lock":   {Key: "k"},
		"permit": {Key: "k", Limit: 1},
		"two":    {Key: "a", Keys: []string{"k"}},
	} {
		for policy, u := range map[string]handoff.Unique{
			"Reject":       {Key: "k"},
			"Skip":         {Key: "k", OnConflict: handoff.Skip},
			"Replace":      {Key: "k", OnConflict: handoff.Replace},
			"UntilStarted": {Key: "k", UntilStarted: true},
			"Limit":        {Key: "k", Limit: 1},
		} {
			if (claim.Limit > 0) != (u.Limit > 0) {
				continue // they do not meet
			}
			for _, many := range []bool{false, true} {
				if many && u.Limit > 0 {
					continue
				}
				t.Run(name+", "+policy, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newMiniWeb(t)
						h := handoff.Middleware(w.locks, func(*http.Request) (handoff.Claim, error) { return claim, nil })(
							http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
								task := asynq.NewTask("export", nil)
								_, err := w.jobs.Enqueue(r.Context(), u, task)
								if many {
									var got []handoff.Result
									if got, err = w.jobs.EnqueueMany(r.Context(), []handoff.Item{{Task: task, How: u}}); err == nil {
										err = got[0].Err
									}
								}
								if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), "hand the lock over with handoff.Carry") {
									t.Errorf("%v, want an ErrInvalid that names the cure", err)
								}
								handoff.Refuse(rw, r, err)
							}))
						rw := httptest.NewRecorder()
						h.ServeHTTP(rw, httptest.NewRequest(http.MethodPost, "/", nil))
						if rw.Code != http.StatusInternalServerError {
							t.Errorf("the answer is %d, want 500", rw.Code)
						}
						if !strings.Contains(w.log.String(), "hand the lock over with handoff.Carry") {
							t.Errorf("the log says nothing: %s", w.log.String())
						}
						if n := w.tasks(t); n != 0 {
							t.Errorf("%d tasks, want none", n)
						}
					})
				})
			}
		}
	}
}

// KeepLast has the job wait for the request, and a sequence has a line: both get the key afterwards. So does any policy
// once the request has released its lock. With several permits of a key, the request has one and the job another.
func TestJobThatWaitsForTheRequestThatEnqueuesIt(t *testing.T) {
	w := newMiniWeb(t)
	err := w.locks.Do(t.Context(), "k", func(ctx context.Context) error {
		if _, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}, asynq.NewTask("export", nil)); err != nil {
			t.Errorf("KeepLast: %v", err)
		}
		got, err := w.jobs.Enqueue(ctx, handoff.Sequence{Key: "k"}, asynq.NewTask("export", nil))
		if err != nil || !got.Waits {
			t.Errorf("a sequence: %+v, %v; want a job that waits", got, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = w.locks.Do(t.Context(), "m", func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		if err := lock.Release(ctx); err != nil {
			t.Error(err)
		}
		_, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: "m"}, asynq.NewTask("export", nil))
		return err
	})
	if err != nil {
		t.Errorf("after the release: %v", err)
	}
	err = limit.New(w.locks, 2).Do(t.Context(), "n", func(ctx context.Context) error {
		_, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: "n", Limit: 2}, asynq.NewTask("export", nil))
		return err
	})
	if err != nil {
		t.Errorf("with another permit: %v", err)
	}
}
