//go:build linux

package cli

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
)

// What operators do is on record: each action once, the newest first, with its outcome, and with the same name of who
// acts whatever the command.
func TestAudit(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.do("audit").wants(0, "nothing is on record")
	q.do("audit", "-o", "json").wants(0).fits("audit.json")
	_, err := q.locks.TryAcquire(t.Context(), "exports:acct-7")
	testkit.WantNil(t, "TryAcquire", err)
	fence := count(q.status("exports:acct-7").Fence)
	q.do("force-release", "exports:acct-7", "--fence", fence, "--if-idle", "--yes", "--reason", "cleanup").wants(exitBusy)
	q.do("force-release", "exports:acct-7", "--fence", fence, "--yes", "--reason", "host is gone").wants(0, "RECORD")
	q.do("get", "exports:acct-7").wants(0, "host is gone (by "+operator()+")")
	_, err = q.locks.TryAcquire(t.Context(), "exports:acct-7") // nothing but the record knows of the force now
	testkit.WantNil(t, "TryAcquire", err)
	q.export("exports:acct-8", "41")
	q.do("jobs", "drop", "exports/41", "--yes", "--reason", "sent by hand").wants(0)
	q.do("jobs", "run", "exports/41", "--reason", "again").wants(exitNo)

	var all []ops.AuditEntry
	q.do("audit", "-o", "json").wants(0).items("audit.json", &all)
	want := [][3]string{{"run task", "refused", "again"}, {"delete task", "done", "sent by hand"}, {"force release", "done", "host is gone"}}
	if len(all) != len(want) {
		t.Fatalf("on record is %+v, want %q", all, want)
	}
	for i, e := range all {
		if got := [3]string{e.Action, e.Outcome, e.Reason}; got != want[i] || e.By != operator() || e.From != hostname() || e.Of != "" {
			t.Errorf("on record is %+v, want %q", e, want[i])
		}
	}
	q.do("audit").wants(0, "WHEN", "force release", "exports:acct-7", operator(), "host is gone", "exports/41", "sent by hand").lacks("RECORD")
	q.do("audit", "-o", "wide").wants(0, "RECORD", all[0].ID, "there is no such task")
	q.do("audit", "exports:acct-7", "--since", "1h").wants(0, "host is gone").lacks("sent by hand")
	q.do("audit", "exports/41", "--limit", "1").wants(0, "again").lacks("sent by hand", "host is gone")
	q.do("audit", "--since", "2099-01-01").wants(0, "nothing is on record").lacks("host is gone")
	if a := q.do("audit", "-o", "name").wants(0); strings.Fields(a.out)[2] != all[2].ID {
		t.Errorf("the names are %q", a.out)
	}
	if n := wantLines(t, "audit-entry.json", q.do("audit", "-o", "jsonl").out); n != len(want) {
		t.Errorf("%d lines", n)
	}
	for _, bad := range [][]string{{"a", "b"}, {""}, {"--since", "yesterday"}, {"--since", "-1h"}, {"--limit", "-1"}, {"--limit", "x"}, {"-o", "xml"}} {
		q.do(append([]string{"audit"}, bad...)...).wants(exitUsage)
	}
}
