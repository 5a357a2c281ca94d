package ops

import (
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A note about a job is on record with its author, and the explanation of the job's key shows it.
func TestNotesAboutAJobAreSeen(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		db := &steerable{fakeAsynq: s.asynq}
		s.cfg.Databases, s.cfg.ExplainActs = []Database{{"jobs", db}}, true
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateRetry})
		s.park("k", "default/1")
		done, err := s.Act(t.Context(), AnnotateJob{Queue: "default", ID: "1", Reason: "the shop calls back at noon"})
		if err != nil || done.Audit == "" || len(db.did) > 0 {
			t.Errorf("%+v, %v, %q was done", done, err, db.did)
		}
		e, err := s.Explain(t.Context(), "k")
		testkit.WantNil(t, "Explain", err)
		if text := strings.Join(e.Text, "\n"); !strings.Contains(text, `annotate job on "default/1" by `+eva.By+" (the shop calls back at noon)") {
			t.Error(text)
		}
		for want, bad := range map[error]AnnotateJob{
			joblock.ErrNotFound: {Queue: "default", ID: "none", Reason: "x"},
			joblock.ErrInvalid:  {Queue: "default", ID: "1"},
		} {
			_, err := s.Act(t.Context(), bad)
			testkit.WantErr(t, err, want)
		}
		if n := len(s.audit.entries); n != 2 {
			t.Errorf("%d entries, want 2", n)
		}
	})
}
