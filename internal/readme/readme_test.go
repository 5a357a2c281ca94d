// Package readme keeps README.md and docs true: their Go code is that of compiled, run
// examples, their links lead somewhere, the tests they name are there, and the errors they list are the ones there are.
package readme

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
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

// guides returns README.md and the pages in docs whose code is that of the examples;
// docs/writing-a-store.md has an example of its own.
func guides(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("%d pages in docs: %v", len(pages), err)
	}
	names := []string{"README.md"}
	for _, page := range pages {
		if name := filepath.Base(page); name != "writing-a-store.md" {
			names = append(names, "docs/"+name)
		}
	}
	return names
}

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// exampleCode returns the Go code below examples, of all modules there.
func exampleCode(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root+"examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// Every Go block is, up to indentation, a part of the examples or of their tests.
func TestCodeIsCompiled(t *testing.T) {
	source := unindent(exampleCode(t))
	blocks := 0
	for _, page := range guides(t) {
		for _, b := range goBlock.FindAllStringSubmatch(read(t, page), -1) {
			blocks++
			if !strings.Contains(source, unindent(b[1])) {
				t.Errorf("%s: not below examples as it stands:\n%s", page, b[1])
			}
		}
	}
	if blocks < 30 {
		t.Errorf("found only %d blocks of Go", blocks)
	}
}

// An example is run only if its last comment begins with Output. A comment right above takes that away, and nothing says so.
func TestExamplesWithOutputAreRun(t *testing.T) {
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		run := make(map[string]bool)
		for _, e := range doc.Examples(file) {
			run["Example"+e.Name] = e.Output != "" || e.EmptyOutput
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Example") || !strings.Contains(string(text[f.Pos()-1:f.End()-1]), "// Output:") {
				continue
			}
			found++
			if !run[f.Name.Name] {
				t.Errorf("%s: %s is not run: put a blank line above its Output", path, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 50 {
		t.Errorf("found only %d examples with output", found)
	}
}

// The README is read before anything else, so it is short.
func TestREADMEIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n > 900 {
		t.Errorf("README.md has %d words, at most 900 are meant", n)
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
	codes := map[string]string{} // constant to value
	want := map[string]string{}  // sentinel to code
	for _, name := range []string{"joblock/driver/error.go", "internal/core/errors.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), root+name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
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
					want[name] = codes[lit.Elts[0].(*ast.KeyValueExpr).Value.(*ast.SelectorExpr).Sel.Name]
				}
			}
			return true
		})
	}
	if len(want) < 10 {
		t.Fatalf("found only %d sentinels", len(want))
	}
	rows := regexp.MustCompile("(?m)^\\| `(Err\\w+)` \\| `(LOCK_\\w+)` \\|").FindAllStringSubmatch(read(t, "docs/locks.md"), -1)
	got := map[string]string{}
	for _, r := range rows {
		got[r[1]] = r[2]
	}
	for name, code := range want {
		if got[name] != code {
			t.Errorf("docs/locks.md says %q for %s, want %q", got[name], name, code)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("docs/locks.md lists %s, which does not exist", name)
		}
	}
}

// What the README shows of an explanation is what "joblock explain" prints: each sentence is on the page for people on call,
// whose output is compared with that of the command.
func TestExplanationInREADME(t *testing.T) {
	page := strings.Join(strings.Fields(read(t, "docs/on-call.md")), " ")
	_, shown, _ := strings.Cut(read(t, "README.md"), "$ joblock explain")
	shown, _, ok := strings.Cut(shown, "```")
	if !ok {
		t.Fatal("README.md shows no explanation")
	}
	_, shown, _ = strings.Cut(shown, "\n\n")
	for _, sentence := range strings.SplitAfter(strings.Join(strings.Fields(shown), " "), ". ") {
		if !strings.Contains(page, strings.TrimSpace(sentence)) {
			t.Errorf("docs/on-call.md does not have %q", sentence)
		}
	}
}
