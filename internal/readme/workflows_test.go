package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A tag of an action can be moved to other code, which then runs with the rights of the workflow. A commit cannot.
func TestWorkflowsPinActionsByCommit(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no workflows, %v", err)
	}
	pinned := regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, action, ok := strings.Cut(line, "uses: "); ok && !pinned.MatchString(strings.TrimSpace(action)) {
				t.Errorf("%s: %s is not an action with a commit and the version of that commit", filepath.Base(file), strings.TrimSpace(action))
			}
		}
		// Rights beyond reading belong to one job, not to the whole workflow.
		whole, _, _ := strings.Cut(string(text), "\njobs:")
		if strings.Contains(whole, ": write") {
			t.Errorf("%s gives all its jobs the right to write", filepath.Base(file))
		}
	}
}
