package main

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
)

// The program does what docs/start.md says: a second export is refused until the first one is done.
func TestProgram(t *testing.T) {
	work = 50 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}, listener) }()

	post := func() int {
		res, err := http.Post("http://"+listener.Addr().String()+"/exports/acct-7", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := post(); got != http.StatusAccepted {
		t.Errorf("the first request: %d", got)
	}
	if got := post(); got != http.StatusTooManyRequests {
		t.Errorf("the second request: %d", got)
	}
	for post() != http.StatusAccepted {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
