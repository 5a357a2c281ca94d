//go:build linux

package cli

import (
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
)

// A signal in the middle of the check of the servers ends doctor, and the lock with which doctor tries the calls is removed.
func TestSignalDuringTheCheckOfTheServers(t *testing.T) {
	s := newStage(t, redistest.Start(t))
	rdb := s.redis.Client(t)
	for _, n := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		halfWay := s.proxy.Once(redistest.Mentioning("waiter"), redistest.DelayReply(time.Second))
		doctor := s.launch("doctor", s.joblock("doctor", "--prefix", s.prefix()))
		<-halfWay.Struck()
		s.until("the lock of the check is there", func() bool { return len(rdb.Keys(t.Context(), "*joblock-check-*").Val()) > 0 })
		doctor.signal(n)
		doctor.exits(exitSignal + int(n))
		if left := rdb.Keys(t.Context(), "*joblock-check-*").Val(); len(left) > 0 {
			t.Errorf("%s left %q", n, left)
		}
	}
}
