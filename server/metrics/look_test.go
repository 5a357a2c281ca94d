package metrics

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
)

// looking runs f in virtual time with a look that reads numbers: the first reading is 1.
func looking(t *testing.T, f func(t *testing.T, l *look[int], c *cluster, answer func(time.Duration, error), log *testkit.Log)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{}
		c.ctx, c.cancel = context.WithCancel(context.Background())
		log := &testkit.Log{}
		var mu sync.Mutex
		n, took, err := 0, time.Duration(0), error(nil)
		l := &look[int]{part: "locks", every: 30 * time.Second, most: time.Minute, log: log.Text(), read: func(ctx context.Context) (int, error) {
			mu.Lock()
			n++
			value, takes, failed := n, took, err
			mu.Unlock()
			select {
			case <-time.After(takes):
				return value, failed
			case <-ctx.Done():
				return value, context.Cause(ctx)
			}
		}}
		f(t, l, c, func(takes time.Duration, failed error) {
			mu.Lock()
			defer mu.Unlock()
			took, err = takes, failed
		}, log)
		testkit.WantNil(t, "close", c.close(context.Background()))
	})
}

// scrape returns what a scrape sees, 0 if that is absent, and how long it took.
func scrape(l *look[int], c *cluster) (value int, took time.Duration) {
	began := time.Now()
	l.begin(c.run)
	late := make(chan struct{})
	defer time.AfterFunc(patience, func() { close(late) }).Stop()
	if v := l.latest(late); v != nil {
		value = *v
	}
	return value, time.Since(began)
}

func wantScrape(t *testing.T, l *look[int], c *cluster, value int, took time.Duration) {
	t.Helper()
	if v, d := scrape(l, c); v != value || d != took {
		t.Errorf("a scrape has %d after %s, want %d after %s", v, d, value, took)
	}
}

// Scrapes share a reading for as long as it is fresh, and a slow reading holds no scrape up for long.
func TestScrapesShareALook(t *testing.T) {
	looking(t, func(t *testing.T, l *look[int], c *cluster, answer func(time.Duration, error), _ *testkit.Log) {
		answer(time.Second, nil)
		var group sync.WaitGroup
		for range 5 {
			group.Go(func() { wantScrape(t, l, c, 1, time.Second) })
		}
		group.Wait()
		time.Sleep(29 * time.Second)
		wantScrape(t, l, c, 1, 0)
		time.Sleep(time.Second)
		wantScrape(t, l, c, 2, time.Second)
		answer(50*time.Second, nil)
		time.Sleep(time.Minute)
		wantScrape(t, l, c, 2, patience) // the one before
		time.Sleep(time.Minute)
		wantScrape(t, l, c, 3, 0) // that has ended meanwhile
	})
}

// What could not be read is absent, and not what it was before. The next look comes soon.
func TestFailedLookIsAbsent(t *testing.T) {
	looking(t, func(t *testing.T, l *look[int], c *cluster, answer func(time.Duration, error), log *testkit.Log) {
		wantScrape(t, l, c, 1, 0)
		time.Sleep(time.Minute)
		answer(0, errors.New("away"))
		wantScrape(t, l, c, 0, 0)
		time.Sleep(again - 1)
		wantScrape(t, l, c, 0, 0)
		if n := l.failures(); n != 1 {
			t.Errorf("%v failures, want 1", n)
		}
		time.Sleep(time.Nanosecond)
		wantScrape(t, l, c, 0, 0)
		if n := strings.Count(log.String(), "away"); n != 1 || l.failures() != 2 {
			t.Errorf("%d warnings of %v failures:\n%s", n, l.failures(), log)
		}
		answer(0, nil)
		time.Sleep(again)
		wantScrape(t, l, c, 4, 0)
		answer(time.Hour, nil)
		time.Sleep(time.Minute)
		wantScrape(t, l, c, 4, patience)
		time.Sleep(time.Minute) // the reading takes too long
		if n := l.failures(); n != 3 {
			t.Errorf("%v failures, want 3", n)
		}
	})
}

// Close ends a reading, and after it there are no values.
func TestCloseEndsALook(t *testing.T) {
	looking(t, func(t *testing.T, l *look[int], c *cluster, answer func(time.Duration, error), log *testkit.Log) {
		answer(time.Hour, nil)
		wantScrape(t, l, c, 0, patience)
		began := time.Now()
		testkit.WantNil(t, "close", c.close(t.Context()))
		if time.Since(began) != 0 || l.failures() != 0 || log.String() != "" {
			t.Errorf("after %s, with %v failures:\n%s", time.Since(began), l.failures(), log)
		}
		wantScrape(t, l, c, 0, 0)
	})
}
