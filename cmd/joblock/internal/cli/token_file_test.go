package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// A file that joblock writes may be a symbolic link. One that leads nowhere is an error, not something to wait for.
func TestFileThatIsALink(t *testing.T) {
	for name, write := range map[string]func(path string) error{
		"token file": func(path string) error {
			f, err := openTokenFile(path, true, time.Second)
			if err != nil {
				return err
			}
			defer f.close()
			token, err := joblock.NewToken("key", "owner", time.Minute)
			if err != nil {
				return err
			}
			return f.write(token)
		},
		"accounts": func(path string) error {
			return addAccount(path, fileAccount{ID: "a", SHA256: strings.Repeat("0", 64), Scopes: []string{"read"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
			if err := os.Symlink(file, link); err != nil {
				t.Skip(err)
			}
			if err := write(link); codeOf(err) != exitUsage || !strings.Contains(err.Error(), link) {
				t.Errorf("a link that leads nowhere: %v, want a usage error that names it", err)
			}
			if err := os.Symlink(filepath.Join(dir, "loop"), filepath.Join(dir, "loop")); err != nil {
				t.Fatal(err)
			}
			if err := write(filepath.Join(dir, "loop")); codeOf(err) != exitUsage {
				t.Errorf("a link to itself: %v, want a usage error", err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := write(link); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link has become %v, %v", info.Mode(), err)
			}
			if info, err := os.Stat(file); err != nil || info.Size() == 0 {
				t.Errorf("the file that the link leads to is empty, %v", err)
			}
		})
	}
}
