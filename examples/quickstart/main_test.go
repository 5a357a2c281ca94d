package main

import (
	"net"
	"strings"
	"testing"
)

// TestNoRedis wants one error, and no output before it.
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
