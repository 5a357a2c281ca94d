package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rule that was rewritten takes its mutant along, or the mutant is no longer tried.
func TestMutantsApply(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		file, err := m.overlay(root, t.TempDir())
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var overlay struct{ Replace map[string]string }
		files := make(map[string]bool)
		for _, e := range m.edits {
			files[e.file] = true
		}
		if err := json.Unmarshal(text, &overlay); err != nil || len(overlay.Replace) != len(files) {
			t.Errorf("%s: %v, overlay of %d files, want %d", m.name, err, len(overlay.Replace), len(files))
		}
		for path, changed := range overlay.Replace {
			was, _ := os.ReadFile(path)
			is, err := os.ReadFile(changed)
			if err != nil || string(is) == string(was) {
				t.Errorf("%s: %s is not changed, %v", m.name, path, err)
			}
		}
	}
}

// A mutant whose test has moved would never be detected.
func TestTestsOfMutantsExist(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]string) // the tests of a package
	for _, m := range mutants {
		if m.by == "" {
			continue
		}
		where := m.where()
		if tests[where] == "" {
			files, err := filepath.Glob(filepath.Join(root, where, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				tests[where] += string(text)
			}
		}
		if name, _ := m.test(); !strings.Contains(tests[where], "\nfunc "+name+"(t *testing.T)") {
			t.Errorf("%s: package %s has no test %s", m.name, where, name)
		}
	}
}

func TestMutantMustApply(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{"no such text", "e"} {
		m := mutant{name: "x", edits: []edit{{"go.mod", old, ""}}}
		if _, err := m.overlay(root, t.TempDir()); err == nil {
			t.Errorf("%q can be replaced in go.mod", old)
		}
	}
}
