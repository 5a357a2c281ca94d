package ops

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// Explain says who has forced a key and who has deleted a task, when and why, as long as the record of actions knows.
func TestExplainShowsWhatOperatorsDid(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		desk := *s.Desk
		desk.cfg.ExplainActs = true
		text := func(key string) string {
			t.Helper()
			e, err := desk.Explain(t.Context(), key)
			testkit.WantNil(t, "Explain", err)
			checkSentences(t, e)
			return strings.Join(e.Text, "\n")
		}
		wants := func(key string, want ...string) {
			t.Helper()
			got := text(key)
			for _, w := range want {
				if !strings.Contains(got, w) {
					t.Errorf("%s: no %q in:\n%s", key, w, got)
				}
			}
		}
		force := func(key string) {
			t.Helper()
			_, err := s.Act(t.Context(), ForceRelease{Key: key, Fence: s.lock(key).Fence, Reason: eva.Reason})
			testkit.WantNil(t, "Force", err)
		}
		s.acquire("forced", joblock.Retain(time.Hour))
		force("forced")
		_, err := s.As("bob", "").Act(t.Context(), ForceRelease{Key: "forced", Fence: 1, Reason: "too late"})
		testkit.WantErr(t, err, joblock.ErrNotFound)
		time.Sleep(4 * time.Minute)
		wants("forced", "and lost it when an operator freed it at", "(4 min ago) by eva@laptop (hangs since noon).")
		if got := text("forced"); strings.Contains(got, "bob") || strings.Contains(got, "What operators did") {
			t.Errorf("what changed nothing, or was said before, is shown: %s", got)
		}
		s.acquire("forced")
		wants("forced", "has had the lock since", "What operators did: ", "(4 min ago): force release by eva@laptop (hangs since noon).")

		s.acquire("brief")
		force("brief")
		time.Sleep(10 * time.Minute) // the store forgets the record
		wants("brief", "no earlier holder is remembered", "force release by eva@laptop (hangs since noon).")

		// What frees a key only if no work runs is nowhere called by the name of what frees it in any case.
		s.park("idle", "default/9")
		ask := ForceRelease{Key: "idle", Fence: s.lock("idle").Fence + 1, IfIdle: true, Reason: eva.Reason}
		_, err = s.Act(t.Context(), ask)
		testkit.WantErr(t, err, joblock.ErrNotOwner)
		ask.Fence--
		_, err = s.Act(t.Context(), ask)
		testkit.WantNil(t, "Force", err)
		wants("idle", "lost it when an operator freed it at", "by eva@laptop (hangs since noon).")
		for e, err := range Actions(s.Audit(t.Context(), AuditQuery{Key: "idle"})) {
			if err != nil || e.Key == "idle" && (e.Action != ActFreeIdle || strings.Contains(e.Error, "force")) {
				t.Errorf("%+v, %v", e, err)
			}
		}
		s.park("idle", "default/9")
		wants("idle", "free if idle by eva@laptop (hangs since noon).")

		s.park("job", "default/1")
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateArchived})
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "2", Type: "t", State: asynq.TaskStateArchived})
		_, err = s.Act(t.Context(), DropTask{Queue: "default", ID: "1", Reason: eva.Reason})
		testkit.WantErr(t, err, joblock.ErrInvalid) // this database cannot delete
		wants("job", "has failed for good")
		if got := text("job"); strings.Contains(got, "eva") {
			t.Errorf("what was refused is shown: %s", got)
		}
		s.audit.entries = append(s.audit.entries, AuditEntry{ID: "a", At: Time{time.Now()}, Action: ActDeleteTask, Key: "default/1", By: "eva", From: "laptop", Reason: "sent by hand"})
		delete(s.asynq.tasks, "default/1")
		time.Sleep(time.Minute)
		wants("job", "asynq does not have its task: it was deleted at", "(1 min ago) by eva (sent by hand), and whether it took effect is not known.")
		testkit.WantNil(t, "Release", Force(t.Context(), s.locks, joblock.Status{Key: "job", Fence: s.lock("job").Fence}, false, "x"))
		wants("job", `delete task on "default/1" by eva (sent by hand)`)

		_, err = limit.New(s.locks, 2).TryAcquire(t.Context(), "geo")
		testkit.WantNil(t, "TryAcquire", err)
		for l := range s.Locks(t.Context(), LocksQuery{Prefix: "geo"}) {
			force(l.Key)
		}
		wants("geo", `force release on "geo%#`)

		e, err := desk.Explain(t.Context(), "forced")
		testkit.WantNil(t, "Explain", err)
		out, err := json.Marshal(e.Acts)
		if err != nil || len(e.Acts) != 1 || strings.Contains(string(out), "before") || strings.Contains(string(out), `"from"`) {
			t.Errorf("%s, %v", out, err)
		}
		e, err = s.Explain(t.Context(), "forced")
		if err != nil || len(e.Acts) != 0 || strings.Contains(strings.Join(e.Text, " "), "eva") {
			t.Errorf("without ExplainActs: %+v, %v", e, err)
		}
	})
}

// An explanation says if the record of actions could not be read. For those who may not read it, only where the record
// could say something.
func TestExplainWithoutTheRecordOfActions(t *testing.T) {
	away, denied := errors.New("connection refused"), errors.New("NOPERM no rights")
	gone := lockIn(joblock.StateParked, "q/1", time.Minute)
	gone.Task = &Task{State: TaskAbsent, Queue: "q", ID: "1"}
	forced := Lock{Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}, Ended: driver.EndedForced, FreedBy: FreedByForce, EndedAt: Time{noon}}
	for name, c := range map[string]struct {
		lock Lock
		err  error
		says bool
	}{
		"held":            {lockIn(joblock.StateHeld, "", time.Minute), nil, false},
		"held, away":      {lockIn(joblock.StateHeld, "", time.Minute), away, true},
		"held, denied":    {lockIn(joblock.StateHeld, "", time.Minute), denied, false},
		"forced, denied":  {forced, denied, true},
		"deleted, denied": {gone, denied, true},
	} {
		e := explain(c.lock, Keeper{}, true, nil, c.err)
		checkSentences(t, e)
		if says := strings.Contains(strings.Join(e.Text, " "), "What operators have done could not be read: "); says != c.says {
			t.Errorf("%s: %q; want it shown %t", name, e.Text, c.says)
		}
	}
}
