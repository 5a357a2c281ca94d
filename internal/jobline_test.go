package internal_test

import (
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
)

// These texts are in asynq's Redis, and processes of other versions read them: a change of one breaks rolling
// deploys.
func TestTextsThatOtherVersionsRead(t *testing.T) {
	for got, want := range map[string]string{
		jobline.WaitText:    "the job waits for its turn",
		jobline.EarlyText:   "the job's turn has come before its time",
		jobline.ArchiveText: "worker: snoozed without charge, by way of the archive: ",
		jobline.SpentText:   "worker: no retries left: ",
	} {
		if got != want {
			t.Errorf("the text is %q, and was %q in v0.1", got, want)
		}
	}
	// As v0.1 has written them.
	archived := &asynq.TaskInfo{State: asynq.TaskStateArchived, LastErr: "traced: worker: snoozed without charge, by way of the archive: " +
		`joblock: acquire "k": held by another (host:1), 3s left`}
	if !jobline.InArchive(archived) {
		t.Errorf("%q counts as a failure", archived.LastErr)
	}
	waits := &asynq.TaskInfo{State: asynq.TaskStateRetry, LastErr: `worker: snoozed without charge: the job waits for its turn in the line of key "k"`}
	if !jobline.Waits(&envelope.Sequence{Waits: true}, waits) {
		t.Errorf("%q counts as no wait", waits.LastErr)
	}
}
