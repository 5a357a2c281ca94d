package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/memstore"
)

// What a right implementation does is found right, and all of it is recorded.
func TestRightHistoryIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		rec := NewRecorder(&text, "p")
		locks, err := joblock.New(memstore.New(nil), &joblock.Config{
			TTL: 100 * time.Millisecond, Poll: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { use(t, rec, locks, rand.New(rand.NewPCG(1, uint64(i)))) })
		}
		wg.Go(func() {
			for range 20 {
				time.Sleep(150 * time.Millisecond)
				if err := rec.Force(t.Context(), locks, "k1"); err != nil && !errors.Is(err, joblock.ErrNotFound) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() { keep(t, rec, locks, rand.New(rand.NewPCG(1, 8))) })
		for i := range 4 {
			wg.Go(func() { lineUp(t, rec, locks, fmt.Sprint("q/line-", i), rand.New(rand.NewPCG(1, uint64(9+i)))) })
		}
		wg.Wait()
		if err := errors.Join(rec.Err(), locks.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		events, err := Read(&text)
		if err != nil {
			t.Fatal(err)
		}
		kinds := make(map[Kind]int)
		for _, e := range events {
			kinds[e.Kind]++
		}
		t.Log(len(events), "events:", kinds)
		for _, kind := range []Kind{Acquired, Resumed, Reclaimed, Trusted, Lost, Parked, Released, Refused, Forced, Freed, Reserved,
			Taken, Waiting, Passed} {
			if kinds[kind] == 0 {
				t.Errorf("nothing was %s", kind)
			}
		}
		for _, v := range slices.Concat(Check(events), Linearizable(events, time.Minute), CheckLine(events)) {
			t.Error(v)
		}
	})
}

// use takes, keeps, parks, resumes, forgets and releases locks.
func use(t *testing.T, rec *Recorder, locks *joblock.Locker, dice *rand.Rand) {
	ctx := t.Context()
	for range 60 {
		key := fmt.Sprint("k", dice.IntN(2))
		h, err := rec.Acquire(ctx, locks, key, joblock.MaxWait(time.Duration(dice.IntN(300))*time.Millisecond))
		if err != nil {
			if !errors.Is(err, joblock.ErrTimeout) && !errors.Is(err, joblock.ErrHeld) {
				t.Error(err)
			}
			continue
		}
		for range dice.IntN(3) {
			if h = stay(ctx, h, dice); h.Look() != nil {
				break
			}
			job := []string{"", "q/1", "q/2"}[dice.IntN(3)]
			token, err := h.Park(ctx, 200*time.Millisecond, job)
			if err != nil {
				break
			}
			time.Sleep(time.Duration(dice.IntN(100)) * time.Millisecond)
			var next *Holding
			if dice.IntN(4) == 0 {
				next, err = h.Reclaim(ctx)
			} else {
				next, err = rec.Resume(ctx, locks, token, 200*time.Millisecond, job)
			}
			if err != nil {
				break
			}
			h = next
		}
		stay(ctx, h, dice)
		_ = h.Release(ctx, nil) // whatever it says is in the history
	}
}

// lineUp has jobs wait in line, and runs them.
func lineUp(t *testing.T, rec *Recorder, locks *joblock.Locker, name string, dice *rand.Rand) {
	ctx, granted := t.Context(), func(string, string) {}
	for i := range 30 {
		key, job := fmt.Sprint("k", dice.IntN(2)), fmt.Sprint(name, ".", i)
		token, err := joblock.NewToken(key, "owner of "+job, 100*time.Millisecond)
		if err != nil {
			t.Error(err)
			return
		}
		for range 20 {
			waits, err := rec.Take(ctx, locks, token, job, 200*time.Millisecond, 300*time.Millisecond)
			if err != nil && !errors.Is(err, joblock.ErrHeld) {
				t.Error(err)
			}
			if !waits || dice.IntN(20) == 0 {
				break
			}
			time.Sleep(time.Duration(dice.IntN(100)) * time.Millisecond)
		}
		h, err := rec.Resume(ctx, locks, token, 200*time.Millisecond, job)
		if err != nil {
			_ = rec.Free(ctx, locks, key, job, 0, granted)
			continue
		}
		stay(ctx, h, dice)
		_ = h.Release(ctx, granted)
	}
}

// keep reserves and frees the locks of jobs.
func keep(t *testing.T, rec *Recorder, locks *joblock.Locker, dice *rand.Rand) {
	for range 200 {
		time.Sleep(20 * time.Millisecond)
		st, err := testkit.One(locks.Status(t.Context(), fmt.Sprint("k", dice.IntN(2))))
		if err != nil {
			t.Error(err)
		}
		switch {
		case st.Job == "":
		case dice.IntN(3) == 0:
			_ = rec.Reserve(t.Context(), locks, jobs.Reservation{Key: st.Key, Job: st.Job, For: 300 * time.Millisecond}, nil)
		default:
			_ = rec.Free(t.Context(), locks, st.Key, st.Job, st.Fence, nil)
		}
	}
}

func stay(ctx context.Context, h *Holding, dice *rand.Rand) *Holding {
	if dice.IntN(5) == 0 {
		(*core.Lock)(h.Lock).StopRenewing()
	}
	for range dice.IntN(6) {
		time.Sleep(time.Duration(dice.IntN(40)) * time.Millisecond)
		if dice.IntN(8) == 0 {
			_ = h.Renew(ctx)
		}
		_ = h.Look()
	}
	return h
}

func TestReadLeavesOutTornLine(t *testing.T) {
	events, err := Read(strings.NewReader("{\"kind\":\"lost\",\"at\":7}\n{\"kind\":\"los"))
	if err != nil || len(events) != 1 || events[0].At != 7 {
		t.Errorf("%v, %v", events, err)
	}
	if _, err := Read(strings.NewReader("{}\n{\n")); err == nil || !strings.Contains(err.Error(), "event 2") {
		t.Errorf("%v, want it to name event 2", err)
	}
}

// A history that could not be written is not to be taken for a short one.
func TestRecorderReportsWriteError(t *testing.T) {
	rec := NewRecorder(brokenWriter{}, "p")
	rec.write(Event{})
	rec.write(Event{})
	if err := rec.Err(); !errors.Is(err, errBroken) {
		t.Errorf("%v", err)
	}
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }
