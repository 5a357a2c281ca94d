package readme

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// foreign are words that read as translated: software reports and fails, it does not tell or heed, and those who act have
// a name, such as the holder or another caller. A comment begins with the name of what it describes.
var foreign = regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|anew|besides?|told|heed(s|ed|ing)?|in vain|hears? of|becomes? of|of its own accord)\b` +
	`|^// The (method|function|type|variable|constant) \w{3}`)

// written has the extensions of the files that people write and read.
var written = map[string]bool{".go": true, ".md": true, ".lua": true, ".tmpl": true, ".html": true, ".js": true, ".json": true,
	".yml": true, ".yaml": true, ".sh": true, ".py": true, ".mod": true}

// texts calls f with each comment, string and test name of a Go file, and with each line of another file.
func texts(name string, content []byte, f func(line int, text string)) {
	if !strings.HasSuffix(name, ".go") {
		for i, line := range strings.Split(string(content), "\n") {
			f(i+1, line)
		}
		return
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile(name, -1, len(content))
	s.Init(file, content, nil, scanner.ScanComments)
	for {
		switch pos, tok, lit := s.Scan(); {
		case tok == token.EOF:
			return
		case tok == token.COMMENT, tok == token.STRING:
			f(file.Line(pos), lit)
		case tok == token.IDENT && strings.HasPrefix(lit, "Test"):
			f(file.Line(pos), capital.ReplaceAllString(lit, " $0"))
		}
	}
}

var capital = regexp.MustCompile(`[A-Z]`)

// No file has one of the foreign words.
func TestEnglish(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
		texts(path, content, func(line int, text string) {
			for _, word := range foreign.FindAllString(text, -1) {
				t.Errorf("%s:%d: %q: write what software says", filepath.ToSlash(strings.TrimPrefix(path, root)), line, word)
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
