package readme

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// table is a file with tables, of which each row ends with its test or tests.
type table struct {
	file  string
	first string // the name of the first column
	cells int
	rows  int // at the least
}

// Every row of the tables of exits, of faults, of evidence and of security names tests that exist.
func TestTablesNameTheirTests(t *testing.T) {
	tests := readTests(t)
	for _, tab := range []table{
		{file: "worker/EXITS.md", first: "exit", cells: 4, rows: 30},
		{file: "joblock/FAULTS.md", first: "fault", cells: 4, rows: 40},
		{file: "joblock/EVIDENCE.md", first: "promise", cells: 3, rows: 9},
		{file: "cmd/joblock/RUN.md", first: "situation", cells: 5, rows: 70},
		{file: "server/FAULTS.md", first: "fault", cells: 4, rows: 40},
		{file: "outbox/FAULTS.md", first: "fault", cells: 3, rows: 20},
		{file: "SECURITY.md", first: "promise", cells: 2, rows: 6},
	} {
		t.Run(tab.file, func(t *testing.T) {
			rows := 0
			seen := map[string]bool{}
			for line := range strings.SplitSeq(read(t, tab.file), "\n") {
				if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| "+tab.first+" |") {
					continue
				}
				rows++
				cells := strings.Split(strings.Trim(line, "| "), " | ")
				if len(cells) != tab.cells {
					t.Errorf("a row of %d cells, want %d: %s", len(cells), tab.cells, line)
					continue
				}
				if seen[cells[0]] {
					t.Errorf("%s is there twice", cells[0])
				}
				seen[cells[0]] = true
				for cell := range strings.SplitSeq(cells[tab.cells-1], "`, `") {
					name := strings.Trim(cell, "`")
					if why := tests.missing(name); why != "" {
						t.Errorf("%s names the test %q: %s", cells[0], name, why)
					}
				}
			}
			if rows < tab.rows {
				t.Errorf("found only %d rows, want %d", rows, tab.rows)
			}
		})
	}
}

// The check itself must be able to fail.
func TestMissingTestsAreFound(t *testing.T) {
	tests := readTests(t)
	for name, there := range map[string]bool{
		"joblock.TestOutageWhileWaiting": true, "joblock.TestOutageWhileWaiting/short": true,
		"joblock.TestOutageWhileWaiting/shorter": false, "joblock.TestOutage": false, "worker.TestOutageWhileWaiting": false,
		"redisstore.TestConformanceOnRedis/resend/acquire finds its own grant": true,
		"redisstore.TestConformanceOnRedis/resend/no such case":                false,
		"nopackage.TestX": false, "TestX": false, "": false,
	} {
		if why := tests.missing(name); (why == "") != there {
			t.Errorf("%q: %q, want it to be there: %v", name, why, there)
		}
	}
}

// testDirs are where the packages are whose tests may be named. The names of the cases
// of a suite are in another directory.
var testDirs = map[string][]string{
	"joblock": {"joblock"}, "jobs": {"joblock/jobs"}, "fallback": {"joblock/fallback"}, "rate": {"joblock/rate"}, "singleflight": {"joblock/singleflight"},
	"otelobserver": {"joblock/otelobserver"}, "redisstore": {"joblock/redisstore", "joblock/storetest"},
	"worker": {"worker"}, "outbox": {"outbox"}, "handoff": {"handoff"}, "scheduler": {"scheduler"}, "spec": {"scheduler/spec"},
	"e2e": {"internal/e2e"}, "torture": {"internal/torture"}, "history": {"internal/history"},
	"cli": {"cmd/joblock/internal/cli"}, "ops": {"internal/ops"}, "server": {"server"}, "compat": {"server/compat"}, "forrst": {"server/compat/forrst"}, "soak": {"internal/soak"}, "mutants": {"internal/torture/mutants"},
	"monitoring": {"internal/monitoring"}, "published": {"internal/published"}, "bench": {"bench"}, "examples/holders": {"examples/holders"},
	"examples/observed": {"examples/observed"}, "examples/quickstart": {"examples/quickstart"}, "examples/scheduler": {"examples/scheduler"}, "examples/start": {"examples/start"},
}

// sources is what there is to be named: the test functions of the packages, and all
// their strings, one of which is the name of a test within a test.
type sources struct{ tests, strings map[string]bool }

// readTests reads the tests in testDirs.
func readTests(t *testing.T) sources {
	t.Helper()
	s := sources{tests: map[string]bool{}, strings: map[string]bool{}}
	for pkg, dirs := range testDirs {
		for i, dir := range dirs {
			pattern := "/*_test.go"
			if i > 0 { // a suite is no test itself
				pattern = "/*.go"
			}
			files, err := filepath.Glob(root + dir + pattern)
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %d files, %v", dir, len(files), err)
			}
			for _, name := range files {
				file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				s.add(pkg, file)
			}
		}
	}
	return s
}

func (s sources) add(pkg string, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
				s.tests[pkg+"."+n.Name.Name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				s.strings[pkg+"."+text] = true
			}
		}
		return true
	})
}

// missing says why there is no such test, "" if there is one. A test within a test is
// taken to be there if one of the strings of its package is its name.
func (s sources) missing(name string) string {
	pkg, rest, _ := strings.Cut(name, ".")
	parts := strings.Split(rest, "/")
	if !s.tests[pkg+"."+parts[0]] {
		return "there is no such function"
	}
	for _, part := range parts[1:] {
		if !s.strings[pkg+"."+part] {
			return "the package's tests do not mention " + part
		}
	}
	return ""
}
