package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestExport(t *testing.T) {
	if r := call("export", "grafana"); r.code != exitOK || !json.Valid([]byte(r.stdout)) || !strings.Contains(r.stdout, "joblock_locks") {
		t.Errorf("%d: %.200s %s", r.code, r.stdout, r.stderr)
	}
	if r := call("export", "alerts"); r.code != exitOK || !strings.Contains(r.stdout, "- alert: JoblockLockLost") {
		t.Errorf("%d: %.200s %s", r.code, r.stdout, r.stderr)
	}
	for _, args := range [][]string{{"export"}, {"export", "x"}, {"export", "grafana", "alerts"}} {
		if r := call(args...); r.code != exitUsage || r.stdout != "" {
			t.Errorf("%q: %d: %.200s", args, r.code, r.stdout)
		}
	}
}
