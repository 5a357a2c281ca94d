package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var enqueues = regexp.MustCompile(`\.(Enqueue|EnqueueMany)\(`)

// asynq's default of 25 retries keeps a key, or a line, for up to 20.5 days, so a sample that makes a task and enqueues it
// with a lock sets MaxRetry.
func TestSamplesSetMaxRetry(t *testing.T) {
	n := 0
	check := func(name, code string) {
		if !enqueues.MatchString(code) || !strings.Contains(code, "asynq.NewTask(") {
			return
		}
		n++
		if tasks, set := strings.Count(code, "asynq.NewTask("), strings.Count(code, "asynq.MaxRetry("); set < tasks {
			t.Errorf("%s makes %d tasks and sets MaxRetry %d times:\n%s", name, tasks, set, code)
		}
	}
	for _, name := range guides(t) {
		for _, m := range goBlock.FindAllStringSubmatch(read(t, name), -1) {
			check(name, m[1])
		}
	}
	files, err := filepath.Glob(filepath.Join(root, "examples/*/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if text, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		} else if !strings.HasSuffix(name, "_test.go") {
			check(name, string(text))
		}
	}
	if n < 10 {
		t.Errorf("%d samples, want at least 10", n)
	}
}
