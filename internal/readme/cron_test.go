package readme

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/joblock/toolkit/scheduler/spec"
)

// The table of specs in docs/cron.md says what the specs say in words.
func TestSpecsInWords(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `(.*)` \\| ((?:at|every) .*) \\|$").FindAllStringSubmatch(read(t, "docs/cron.md"), -1)
	for _, row := range rows {
		s, err := spec.Parse(row[1], nil)
		if err != nil {
			t.Error(err)
		} else if s.Words() != row[2] {
			t.Errorf("docs/cron.md says %q for %s, want %q", row[2], row[1], s.Words())
		}
	}
	if len(rows) < 10 {
		t.Errorf("found only %d specs", len(rows))
	}
}

// What docs/cron.md names in package scheduler, admin, spec, asynqtick, joblock or handoff is there.
func TestNamesInTheComparisonExist(t *testing.T) {
	names := make(map[string]bool)
	for _, dir := range []string{"scheduler", "scheduler/admin", "scheduler/spec", "scheduler/asynqtick", "joblock", "handoff"} {
		files, err := filepath.Glob(root + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					names[n.Name.Name] = true
				case *ast.TypeSpec:
					names[n.Name.Name] = true
				case *ast.Field:
					for _, name := range n.Names {
						names[name.Name] = true
					}
				}
				return true
			})
		}
	}
	found := regexp.MustCompile("`(?:[a-z]+\\.)?([A-Z][a-zA-Z]+)(?:\\.([A-Z][a-zA-Z]+))?`").FindAllStringSubmatch(read(t, "docs/cron.md"), -1)
	for _, m := range found {
		if !names[m[1]] || m[2] != "" && !names[m[2]] {
			t.Errorf("docs/cron.md names %s, which does not exist", m[0])
		}
	}
	if len(found) < 40 {
		t.Errorf("found only %d names", len(found))
	}
}

// Each row of the comparison with other schedulers says whether the feature is there, and why not or in what it is better.
func TestTheComparisonHasReasons(t *testing.T) {
	_, text, ok := strings.Cut(read(t, "docs/cron.md"), "## Compared with other schedulers")
	if !ok {
		t.Fatal("docs/cron.md has no comparison")
	}
	rows := 0
	for _, line := range strings.Split(text, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "| ") || cells[0] == " feature " {
			continue
		}
		rows++
		if len(cells) != 4 {
			t.Errorf("%d cells: %s", len(cells), line)
			continue
		}
		switch here, verdict, reason := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3]); {
		case verdict != "has" && verdict != "better" && verdict != "no":
			t.Errorf("%q is no verdict: %s", verdict, line)
		case verdict != "has" && reason == "":
			t.Errorf("no reason: %s", line)
		case verdict != "no" && here == "":
			t.Errorf("no name of what there is: %s", line)
		}
	}
	if rows < 40 {
		t.Errorf("found only %d rows", rows)
	}
}
