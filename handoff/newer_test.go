package handoff_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
)

// age gives a task a header as a newer build would write it: with the right seal, and of another version.
func (w *web) age(t *testing.T, info *asynq.TaskInfo) {
	t.Helper()
	ctx := context.Background()
	old := w.task(t, info.Queue, info.ID).Headers[envelope.Header]
	text, err := seal.Text(old)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := (*core.Locker)(w.locks).Ring().Seal(ctx, "2"+text[1:])
	if err != nil {
		t.Fatal(err)
	}
	name := "asynq:{" + info.Queue + "}:t:" + info.ID
	msg, err := w.rdb.HGet(ctx, name, "msg").Bytes()
	if err != nil || bytes.Count(msg, []byte(old)) != 1 || len(old) != len(newer) {
		t.Fatalf("the header cannot be replaced: %v", err)
	}
	if err := w.rdb.HSet(ctx, name, "msg", bytes.Replace(msg, []byte(old), []byte(newer), 1)).Err(); err != nil {
		t.Fatal(err)
	}
}

// In a deploy an old web process meets jobs that a newer one has enqueued. It cannot read what they carry, so it neither
// replaces such a job, nor takes it for a duplicate, nor frees its key: the job may halt a sequence.
func TestJobsOfANewerBuildAreLeftAlone(t *testing.T) {
	for _, policy := range []handoff.OnConflict{handoff.Reject, handoff.Skip, handoff.Replace, handoff.KeepLast, handoff.CancelInProgress} {
		for _, over := range []bool{false, true} {
			w := newMiniWeb(t)
			u := handoff.Unique{Key: "k", OnConflict: policy}
			first, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil))
			if err != nil {
				t.Fatal(err)
			}
			w.age(t, first.Task)
			if over {
				if err := w.inspector.ArchiveTask(first.Task.Queue, first.Task.ID); err != nil {
					t.Fatal(err)
				}
			}
			state, waiting := w.task(t, first.Task.Queue, first.Task.ID).State, w.tasks(t)
			second, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil))
			if !errors.Is(err, joblock.ErrHeld) || second.Task != nil {
				t.Errorf("policy %d, over %t: %+v, %v, want ErrHeld", policy, over, second, err)
			}
			if newer := (*envelope.Unreadable)(nil); policy != handoff.Reject && !errors.As(err, &newer) {
				t.Errorf("policy %d, over %t: the error %q does not say why", policy, over, err)
			}
			if now := w.task(t, first.Task.Queue, first.Task.ID); now.State != state || w.tasks(t) != waiting {
				t.Errorf("policy %d, over %t: the task is %s, was %s; %d tasks wait, were %d", policy, over, now.State, state, w.tasks(t), waiting)
			}
			key := "k"
			if policy == handoff.KeepLast || policy == handoff.CancelInProgress {
				key += "%next"
			}
			if st := wantState(t, w.locks, key, joblock.StateParked); st.Job != first.Task.Queue+"/"+first.Task.ID {
				t.Errorf("policy %d, over %t: the key is that of %q", policy, over, st.Job)
			}
		}
	}
}
