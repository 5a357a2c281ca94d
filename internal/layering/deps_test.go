package layering

import (
	"bytes"
	"flag"
	"fmt"
	"os"
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
	return !within(rel, "internal") && !within(rel, "examples") && g[module+"/"+rel].Name != "main"
}

func TestModulesInUsersBinaries(t *testing.T) {
	g := load(t)
	golden := readGolden(t)
	got := make(map[string][]string)
	for _, rel := range g.own() {
		if public(g, rel) && len(g[module+"/"+rel].Imports) > 0 {
			got[rel] = g.modules(module + "/" + rel)
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
