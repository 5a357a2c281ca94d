package layering

import (
	"go/build/constraint"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// exceptionsFile lists what tests of the fast tier may do although the rules forbid it.
const exceptionsFile = "tiers.golden"

// The fast tier is what go test runs without the build tag servers. Its tests start no server and no program, wait only
// in virtual time, and do not fail because a machine is slow.
func TestFastTierWaitsForNothing(t *testing.T) {
	dirs := make(map[string]map[string]string) // the test files of each package and their text
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if name != root && (err == nil || slices.Contains(unsourced, d.Name())) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if dirs[path.Dir(rel)] == nil {
			dirs[path.Dir(rel)] = make(map[string]string)
		}
		dirs[path.Dir(rel)][rel] = readFile(t, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 10 {
		t.Errorf("looked at only %d packages", len(dirs))
	}
	var found []string
	for _, files := range dirs {
		found = append(found, checkTier(t, files)...)
	}
	unlisted, unneeded := compareTiers(readFile(t, exceptionsFile), found)
	for _, f := range unlisted {
		t.Errorf("%s: wait in a synctest bubble or for a signal, use redistest.Shared, or give the file the build tag servers", f)
	}
	for _, line := range unneeded {
		t.Errorf("%s has a line that is not needed, or has no reason: %s", exceptionsFile, line)
	}
}

// compareTiers returns what was found and is not listed, and the lines of the list that nothing was found for, or that
// give no reason. A line is "file: function: call: reason".
func compareTiers(list string, found []string) (unlisted, unneeded []string) {
	listed := make(map[string]bool)
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.SplitN(line, ": ", 4)
		if key := strings.Join(parts[:min(3, len(parts))], ": "); len(parts) == 4 && slices.Contains(found, key) {
			listed[key] = true
		} else {
			unneeded = append(unneeded, line)
		}
	}
	for _, f := range slices.Compact(slices.Sorted(slices.Values(found))) {
		if !listed[f] {
			unlisted = append(unlisted, f)
		}
	}
	return unlisted, unneeded
}

// inFastTier reports whether a file is compiled without the tag servers, on Linux.
func inFastTier(text string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "package ") {
			break
		}
		if expr, err := constraint.Parse(strings.TrimSpace(line)); err == nil {
			return expr.Eval(func(tag string) bool { return tag == "linux" || tag == "unix" })
		}
	}
	return true
}

