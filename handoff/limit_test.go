package handoff_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/limit"
)

// freePermit ends the job that has a permit, as its worker does.
func (w *web) freePermit(t *testing.T, key, id string) {
	t.Helper()
	at, err := limit.New(w.locks, 2).Status(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, permit := range at.Permits {
		if permit.Job == envelope.Job("default", id) {
			if err := jobs.Free(context.Background(), w.locks, jobs.Release{Key: permit.Key, Job: permit.Job})[0]; err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("job %s has no permit of %s: %+v", id, key, at)
}

// Two jobs of a key wait and run at a time, and a third one is refused, however it is enqueued.
func TestUniqueWithALimit(t *testing.T) {
	w := newMiniWeb(t)
	ctx := t.Context()
	enqueue := func(opts ...asynq.Option) (handoff.Result, error) {
		return w.jobs.Enqueue(ctx, handoff.Unique{Key: "k", Limit: 2}, asynq.NewTask("export", nil), opts...)
	}
	first, err := enqueue()
	if err != nil {
		t.Fatal(err)
	}
	// A try that fails leaves the second permit free.
	if _, err := enqueue(asynq.TaskID(first.Task.ID)); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Errorf("the same TaskID: %v, want ErrTaskIDConflict", err)
	}
	second, err := enqueue()
	if err != nil {
		t.Fatal(err)
	}
	_, err = enqueue()
	if _, id, ok := handoff.JobOf(err); !errors.Is(err, joblock.ErrHeld) || !ok || id != first.Task.ID && id != second.Task.ID {
		t.Errorf("a third job: %v of job %q, want ErrHeld and one of the two", err, id)
	}
	w.freePermit(t, "k", first.Task.ID)
	if _, err := enqueue(); err != nil {
		t.Errorf("when the first job is done: %v", err)
	}

	results, err := w.jobs.EnqueueMany(ctx, []handoff.Item{{Task: asynq.NewTask("export", nil), How: handoff.Unique{Key: "l", Limit: 2}}})
	if err != nil || !errors.Is(results[0].Err, joblock.ErrInvalid) {
		t.Errorf("EnqueueMany with a Limit: %+v, %v, want ErrInvalid", results, err)
	}
}

// A permit comes back if it is certain that there is no job, and stays reserved if that is unknown.
func TestThePermitOfAnEnqueueThatFails(t *testing.T) {
	w := newMiniWeb(t)
	u := handoff.Unique{Key: "k", Limit: 1}
	w.faults.setDown(errors.New("away"))
	if _, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrUnavailable) {
		t.Errorf("asynq's Redis is away: %v, want ErrUnavailable", err)
	}
	if _, err := limit.New(w.locks, 1).TryAcquire(t.Context(), "k"); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("while it is unknown whether there is a job: %v, want ErrHeld", err)
	}
}

// Two requests have a key at a time, and hand their permits over to jobs.
func TestClaimWithALimit(t *testing.T) {
	w := newMiniWeb(t)
	guard := &handoff.Guard{Locks: w.locks}
	claim := handoff.Claim{Key: "a", Keys: []string{"b"}, Limit: 2}
	var ids []string
	serve := func(ctx context.Context) error {
		locks := joblock.LocksFromContext(ctx)
		if len(locks) != 2 {
			t.Fatalf("%d locks, want 2", len(locks))
		}
		info, err := taskOf(w.jobs.Enqueue(ctx, handoff.Carry(locks...), asynq.NewTask("export", nil)))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.ID)
		return nil
	}
	for range 2 {
		if err := guard.Do(t.Context(), claim, serve); err != nil {
			t.Fatal(errors.Unwrap(err))
		}
	}
	if third := wantRefusedBy(t, guard, claim); third.Status != 429 || third.RetryAfter == 0 {
		t.Errorf("a third request: %+v, want 429", third)
	}
	if other := wantRefusedBy(t, guard, handoff.Claim{Key: "b", Limit: 2}); other.Status != 429 {
		t.Errorf("a request for the second key: %+v, want 429", other)
	}
	w.freePermit(t, "a", ids[0])
	w.freePermit(t, "b", ids[0])
	for range 3 { // without an enqueue the permits are free after each request
		if err := guard.Do(t.Context(), claim, func(context.Context) error { return nil }); err != nil {
			t.Errorf("when the first job is done: %v", errors.Unwrap(err))
		}
	}
	for name, bad := range map[string]handoff.Claim{
		"below 0":   {Key: "a", Limit: -1},
		"too great": {Key: "a", Limit: limit.Max + 1},
		"NoLock":    {NoLock: true, Limit: 2},
	} {
		if refusal := wantRefusedBy(t, guard, bad); refusal.Status != 500 || !errors.Is(refusal.Err, joblock.ErrInvalid) {
			t.Errorf("%s: %+v, want 500", name, refusal)
		}
	}
}
