package layering

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unsourced are directories of the module's root that hold no sources.
var unsourced = []string{".git", ".cache", "bin", "dist"}

// machinePath finds absolute paths of a developer's machine, but not the same words in
// the middle of a URL. It is put together so that this file does not match.
var machinePath = regexp.MustCompile(`(^|[\s"'` + "`" + `(=:])/(?:` + strings.Join(machineDirs, "|") + `)/[\w.]`)

var machineDirs = []string{"work", "root", "home", "Users"}

func TestFilesArePortable(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(unsourced, rel) {
				return filepath.SkipDir
			}
			return nil
		}
		// In a git worktree .git is a file.
		if rel == ".git" || !d.Type().IsRegular() || strings.HasSuffix(rel, ".test") || strings.HasSuffix(rel, ".out") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, sentence := range checkFile(filepath.ToSlash(rel), text) {
			t.Error(sentence)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 10 {
		t.Errorf("looked at only %d files", files)
	}
}

// checkFile returns a sentence for each rule that the file breaks.
func checkFile(name string, text []byte) []string {
	if bytes.IndexByte(text, 0) >= 0 { // not text
		return nil
	}
	if !slices.ContainsFunc(machineDirs, func(dir string) bool { return bytes.Contains(text, []byte("/"+dir+"/")) }) {
		return nil // as nearly all files: searching with the pattern takes much longer
	}
	var broken []string
	line := 0
	for l := range bytes.Lines(text) {
		if line++; machinePath.Match(l) {
			broken = append(broken, fmt.Sprintf("%s:%d: a path of one machine: %s", name, line, bytes.TrimSpace(l)))
		}
	}
	return broken
}

func TestCheckFile(t *testing.T) {
	slash := "/"
	for _, tc := range []struct {
		name, text string
		broken     int
	}{
		{"a.md", "see " + slash + "work/main\nand `" + slash + "home/x`\n", 2},
		{"a.sh", "cd=" + slash + "Users/x\n", 1},
		{"a.md", "https://example.org/work/x and a/root/b and " + slash + "worker/x\n", 0},
		{"a.bin", "\x00 " + slash + "root/x", 0},
	} {
		if got := checkFile(tc.name, []byte(tc.text)); len(got) != tc.broken {
			t.Errorf("checkFile(%s, %.40q) = %q, want %d", tc.name, tc.text, got, tc.broken)
		}
	}
}
