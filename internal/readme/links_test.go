package readme

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// pages returns the names of all pages of the project.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".md"):
			rel, err := filepath.Rel(root, name)
			names = append(names, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	if err != nil || len(names) < 30 {
		t.Fatalf("%d pages: %v", len(names), err)
	}
	return names
}

var (
	fence   = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	span    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors returns what the headings of a page are called in links, as the forge makes it.
func anchors(text string) map[string]bool {
	names := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		title := linked.ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		unique := name
		for n := 1; names[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		names[unique] = true
	}
	return names
}

// broken returns what is wrong with the links of a page, and how many links within the project the page has. The function
// open returns the text of a page or of another file, and "" for a directory.
func broken(page, text string, open func(name string) (string, error)) (faults []string, links int) {
	text = span.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		links++
		name := page
		if target != "" {
			name = path.Join(path.Dir(page), target)
		}
		there, err := open(name)
		switch {
		case err != nil:
			faults = append(faults, fmt.Sprintf("%s links to %s: %v", page, m[1], err))
		case anchor != "" && !anchors(there)[anchor]:
			faults = append(faults, fmt.Sprintf("%s links to %s: there is no such heading", page, m[1]))
		}
	}
	return faults, links
}

// What a page links to within the project is there: the file, and the heading.
func TestLinksLeadSomewhere(t *testing.T) {
	links := 0
	for _, page := range pages(t) {
		faults, n := broken(page, read(t, page), func(name string) (string, error) {
			if info, err := os.Stat(root + name); err != nil || info.IsDir() {
				return "", err
			}
			text, err := os.ReadFile(root + name)
			return string(text), err
		})
		links += n
		for _, fault := range faults {
			t.Error(fault)
		}
	}
	if links < 200 {
		t.Errorf("found only %d links", links)
	}
}

// The check itself must be able to fail.
func TestBrokenLinksAreFound(t *testing.T) {
	files := map[string]string{
		"docs/a.md": "# A `b` c, [d](e)!\n## Same\n## Same\n```\n# no heading\n```\n", "README.md": "# R", "dir": "",
	}
	open := func(name string) (string, error) {
		text, ok := files[name]
		if !ok {
			return "", fs.ErrNotExist
		}
		return text, nil
	}
	for target, ok := range map[string]bool{
		"a.md": true, "../README.md#r": true, "../dir": true, "a.md#a-b-c-d": true, "a.md#same": true, "a.md#same-1": true,
		"#here": true, "https://example.com/x": true,
		"b.md": false, "../a.md": false, "a.md#same-2": false, "a.md#no-heading": false, "#there": false, "../README.md#R": false,
	} {
		if faults, _ := broken("docs/p.md", "# Here\n[x]("+target+")", func(name string) (string, error) {
			if name == "docs/p.md" {
				return "# Here", nil
			}
			return open(name)
		}); (len(faults) == 0) != ok {
			t.Errorf("%s: %q, want it to be found: %v", target, faults, ok)
		}
	}
}

// From the README every page of the guides is two clicks away: one to the index, one to the page. The index has all, and so
// has llms.txt, the index for language models.
func TestIndexHasAllPages(t *testing.T) {
	index, readme, llms := read(t, "docs/README.md"), read(t, "README.md"), read(t, "llms.txt")
	if !strings.Contains(readme, "(docs/README.md)") {
		t.Error("README.md does not link to the index")
	}
	for _, page := range guides(t) {
		name := strings.TrimPrefix(page, "docs/")
		if page != "README.md" && name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/README.md does not have %s", name)
		}
		if page != "README.md" && name != "README.md" && !strings.Contains(llms, "/docs/"+name+")") {
			t.Errorf("llms.txt does not have docs/%s", name)
		}
	}
}

// Pictures show what their texts say.
func TestPicturesAreDrawnFromTheirTexts(t *testing.T) {
	texts, err := filepath.Glob(root + "docs/*.dot")
	if err != nil || len(texts) < 3 {
		t.Fatalf("%d texts, %v", len(texts), err)
	}
	for _, name := range texts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		svg, err := os.ReadFile(strings.TrimSuffix(name, ".dot") + ".svg")
		if err != nil || !strings.Contains(string(svg), fmt.Sprintf("SHA-256 %x", sha256.Sum256(text))) {
			t.Errorf("%s has changed since its picture was drawn: make picture (%v)", name, err)
		}
	}
}

// The stories name tests that are there.
func TestNamedTestsExist(t *testing.T) {
	tests := readTests(t)
	named := regexp.MustCompile("`([a-z0-9]+\\.Test[A-Za-z0-9_]+)`")
	found := 0
	for _, page := range guides(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, page), -1) {
			found++
			if why := tests.missing(m[1]); why != "" {
				t.Errorf("%s names the test %s: %s", page, m[1], why)
			}
		}
	}
	if found < 8 {
		t.Errorf("found only %d names", found)
	}
}
