package layering

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite deps.golden with what is compiled in now")

const goldenFile = "deps.golden"

const goldenHead = `# The modules that come into a program with each package of ours. A new line here is
# a cost for every user and wants a reason. To rewrite this file:
# go test ./internal/layering -update
`

// public reports whether users can import the package for use in a program.
func public(g graph, rel string) bool {
	return !strings.Contains("/"+rel+"/", "/internal/") && !within(rel, "examples") && g[full(rel)].Name != "main"
}

func TestModulesInUsersBinaries(t *testing.T) {
	g := load(t)
	golden := readGolden(t)
	got := make(map[string][]string)
	for _, rel := range g.own() {
		if public(g, rel) && len(g[full(rel)].Imports) > 0 {
			got[rel] = g.modules(full(rel))
		}
	}
	if *update {
		writeGolden(t, g, got)
		return
	}
	for rel, mods := range got {
		want, known := golden[rel]
		if !known {
			t.Errorf("%s is not in %s; if it is meant to be public: go test ./internal/layering -update", rel, goldenFile)
			continue
		}
		if diff := difference(want, mods); diff != "" {
			t.Errorf("modules compiled in with %s have changed:\n%sif that is meant: go test ./internal/layering -update", rel, diff)
		}
	}
}

// unwanted are modules that no go.mod but that of the package that needs them may have:
// who locks jobs has no use for what measures or what commands are made of.
var unwanted = []string{otel, "github.com/prometheus", "github.com/spf13/cobra", "golang.org/x/term", "github.com/charmbracelet"}

// goMod is what go.mod says, as far as it is needed here.
type goMod struct {
	Module  struct{ Path string }
	Require []struct{ Path, Version string }
	Replace []replace
}

// goWork is what go.work says, as far as it is needed here.
type goWork struct {
	Use     []struct{ DiskPath string }
	Replace []replace
}

type replace struct {
	Old, New struct{ Path, Version string }
}

func (m goMod) requires(path string) (version string) {
	for _, r := range m.Require {
		if r.Path == path {
			return r.Version
		}
	}
	return ""
}

func readGoMod(t *testing.T, dir string) (m goMod) {
	t.Helper()
	edit(t, "mod", filepath.Join(dir, "go.mod"), &m)
	return m
}

// edit reads a file of the checkout with go mod edit or go work edit.
func edit(t *testing.T, which, file string, into any) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", which, "edit", "-json", filepath.Join("..", "..", file)).Output()
	if err != nil {
		t.Fatalf("go %s edit of %s: %v", which, file, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatal(err)
	}
}

// Who requires the toolkit gets nothing into the list of what he requires, indirectly
// either, that only one of its parts needs.
func TestRootRequiresNothingUnwanted(t *testing.T) {
	m := readGoMod(t, ".")
	if m.requires(asynq) == "" {
		t.Errorf("go.mod requires only %v", m.Require)
	}
	for _, r := range m.Require {
		for _, path := range unwanted {
			if within(r.Path, path) {
				t.Errorf("the root's go.mod requires %s; what needs it is to be a module of its own", r.Path)
			}
		}
	}
}

// The modules require each other at the version of the coming tag, and are built with each other: go.work has them all,
// and replaces that version. A replace directive in a go.mod would keep go install from building the command.
func TestNestedModules(t *testing.T) {
	var found []string
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if d.IsDir() && slices.Contains(unsourced, rel) {
			return filepath.SkipDir
		}
		if dir := filepath.ToSlash(filepath.Dir(rel)); d.Name() == "go.mod" && dir != "." {
			found = append(found, dir)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Sorted(slices.Values(append(slices.Clone(nested), others...)))
	if slices.Sort(found); !slices.Equal(found, known) {
		t.Fatalf("there are modules in %q; this package knows %q", found, known)
	}
	var work goWork
	edit(t, "work", "go.work", &work)
	var used []string
	for _, use := range work.Use {
		used = append(used, filepath.ToSlash(filepath.Clean(use.DiskPath)))
	}
	slices.Sort(used)
	if want := slices.Concat([]string{"."}, found); !slices.Equal(used, want) {
		t.Errorf("go.work has %q, want %q", used, want)
	}
	version := readGoMod(t, nested[0]).requires(module)
	replaced := make(map[string]string)
	for _, r := range work.Replace {
		if r.Old.Version != version {
			t.Errorf("go.work replaces version %s of %s, others require %s", r.Old.Version, r.Old.Path, version)
		}
		replaced[r.Old.Path] = path.Join(module, r.New.Path)
	}
	for _, dir := range found {
		m := readGoMod(t, dir)
		if want := module + "/" + dir; m.Module.Path != want {
			t.Errorf("the module in %s is %s, want %s", dir, m.Module.Path, want)
		}
		if len(m.Replace) > 0 {
			t.Errorf("%s/go.mod has replace directives: %v", dir, m.Replace)
		}
		for _, r := range m.Require {
			if within(r.Path, module) && r.Version != version {
				t.Errorf("%s/go.mod requires version %s of %s, others %s", dir, r.Version, r.Path, version)
			}
			if within(r.Path, module) && replaced[r.Path] != r.Path {
				t.Errorf("%s/go.mod requires %s, which go.work replaces by %q", dir, r.Path, replaced[r.Path])
			}
		}
	}
}

// difference returns a line for each element that only one of two sorted lists has.
func difference(want, got []string) string {
	var b strings.Builder
	count := make(map[string]int)
	for _, m := range want {
		count[m]--
	}
	for _, m := range got {
		count[m]++
	}
	for _, m := range append(append([]string(nil), want...), got...) {
		switch count[m] {
		case -1:
			fmt.Fprintf(&b, "  - %s\n", m)
		case 1:
			fmt.Fprintf(&b, "  + %s\n", m)
		}
		delete(count, m)
	}
	return b.String()
}

// readGolden reads "package:" lines, each followed by one indented line per module.
func readGolden(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(goldenFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	var at string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if name, ok := strings.CutSuffix(line, ":"); ok && !strings.HasPrefix(line, "#") {
			at = name
			out[at] = nil
		} else if mod, ok := strings.CutPrefix(line, "\t"); ok {
			out[at] = append(out[at], mod)
		}
	}
	return out
}

func writeGolden(t *testing.T, g graph, got map[string][]string) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(goldenHead)
	for _, rel := range g.own() {
		mods, ok := got[rel]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%s:\n", rel)
		for _, m := range mods {
			fmt.Fprintf(&b, "\t%s\n", m)
		}
	}
	if err := os.WriteFile(goldenFile, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDifferenceShowsBothSides(t *testing.T) {
	for _, tc := range []struct{ want, got, diff string }{
		{"a b", "a b", ""},
		{"a b", "a c", "  - b\n  + c\n"},
		{"", "a", "  + a\n"},
		{"a", "", "  - a\n"},
	} {
		if got := difference(strings.Fields(tc.want), strings.Fields(tc.got)); got != tc.diff {
			t.Errorf("difference(%q, %q) = %q, want %q", tc.want, tc.got, got, tc.diff)
		}
	}
}
