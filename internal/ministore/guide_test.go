package ministore_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each Go block of the guide is a part of the miniature, as it stands.
func TestTheGuideQuotesTheCode(t *testing.T) {
	guide, err := os.ReadFile("../../docs/writing-a-store.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	quotes := regexp.MustCompile("(?s)```go\n(.*?\n)```").FindAllStringSubmatch(string(guide), -1)
	if len(quotes) < 30 {
		t.Errorf("the guide has %d Go blocks, want 30 at least", len(quotes))
	}
	for _, q := range quotes {
		if !strings.Contains(code.String(), q[1]) {
			t.Errorf("the guide has what the code has not:\n%s", q[1])
		}
	}
}
