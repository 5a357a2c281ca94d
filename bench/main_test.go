//go:build servers

package bench

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

const (
	// leaseTTL is long enough that nothing is renewed during a benchmark.
	leaseTTL = 10 * time.Minute

	// patience bounds what is expected to happen.
	patience = 2 * time.Minute
)

func TestMain(m *testing.M) {
	contendIfAsked()
	goleak.VerifyTestMain(m)
}

// TestBenchmarksRun runs a few operations of each benchmark. It looks at which figures there are, not at their size.
func TestBenchmarksRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), self, "-test.run=^$", "-test.bench=.", "-test.benchtime=20x", "-test.short").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for benchmark, want := range map[string][]string{
		"Uncontended/goroutines=1/keys=used/lib=":         {"cmds/op", "allocs/op", "trips/op", "own-ns/op", "server-ns/op", "scripts-ns/op"},
		"Uncontended/goroutines=32/keys=fresh/lib=":       {"cmds/op"},
		"Handover/waiters=2/processes=1/lib=":             {"cmds/op", "p50-ns", "p99-ns", "%overtaken"},
		"Handover/waiters=16/processes=4/lib=":            {"cmds/op", "p50-ns"},
		"Enqueue/way=":                                    {"cmds/op", "own-ns/op"},
		"Jobs/work=0s/way=":                               {"cmds/op", "server-ns/op"},
		"Jobs/work=10ms/way=":                             {"cmds/op"},
		"Sequence/waiting=":                               {"cmds/op", "p50-ns", "p99-ns", "scripts-ns/op"},
		"Cluster/call=acquire,release/masters=":           {"cmds/op", "pushes/op", "trips/op", "busiest", "scripts-ns/op"},
		"Cluster/call=park,resume,renew,release/masters=": {"cmds/op", "trips/op"},
		"Cluster/call=handover/masters=":                  {"cmds/op", "pushes/op"},
		"Outbox/way=":                                     {"p50-ms", "p99-ms", "jobs/s", "commits/s"},
	} {
		rows := 0
		for line := range strings.Lines(string(out)) {
			if !strings.HasPrefix(line, "Benchmark"+benchmark) || !strings.Contains(line, want[0]) {
				continue
			}
			rows++
			for _, unit := range want {
				if !slices.Contains(strings.Fields(line), unit) {
					t.Errorf("no %s in %s", unit, line)
				}
			}
		}
		if rows < 2 {
			t.Errorf("%s: %d rows", benchmark, rows)
		}
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "lib=floor") && !strings.Contains(line, " 2.000 cmds/op") {
			t.Errorf("a pair of the floor is two commands: %s", line)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// inAnyOrder returns the elements in random order, so that over several runs each is measured after each other one.
func inAnyOrder[T any](all ...T) []T {
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// flush empties the server, so that no benchmark works on what another one has left.
func flush(b *testing.B, admin *redis.Client) {
	b.Helper()
	if err := admin.FlushAll(b.Context()).Err(); err != nil {
		b.Fatal(err)
	}
}

// bounded returns the benchmark's context with a deadline, without which some libraries do not wait.
func bounded(b *testing.B) context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	b.Cleanup(cancel)
	return ctx
}
