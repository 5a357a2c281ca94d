package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/files"
)

func TestRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]string{5: "text\n", 6: "text\n", 4: ""} {
		text, info, err := files.Read(name, most, 0)
		if string(text) != want || (err == nil) != (want != "") || info == nil || info.Size() != 5 {
			t.Errorf("at most %d bytes: %q, %v, %v", most, text, info, err)
		}
		if err != nil && !strings.Contains(err.Error(), "more than 4 bytes") {
			t.Errorf("the error does not say why: %v", err)
		}
	}
	for _, bad := range []string{"", name + "-none", filepath.Dir(name), os.DevNull} {
		if _, _, err := files.Read(bad, 100, files.Patience); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
