package readme

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign are words that read as translated: software reports and fails, it does not tell or heed, and those who act have
// a name, such as the holder or another caller. A comment begins with the name of what it describes.
var foreign = regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|anew|besides?|told|heed(s|ed|ing)?|in vain|hears? of|becomes? of)\b` +
	`|^// The (method|function|type|variable|constant) \w{3}`)

// written has the extensions of the files that people write and read.
var written = map[string]bool{".go": true, ".md": true, ".lua": true, ".tmpl": true, ".html": true, ".js": true, ".json": true,
	".yml": true, ".yaml": true, ".sh": true, ".py": true, ".mod": true}

// texts calls f with each comment and string of a Go file, and with each line of another file.
func texts(name string, content []byte, f func(string)) {
	if !strings.HasSuffix(name, ".go") {
		for line := range strings.Lines(string(content)) {
			f(line)
		}
		return
	}
	var s scanner.Scanner
	files := token.NewFileSet()
	s.Init(files.AddFile(name, -1, len(content)), content, nil, scanner.ScanComments)
	for {
		switch _, tok, lit := s.Scan(); tok {
		case token.EOF:
			return
		case token.COMMENT, token.STRING:
			f(lit)
		}
	}
}

// No file has more of the foreign words than testdata/english.txt says, and what has fewer is to be put down there: the list
// only shrinks. After a change, JOBLOCK_ENGLISH=write writes the list again, unless a file has more.
func TestEnglish(t *testing.T) {
	const list = "testdata/english.txt"
	allowed := make(map[string]int)
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var n int
		if _, err := fmt.Sscan(line, &n, &name); err != nil {
			t.Fatalf("%s: %q: %v", list, line, err)
		}
		allowed[name] = n
	}
	found := make(map[string]int)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
				return fs.SkipDir
			}
			return nil
		}
		if !written[filepath.Ext(path)] || path == root+"internal/readme/english_test.go" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root))
		texts(name, content, func(text string) {
			if n := len(foreign.FindAllString(text, -1)); n > 0 {
				found[name] += n
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&lines, "%d %s\n", found[name], name)
		if found[name] > allowed[name] {
			t.Errorf("%s: %d words of the list, at most %d are left there: write what software says", name, found[name], allowed[name])
		}
	}
	if t.Failed() || lines.String() == string(text) {
		return
	}
	if os.Getenv("JOBLOCK_ENGLISH") == "write" {
		if err := os.WriteFile(list, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is longer than needed: run this test with JOBLOCK_ENGLISH=write", list)
}
