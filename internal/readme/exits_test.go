package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every row of the table of exits names a test that exists.
func TestExitsAreTested(t *testing.T) {
	dirs := map[string]string{"worker": "worker", "handoff": "handoff", "e2e": "internal/e2e"}
	tests := map[string]bool{}
	for pkg, dir := range dirs {
		files, err := filepath.Glob(root + dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(string(source), -1) {
				tests[pkg+"."+m[1]] = true
			}
		}
	}
	rows := 0
	for line := range strings.SplitSeq(read(t, "worker/EXITS.md"), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| exit ") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 {
			t.Errorf("a row of %d cells, want 4: %s", len(cells), line)
			continue
		}
		if name := strings.Trim(cells[3], "`"); !tests[name] {
			t.Errorf("%s names the test %q, which does not exist", cells[0], name)
		}
	}
	if rows < 30 {
		t.Errorf("found only %d rows", rows)
	}
}
