//go:build servers

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// TestMain runs this binary either as the test, or as one of the nodes of the story.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-node" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestStory(t *testing.T) {
	for _, tt := range []struct {
		name string
		addr func(t *testing.T) string
	}{
		{"embedded", func(*testing.T) string { return "" }},
		{"redis-server", func(t *testing.T) string { return redistest.Start(t).Addr() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := story(&out, tt.addr(t), "test-"+tt.name)
			t.Log(out.String())
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"is killed", "is interrupted", ": died", ": interrupted", ": done"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not show %q", want)
				}
			}
		})
	}
}
