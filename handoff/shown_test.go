package handoff_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

// What is returned of a task gets logged. The owner tokens in its header are good for its
// locks.
func TestReturnedTasksShowNoToken(t *testing.T) {
	w := newMiniWeb(t)
	task := asynq.NewTaskWithHeaders("export", []byte("p"), map[string]string{"trace": "t-9"})
	lock := acquire(t, w.locks, "one")
	returned := map[string]any{}
	var err error
	if returned["Enqueue"], err = taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(lock), task)); err != nil {
		t.Fatal(err)
	}
	if returned["two locks"], err = taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(acquire(t, w.locks, "two"), acquire(t, w.locks, "three")), task)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		u    handoff.Unique
	}{
		{"Unique", handoff.Unique{Key: "u"}},
		{"a duplicate", handoff.Unique{Key: "u", OnConflict: handoff.Skip}},
		{"a replaced task", handoff.Unique{Key: "u", OnConflict: handoff.Replace}},
	} {
		got, err := w.jobs.Enqueue(t.Context(), c.u, task)
		if err != nil {
			t.Fatal(err)
		}
		if got.Task.Headers["trace"] != "t-9" || (got.Replaced != nil) != (c.what == "a replaced task") || got.Duplicate != (c.what == "a duplicate") {
			t.Errorf("%s: %+v", c.what, got)
		}
		returned[c.what], returned[c.what+", its Replaced"] = got, got.Replaced
	}
	var secrets []string
	pending, err := w.inspector.ListPendingTasks("default")
	if err != nil || len(pending) != 3 {
		t.Fatalf("%d tasks, %v", len(pending), err)
	}
	for _, info := range pending {
		env, ok, err := envelopekit.Read(w.task(t, info.Queue, info.ID).Headers)
		if !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		for _, token := range env.Tokens {
			text, err := token.MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			secrets = append(secrets, string(text), core.Token(token).Owner())
		}
	}
	secrets = append(secrets, "tokens", " - - ", envelope.Header+":", envelope.Header+"\"")
	for what, got := range returned {
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("enqueued", "task", got)
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		for how, shown := range map[string]string{
			"%v": fmt.Sprintf("%v", got), "%+v": fmt.Sprintf("%+v", got), "%#v": fmt.Sprintf("%#v", got), "JSON": string(text), "slog": log.String(),
		} {
			for _, secret := range secrets {
				if strings.Contains(shown, secret) {
					t.Errorf("%s as %s shows %q: %s", what, how, secret, shown)
				}
			}
		}
	}
}

// What the task carries is sealed. Without a key for that nothing has happened yet.
func TestEnqueueWithoutSealKeysHasDoneNothing(t *testing.T) {
	w := newMiniWeb(t)
	w.store.Set(faultstore.Fault{Err: errDown}, faultstore.SealKeys)
	lock := acquire(t, w.locks, "k")
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil)); joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrUnavailable) {
		t.Errorf("Enqueue: %v, want ErrUnavailable", err)
	}
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "u"}, asynq.NewTask("export", nil)); joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrUnavailable) {
		t.Errorf("Unique: %v, want ErrUnavailable", err)
	}
	if n := w.tasks(t); n != 0 {
		t.Errorf("%d tasks", n)
	}
	wantState(t, w.locks, "u", joblock.StateFree)
	w.wantWithCaller(t, lock)

}
