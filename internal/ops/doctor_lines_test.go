package ops

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/testkit"
)

// The doctor sees lines that only grow: behind a job that halts its sequence, and long ones.
func TestDoctorSeesLinesThatGrow(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		ctx := t.Context()
		client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
		testkit.WantNil(t, "NewClient", err)
		id := 0
		enqueue := func(s handoff.Sequence, n int) {
			t.Helper()
			for range n {
				id++
				_, err := client.Enqueue(ctx, s, asynq.NewTask("export", nil, asynq.TaskID(fmt.Sprintf("%s-%d", s.Key, id))))
				testkit.WantNil(t, "Enqueue", err)
			}
		}
		archive := func(key string) {
			t.Helper()
			for s, err := range p.Sequences(ctx, SequencesQuery{Prefix: key}) {
				testkit.WantNil(t, "Sequences", err)
				testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", strings.TrimPrefix(s.Job, "default/")))
			}
		}
		wants := func(texts ...string) {
			t.Helper()
			all, err := p.Doctor(ctx)
			testkit.WantNil(t, "Doctor", err)
			var found []string
			for _, f := range all.Findings {
				if f.Subject == "sequences" {
					found = append(found, f.Found)
					if f.Severity != Warning || f.Means == "" || !strings.Contains(f.Fix, "joblock explain -- ") {
						t.Errorf("%+v", f)
					}
				}
			}
			if len(found) != len(texts) {
				t.Fatalf("found %q, want %q", found, texts)
			}
			for i, text := range texts {
				if !strings.Contains(found[i], text) {
					t.Errorf("found %q, want %q", found[i], text)
				}
			}
		}
		halting := func(key string) handoff.Sequence { return handoff.Sequence{Key: key, HaltOnFailure: true} }
		enqueue(halting("digest"), 1)
		enqueue(halting("ledger"), 3)
		wants()
		archive("digest") // and no job waits
		time.Sleep(time.Minute)
		wants()
		enqueue(halting("digest"), 1)
		wants(`the sequence "digest" has halted: its job default/digest-`)
		enqueue(halting("digest"), 58) // a cron job enqueues one at each tick
		wants("and 59 jobs wait behind it")
		archive("ledger")
		time.Sleep(time.Minute)
		wants("and 59 jobs wait behind it; 1 other has halted, and 61 jobs wait in all")
		enqueue(handoff.Sequence{Key: "imports"}, longLine+1)
		wants("and 59 jobs wait")
		enqueue(handoff.Sequence{Key: "imports"}, 1)
		wants("and 59 jobs wait", `101 wait for "imports"`)

		limited, err := p.Doctor(SeenBy(ctx, Viewer{Key: func(key string) bool { return key == "imports" }}))
		testkit.WantNil(t, "Doctor for a viewer of some keys", err)
		for _, f := range limited.Findings {
			if f.Subject == "sequences" || strings.Contains(f.Found, "digest") {
				t.Errorf("a viewer of some keys is shown %+v", f)
			}
		}
		testkit.WantNil(t, "Close", client.Close(ctx))
	})
}
