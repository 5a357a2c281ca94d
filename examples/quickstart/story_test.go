//go:build servers

package main

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// TestStory runs the quickstart as a user would, embedded and on a real server.
// It checks itself, so all there is to see is that it ended well.
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
			if err := run(&out, tt.addr(t)); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if !strings.Contains(out.String(), "All of it happened") {
				t.Errorf("no last line in\n%s", out.String())
			}
		})
	}
}
