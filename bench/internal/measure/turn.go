package measure

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// turnPause is the pause between two looks at a Turn. One goroutine at a time
// looks, and nothing that is measured waits for it.
const turnPause = 200 * time.Microsecond

// turn is a number that several processes count up: how often the lock was
// granted so far. It is a page of memory shared through a file, because a message
// for every grant would cost more than what is measured.
type turn struct {
	page []byte
	n    *atomic.Int64
}

// newTurnFile makes the file, for the caller to remove.
func newTurnFile() (path string, err error) {
	f, err := os.CreateTemp("", "joblock-bench-turn-")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), f.Truncate(int64(os.Getpagesize()))
}

func openTurn(path string) (*turn, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	page, err := syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &turn{page, (*atomic.Int64)(unsafe.Pointer(&page[0]))}, nil
}

// close must not be called before all uses have ended.
func (t *turn) close() error { return syscall.Munmap(t.page) }

// next counts up and returns the new number.
func (t *turn) next() int64 { return t.n.Add(1) }

// reach waits until at least n was reached, or ctx ends, and tells which.
func (t *turn) reach(ctx context.Context, n int64) bool {
	tick := time.NewTicker(turnPause)
	defer tick.Stop()
	for t.n.Load() < n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
