package rig

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
)

func startServer(t *testing.T) *Server {
	t.Helper()
	srv, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func TestStoppedServerLeavesNothing(t *testing.T) {
	srv, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if version, err := srv.Version(t.Context()); err != nil || version == "" {
		t.Errorf("version %q, error %v", version, err)
	}
	if cpu, err := srv.CPU(t.Context()); err != nil || cpu <= 0 {
		t.Errorf("CPU %s, error %v", cpu, err)
	}
	if err := srv.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(srv.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
	if conn, err := net.Dial("tcp", srv.Addr()); err == nil {
		conn.Close()
		t.Error("it still answers")
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if srv, err := Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("server %v, error %v, want context.Canceled", srv, err)
	}
}

func TestVersionsOfUnknownModulesAreSaidToBe(t *testing.T) {
	got := Versions("example.org/none")
	if len(got) != 1 || got["example.org/none"] != unknown {
		t.Errorf("got %v", got)
	}
}
