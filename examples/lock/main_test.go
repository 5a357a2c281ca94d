package main

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// The work of two processes does not overlap, and one that need not wait does not fail.
func TestRun(t *testing.T) {
	addr := miniredis.RunT(t).Addr()
	started, finish := make(chan bool), make(chan bool)
	first := make(chan error, 1)
	go func() {
		first <- run(t.Context(), addr, func(context.Context) error {
			close(started)
			<-finish
			return nil
		})
	}()
	<-started
	second := make(chan error, 1)
	ran := false
	go func() {
		second <- run(t.Context(), addr, func(context.Context) error {
			ran = true
			return nil
		})
	}()
	select {
	case err := <-second:
		t.Fatalf("the second has not waited: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	for _, result := range []chan error{first, second} {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if !ran {
		t.Error("the second has not run")
	}
}
