//go:build servers

package published

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// root is the checkout.
const root = "../.."

// modules returns the directories of the modules that a release has tags for, from the Makefile.
func modules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^PUBLISHED := (.*)$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("the Makefile has no PUBLISHED")
	}
	return append(strings.Fields(string(found[1])), "cmd/joblock")
}

// unpublished are directories of the checkout that no tag has.
var unpublished = []string{".git", ".cache", "bin", "dist"}

// version returns the version of the coming tags, which the modules require of each other.
func version(t *testing.T) string {
	t.Helper()
	mod := readMod(t, "server")
	for _, r := range mod.Require {
		if r.Mod.Path == readMod(t, ".").Module.Mod.Path {
			return r.Mod.Version
		}
	}
	t.Fatal("server/go.mod does not require the toolkit")
	return ""
}

func readMod(t *testing.T, dir string) *modfile.File {
	t.Helper()
	name := filepath.Join(root, dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(name, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

// publish writes the modules of the checkout into a module proxy of files and returns its directory.
func publish(t *testing.T) (proxy string) {
	t.Helper()
	proxy = t.TempDir()
	for _, dir := range modules(t) {
		m := module.Version{Path: readMod(t, dir).Module.Mod.Path, Version: version(t)}
		at := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(root, dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(at, "list"), m.Version+"\n")
		write(t, filepath.Join(at, m.Version+".mod"), string(text))
		write(t, filepath.Join(at, m.Version+".info"), fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, m.Version))
		f, err := os.Create(filepath.Join(at, m.Version+".zip"))
		if err != nil {
			t.Fatal(err)
		}
		if err := zip.Create(f, m, files(t, dir)); err != nil {
			t.Fatalf("zip of %s: %v", m.Path, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return proxy
}

// file is a file of a module, by its path in the module.
type file struct{ rel, name string }

func (f file) Path() string                 { return f.rel }
func (f file) Lstat() (fs.FileInfo, error)  { return os.Lstat(f.name) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(f.name) }

// files returns the files of the module in dir. A directory with a go.mod begins another module.
func files(t *testing.T, dir string) (found []zip.File) {
	t.Helper()
	top := filepath.Join(root, dir)
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == top {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if err == nil || filepath.Dir(name) == filepath.Clean(root) && slices.Contains(unpublished, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(top, name)
		if err != nil || !d.Type().IsRegular() || rel == ".git" || slices.Contains([]string{".test", ".out"}, path.Ext(rel)) {
			return err
		}
		found = append(found, file{filepath.ToSlash(rel), name})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
