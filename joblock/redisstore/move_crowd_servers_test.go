//go:build servers

package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/joblock"
)

// crowd has lockers use keys of the slot all the time, until stop.
func (m *movedLocks) crowd() (stop func()) {
	const processes, users, keys = 2, 4, 3
	var (
		text bytes.Buffer
		rec  = history.NewRecorder(&text, "p")
		wg   sync.WaitGroup
		turn atomic.Int64
	)
	ctx, cancel := context.WithCancel(context.Background())
	var lockers []*joblock.Locker
	t, name := m.t, m.name
	for range processes {
		store := m.open()
		t.Cleanup(func() { _ = store.Close() })
		locks, err := joblock.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		lockers = append(lockers, locks)
		for range users {
			wg.Go(func() {
				for ctx.Err() == nil {
					key := name(fmt.Sprint("crowd-", turn.Add(1)%keys))
					h, err := rec.Acquire(ctx, locks, key)
					if ctx.Err() != nil && err != nil {
						return
					}
					// Nothing dies, so that everything has to work.
					if err == nil {
						err = h.Renew(context.Background())
					}
					var token joblock.Token
					if err == nil {
						token, err = h.Park(context.Background(), long, "")
					}
					if err == nil {
						h, err = rec.Resume(context.Background(), locks, token, 0, "")
					}
					if err == nil {
						err = h.Release(context.Background(), nil)
					}
					if err != nil {
						t.Errorf("in the crowd: %v", err)
						return
					}
				}
			})
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		for _, locks := range lockers {
			if err := locks.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		events, err := history.Read(&text)
		if err := errors.Join(err, rec.Err()); err != nil {
			t.Error(err)
		}
		t.Logf("the crowd has seen %d events", len(events))
		for _, v := range append(history.Check(events), history.Linearizable(events, time.Minute)...) {
			t.Error(v)
		}
	})
	t.Cleanup(stop) // where the test ends early
	return stop
}
