package moving

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// UniqueAfter takes the place of UniqueBefore.
func UniqueAfter(ctx context.Context, jobs *handoff.Client, task *asynq.Task) error {
	_, err := jobs.Enqueue(ctx, handoff.Unique{Key: handoff.TaskKey(task), OnConflict: handoff.Skip}, task)
	return err
}

// RedislockAfter takes the place of RedislockBefore: Do waits, renews the lock, and handles its loss.
func RedislockAfter(ctx context.Context, locks *joblock.Locker, key string, work Work) error {
	return locks.Do(ctx, key, work, joblock.MaxWait(5*time.Second))
}

// RedsyncAfter takes the place of RedsyncBefore: the lease is short, and is renewed while the work goes on.
func RedsyncAfter(ctx context.Context, locks *joblock.Locker, key string, work Work) error {
	return locks.Do(ctx, key, work)
}

// SetNXAfter takes the place of SetNXBefore: it does not wait, and a crash keeps others out for 30 s.
func SetNXAfter(ctx context.Context, locks *joblock.Locker, key string, work Work) error {
	err := locks.Do(ctx, key, work, joblock.MaxWait(0))
	if errors.Is(err, joblock.ErrHeld) {
		return ErrBusy
	}
	return err
}

// HandOverAfter takes the place of HandOverBefore and ReleaseBefore: the worker's middleware does the rest.
func HandOverAfter(ctx context.Context, locks *joblock.Locker, jobs *handoff.Client, key string) error {
	lock, err := locks.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx)) // only if there is no job
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	_, err = jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask("export", []byte(key), asynq.MaxRetry(5)))
	return err
}
