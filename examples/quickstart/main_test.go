package main

import (
	"net"
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
			if !strings.Contains(out.String(), "all of it happened") {
				t.Errorf("no last line in\n%s", out.String())
			}
		})
	}
}

// TestNoRedis wants one error, and nothing told before it.
func TestNoRedis(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(&out, addr); err == nil || !strings.Contains(err.Error(), addr) || out.Len() > 0 {
		t.Errorf("without a Redis: error %v after %q, want an error that names it, after nothing", err, out.String())
	}
}
