package readme

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
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

// What docs/cron.md names in package scheduler, spec, asynqtick, joblock or handoff is there.
func TestNamesInTheComparisonExist(t *testing.T) {
	names := make(map[string]bool)
	for _, dir := range []string{"scheduler", "scheduler/spec", "scheduler/asynqtick", "joblock", "handoff"} {
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
