//go:build servers

package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// promtool runs promtool of Debian's package prometheus, in this directory.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	bin, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("promtool is missing: .ci/setup.sh installs it")
		}
		t.Skip("promtool is missing; it is in Debian's package prometheus")
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Env = append(os.Environ(), "GOGC=400") // a quarter of its time goes into collecting garbage
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The alerts are rules, and fire when they should.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint-fatal", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
}

// Every query of the dashboard is PromQL.
func TestQueriesParse(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, q := range queries(t) {
		fmt.Fprintf(&rules, "  - record: q%d\n    expr: '%s'\n", i, strings.ReplaceAll(q, "'", "''"))
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}
