// Package readme keeps the README true: its Go code is that of compiled, run
// examples, and the errors it lists are the ones there are.
package readme

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

const root = "../../"

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(root + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every Go block is, up to indentation, a bracketed part of the example.
func TestCodeIsCompiled(t *testing.T) {
	source := unindent(read(t, "examples/example_test.go"))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, b := range blocks {
		if !strings.Contains(source, unindent(b[1])) {
			t.Errorf("not in examples/example_test.go as it stands:\n%s", b[1])
		}
	}
}

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimLeft(line, "\t ")
	}
	return strings.Join(lines, "\n")
}

// The table of errors has a row for every sentinel and its code, and no other.
func TestErrorTableIsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), root+"joblock/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]string{} // constant to value
	want := map[string]string{}  // sentinel to code
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		name := spec.Names[0].Name
		switch v := spec.Values[0].(type) {
		case *ast.BasicLit:
			codes[name] = strings.Trim(v.Value, `"`)
		case *ast.UnaryExpr:
			if lit, ok := v.X.(*ast.CompositeLit); ok && strings.HasPrefix(name, "Err") {
				want[name] = codes[lit.Elts[0].(*ast.KeyValueExpr).Value.(*ast.Ident).Name]
			}
		}
		return true
	})
	if len(want) < 10 {
		t.Fatalf("found only %d sentinels", len(want))
	}
	rows := regexp.MustCompile("(?m)^\\| `(Err\\w+)` \\| `(LOCK_\\w+)` \\|").FindAllStringSubmatch(read(t, "README.md"), -1)
	got := map[string]string{}
	for _, r := range rows {
		got[r[1]] = r[2]
	}
	for name, code := range want {
		if got[name] != code {
			t.Errorf("README says %q for %s, want %q", got[name], name, code)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("README lists %s, which does not exist", name)
		}
	}
}

// What the README tells people to run is there to be run.
func TestCommandsExist(t *testing.T) {
	readme, makefile := read(t, "README.md"), read(t, "Makefile")
	for _, m := range regexp.MustCompile(`(?m)^make (\w+)`).FindAllStringSubmatch(readme, -1) {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
			t.Errorf("make %s: no such target", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`go run \./([\w/]+)`).FindAllStringSubmatch(readme, -1) {
		if _, err := os.Stat(root + m[1] + "/main.go"); err != nil {
			t.Error(err)
		}
	}
}