func TestCheckTier(t *testing.T) {
	const head = "package a\nimport (\"context\"; \"os/exec\"; \"testing\"; \"testing/synctest\"; \"time\"; \"" + module + "/internal/redistest\")\n"
	const run = "func run(t *testing.T, f func(int)) { synctest.Test(t, func(*testing.T) { f(1) }) }\n"
	for _, tc := range []struct{ name, text, want string }{
		{"a server", "func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { redistest.Start(t) }) }", "TestA: redistest.Start"},
		{"a server of a helper", "func (k *kit) up() { k.s = redistest.StartCluster }", "kit.up: redistest.StartCluster"},
		{"the shared server", "func TestA(t *testing.T) { redistest.Shared(t) }", ""},
		{"a program", "func TestA(t *testing.T) { exec.Command(`ls`).Run() }", "TestA: exec.Command"},
		{"a sleep", "func TestA(t *testing.T) { t.Run(``, func(t *testing.T) { time.Sleep(1) }) }", "TestA: time.Sleep"},
		{"a deadline", "func TestA(t *testing.T) { context.WithTimeout(t.Context(), 1) }", "TestA: context.WithTimeout"},
		{"a hang", "func TestA(t *testing.T) { select { case <-c: case <-time.After(1): t.Fatal() } }", "TestA: time.After"},
		{"in a bubble", "func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { go func() { time.Sleep(1) }() }) }", ""},
		{"a function in a bubble", "func TestA(t *testing.T) { synctest.Test(t, a) }\nfunc a(t *testing.T) { b() }\nfunc b() { time.Sleep(1); b() }", ""},
		{"a function also outside", "func TestA(t *testing.T) { synctest.Test(t, a); b() }\nfunc a(t *testing.T) { b() }\nfunc b() { time.Sleep(1) }", "b: time.Sleep"},
		{"a function without use", "func b() { time.Sleep(1) }", "b: time.Sleep"},
		{"a runner", run + "func TestA(t *testing.T) { run(t, func(int) { time.Sleep(1) }) }", ""},
		{"a runner of a runner", run + "func twice(t *testing.T, f func(int)) { run(t, f); run(t, f) }\nfunc TestA(t *testing.T) { twice(t, func(int) { time.Sleep(1) }) }", ""},
		{"a runner that also calls", run + "func twice(t *testing.T, f func(int)) { run(t, f); f(2) }\nfunc TestA(t *testing.T) { twice(t, func(int) { time.Sleep(1) }) }", "TestA: time.Sleep"},
		{"the fields of a table", run + "func TestA(t *testing.T) { for _, c := range []struct{ n string; f func(int) }{{``, func(int) { time.Sleep(1) }}, {f: func(int) { time.Sleep(1) }}} { run(t, func(int) { c.f(1) }) } }", ""},
		{"fields called outside", "func TestA(t *testing.T) { for _, c := range []struct{ n string; f func(int) }{{``, func(int) { time.Sleep(1) }}} { c.f(1) } }", "TestA: time.Sleep"},
		{"a map", run + "func TestA(t *testing.T) { m := map[string]func(int){``: func(int) { time.Sleep(1) }}; for _, f := range m { run(t, f) } }", ""},
		{"a map called outside", run + "func TestA(t *testing.T) { m := map[string]func(int){``: func(int) { time.Sleep(1) }}; for _, f := range m { run(t, f) }; m[``](1) }", "TestA: time.Sleep"},
		{"a variable", run + "func TestA(t *testing.T) { f := func(int) { time.Sleep(1) }; run(t, f) }", ""},
		{"a method", run + "func (s *slow) Get() { time.Sleep(1) }\nfunc TestA(t *testing.T) { run(t, func(int) { use(&slow{}) }) }", ""},
		{"a method outside", run + "func (s *slow) Get() { time.Sleep(1) }\nfunc TestA(t *testing.T) { use(&slow{}) }", "slow.Get: time.Sleep"},
		{"an upper bound", "func TestA(t *testing.T) { if time.Since(start) > 5 { t.Fatal() } }", "TestA: upper bound"},
		{"an upper bound of a variable", "func TestA(t *testing.T) { took := time.Since(start); if 5 <= took.Round(1) { t.Fatal() } }", "TestA: upper bound"},
		{"a lower bound", "func TestA(t *testing.T) { if took := time.Since(start); took < 5 { t.Fatal() } }", ""},
		{"a poll until", "func TestA(t *testing.T) { for time.Now().Before(end) { } }", "TestA: time.Now().Before"},
		{"a poll since", "func TestA(t *testing.T) { for time.Since(start) < 5 { } }", "TestA: upper bound"},
	} {
		got := strings.Join(checkTier(t, map[string]string{"a/a_test.go": head + tc.text}), "; ")
		if want := strings.TrimSuffix("a/a_test.go: "+tc.want, "a/a_test.go: "); got != want {
			t.Errorf("%s: %q, want %q", tc.name, got, want)
		}
	}
}

func TestInFastTier(t *testing.T) {
	for text, want := range map[string]bool{
		"package a\n//go:build servers\n":           true,
		"//go:build servers\n\npackage a\n":         false,
		"//go:build servers && unix\n\npackage a\n": false,
		"// About it.\n\n//go:build unix\n":         true,
		"//go:build !unix\n\npackage a\n":           false,
	} {
		if got := inFastTier(text); got != want {
			t.Errorf("inFastTier(%q) = %t, want %t", text, got, want)
		}
	}
}

func TestCompareTiers(t *testing.T) {
	list := "# Comment.\na_test.go: TestA: time.Sleep: a reason\na_test.go: TestB: time.Sleep: it has gone\na_test.go: TestC: time.Sleep:\n"
	unlisted, unneeded := compareTiers(list, []string{"a_test.go: TestD: time.Sleep", "a_test.go: TestA: time.Sleep", "a_test.go: TestC: time.Sleep"})
	if got, want := strings.Join(unlisted, "; "), "a_test.go: TestC: time.Sleep; a_test.go: TestD: time.Sleep"; got != want {
		t.Errorf("not listed: %q, want %q", got, want)
	}
	if got, want := strings.Join(unneeded, "; "), "a_test.go: TestB: time.Sleep: it has gone; a_test.go: TestC: time.Sleep:"; got != want {
		t.Errorf("not needed: %q, want %q", got, want)
	}
}
