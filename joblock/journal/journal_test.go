package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/scheduler"
)

var errAway = errors.New("away")

// paper is a stream in memory, which can fail.
type paper struct {
	mu      sync.Mutex
	entries []eventlog.Entry
	writes  int           // calls
	fail    int           // so many calls fail
	keep    int           // so many entries of a call that fails are written nevertheless
	block   chan struct{} // a call waits until it is closed
}

func (p *paper) write(ctx context.Context, texts []string) (int, error) {
	p.mu.Lock()
	block := p.block
	p.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	var err error
	if p.fail > 0 {
		p.fail--
		texts, err = texts[:min(p.keep, len(texts))], errAway
	}
	for _, text := range texts {
		var e eventlog.Entry
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			return 0, err
		}
		p.entries = append(p.entries, e)
	}
	return len(texts), err
}

// lines returns what was written, as "kind key" or "dropped n".
func (p *paper) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for _, e := range p.entries {
		line := e.Kind + " " + e.Key
		if e.Kind == eventlog.KindDropped {
			line = fmt.Sprint(e.Kind, " ", e.Dropped)
		}
		lines = append(lines, line)
	}
	return lines
}

// written returns the entries that were written, and the number of calls.
func (p *paper) written() (entries []eventlog.Entry, writes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.entries), p.writes
}

// fails makes the next calls fail. Of the entries of each, the first ones are written.
func (p *paper) fails(calls, keep int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail, p.keep = calls, keep
}

// writing runs f in virtual time with a Journal that writes on a paper.
func writing(t *testing.T, cfg Config, f func(t *testing.T, j *Journal, p *paper, log *testkit.Log)) {
	synctest.Test(t, func(t *testing.T) {
		log := &testkit.Log{}
		cfg.Logger = log.Text()
		full, err := cfg.full()
		testkit.WantNil(t, "full", err)
		p := &paper{}
		j := begin(full, p.write)
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = j.Close(ctx)
		}()
		f(t, j, p, log)
	})
}

func lost(n int) event.Event {
	return event.Event{Kind: event.Lost, Key: fmt.Sprint("k", n), Err: joblock.ErrLost}
}

func wantLines(t *testing.T, p *paper, want ...string) {
	t.Helper()
	if got := p.lines(); !slices.Equal(got, want) {
		t.Errorf("written: %q\nwant     %q", got, want)
	}
}

// By default the journal has what is not routine; with All it has all.
func TestWhatIsKept(t *testing.T) {
	second := event.Event{Waited: time.Second}
	for _, tc := range []struct {
		name string
		e    event.Event
		kept bool
	}{
		{"acquired at once", event.Event{Kind: event.Acquired, Prior: driver.EndedReleased}, false},
		{"acquired soon", event.Event{Kind: event.Acquired, Waited: time.Second - 1}, false},
		{"acquired after a second", event.Event{Kind: event.Acquired, Waited: second.Waited}, true},
		{"acquired after a death", event.Event{Kind: event.Acquired, Prior: driver.EndedLapsed}, true},
		{"resumed", event.Event{Kind: event.Resumed}, false},
		{"recovered", event.Event{Kind: event.Resumed, Recovered: true}, true},
		{"released", event.Event{Kind: event.Released}, false},
		{"released without an answer", event.Event{Kind: event.Released, Err: joblock.ErrUnavailable}, true},
		{"contended", event.Event{Kind: event.Contended}, false},
		{"gave up", event.Event{Kind: event.GaveUp}, true},
		{"reclaimed", event.Event{Kind: event.Reclaimed}, false},
		{"parked", event.Event{Kind: event.Parked}, false},
		{"lost", event.Event{Kind: event.Lost}, true},
		{"late", event.Event{Kind: event.RenewedLate}, true},
		{"unanswered", event.Event{Kind: event.RenewalUnanswered}, true},
		{"by token", event.Event{Kind: event.ReleasedByToken}, false},
		{"freed", event.Event{Kind: event.Freed}, true},
		{"forced", event.Event{Kind: event.Forced}, true},
		{"cleanup failed", event.Event{Kind: event.CleanupFailed}, true},
		{"fell back", event.Event{Kind: event.FellBack}, true},
		{"overran", event.Event{Kind: event.Overran}, true},
	} {
		for _, all := range []bool{false, true} {
			writing(t, Config{All: all}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
				j.Observe(tc.e)
				time.Sleep(time.Second)
				if kept := len(p.lines()) == 1; kept != (tc.kept || all) {
					t.Errorf("%s, All %v: kept %v", tc.name, all, kept)
				}
			})
		}
	}
}

// Every field of an event comes into the journal.
func TestFieldsOfAnEvent(t *testing.T) {
	writing(t, Config{Source: "web:1"}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		j.Observe(event.Event{
			Kind: event.Lost, Key: "k", Owner: "#0123", Fence: 7, Holder: "web-1", Job: "q/1", Reason: "why",
			Err: fmt.Errorf("x: %w", joblock.ErrLost), Waited: time.Second, Held: 2 * time.Second, Late: 3 * time.Second,
			Remaining: 4 * time.Second, Prior: driver.EndedLapsed, Recovered: true, Locks: 5,
		})
		j.Observe(event.Event{Kind: event.Forced, Err: errors.New(strings.Repeat("é", mostText))})
		j.ObserveCron("shop")(scheduler.Event{
			Kind: scheduler.Failed, Tick: scheduler.Tick{Name: "report", At: time.UnixMilli(99)}, Node: "n", Late: time.Second,
			Took: 2 * time.Second, Attempts: 3, Count: 4, Err: errAway,
		})
		time.Sleep(time.Second)
		entries, _ := p.written()
		if len(entries) != 3 {
			t.Fatalf("%+v", entries)
		}
		a, b, c := entries[0], entries[1], entries[2]
		if a.Nonce == "" || a.Nonce == b.Nonce || b.Nonce == c.Nonce {
			t.Errorf("the nonces are %s, %s, %s", a.Nonce, b.Nonce, c.Nonce)
		}
		if a.Ago != gather.Milliseconds() {
			t.Errorf("written %d ms later, want %s", a.Ago, gather)
		}
		a.Nonce, c.Nonce, a.Ago, c.Ago = "", "", 0, 0
		if want := (eventlog.Entry{
			Kind: "lost", Key: "k", Owner: "#0123", Fence: 7, Holder: "web-1", Job: "q/1", Reason: "why", Error: "x: " + joblock.ErrLost.Error(),
			Code: "LOCK_LOST", Waited: 1000, Held: 2000, Late: 3000, Remaining: 4000, Prior: "lapsed", Recovered: true, Locks: 5, Source: "web:1",
		}); a != want {
			t.Errorf("got  %+v\nwant %+v", a, want)
		}
		if len(b.Error) > mostText+len("…") || strings.ContainsRune(b.Error, '\uFFFD') {
			t.Errorf("the error has %d bytes: %s", len(b.Error), b.Error)
		}
		if want := (eventlog.Entry{
			Kind: "cron failed", Key: "%cron:shop:report", Scope: "shop", Name: "report", Tick: time.UnixMilli(99).UTC(), Node: "n", Late: 1000,
			Took: 2000, Attempts: 3, Count: 4, Error: "away", Source: "web:1",
		}); c != want {
			t.Errorf("got  %+v\nwant %+v", c, want)
		}
	})
}

func TestCronEventsThatAreRoutine(t *testing.T) {
	kinds := []scheduler.Kind{scheduler.Started, scheduler.Done, scheduler.Paused, scheduler.Missed}
	for all, want := range map[bool]int{false: 1, true: 4} {
		writing(t, Config{All: all}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
			for _, kind := range kinds {
				j.ObserveCron("s")(scheduler.Event{Kind: kind})
			}
			time.Sleep(time.Second)
			if n := len(p.lines()); n != want {
				t.Errorf("All %v: %d entries, want %d", all, n, want)
			}
		})
	}
}

// While the store hangs, no caller waits: events without room are dropped, and the journal says where and how many.
func TestNoCallerWaitsForAStoreThatHangs(t *testing.T) {
	writing(t, Config{Buffer: 16, Timeout: time.Minute}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		p.block = make(chan struct{})
		began := time.Now()
		for i := range 20 {
			j.Observe(lost(i))
			synctest.Wait()
		}
		if time.Since(began) != 0 {
			t.Errorf("Observe took %s", time.Since(began))
		}
		if n := j.Dropped(); n != 4 {
			t.Errorf("dropped %d, want 4", n)
		}
		time.Sleep(time.Second)
		close(p.block)
		synctest.Wait()
		j.Observe(lost(20))
		time.Sleep(time.Second)
		var want []string
		for i := range 16 {
			want = append(want, fmt.Sprint("lost k", i))
		}
		wantLines(t, p, append(want, "dropped 4", "lost k20")...)
		if n := j.Dropped(); n != 4 {
			t.Errorf("dropped %d, want 4", n)
		}
	})
}

// Dropped events are recorded in their place, while others still wait.
func TestDroppedIsRecordedInItsPlace(t *testing.T) {
	writing(t, Config{Buffer: 16}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		p.fails(1, 10)
		for i := range 18 {
			j.Observe(lost(i))
		}
		time.Sleep(2 * gather) // ten are written, and six wait for the next try
		j.Observe(lost(18))
		time.Sleep(time.Minute)
		if lines := p.lines(); len(lines) != 18 || lines[15] != "lost k15" || lines[16] != "dropped 2" || lines[17] != "lost k18" {
			t.Errorf("written: %q", lines)
		}
	})
}

// Dropped events are recorded even if no event follows.
func TestDroppedIsRecordedAtTheEndOfABurst(t *testing.T) {
	writing(t, Config{Buffer: 16}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		for i := range 50 {
			j.Observe(lost(i))
		}
		time.Sleep(time.Second)
		if lines := p.lines(); len(lines) != 17 || lines[16] != "dropped 34" {
			t.Errorf("written: %q", lines)
		}
	})
}

// A write that fails is repeated, ever more rarely, from the first entry that is not written for certain. One warning
// tells.
func TestWritesAreRepeated(t *testing.T) {
	writing(t, Config{}, func(t *testing.T, j *Journal, p *paper, log *testkit.Log) {
		p.fails(5, 1)
		for i := range 10 {
			j.Observe(lost(i))
		}
		time.Sleep(gather + 14*time.Second) // 1+2+4+8 s of pauses are not over yet
		if _, writes := p.written(); writes != 4 {
			t.Errorf("%d writes, want 4", writes)
		}
		time.Sleep(time.Minute)
		var want []string
		for i := range 10 {
			want = append(want, fmt.Sprint("lost k", i))
		}
		wantLines(t, p, want...)
		if n := strings.Count(log.String(), "could not be written"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log)
		}
		p.fails(1, 0)
		j.Observe(lost(10))
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), "could not be written"); n != 2 {
			t.Errorf("%d warnings, want another one a minute later:\n%s", n, log)
		}
	})
}

// Many events go in few writes.
func TestEventsGoTogether(t *testing.T) {
	writing(t, Config{}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		for i := range 2*mostAtOnce + 1 {
			j.Observe(lost(i))
		}
		time.Sleep(time.Second)
		if entries, writes := p.written(); len(entries) != 2*mostAtOnce+1 || writes != 3 {
			t.Errorf("%d entries in %d writes", len(entries), writes)
		}
	})
}

func TestCloseWritesWhatIsLeft(t *testing.T) {
	writing(t, Config{}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		began := time.Now()
		j.Observe(lost(1))
		p.fails(2, 0)
		testkit.WantNil(t, "Close", j.Close(t.Context()))
		wantLines(t, p, "lost k1")
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close took %s", took)
		}
		j.Observe(lost(2))
		testkit.WantNil(t, "second Close", j.Close(t.Context()))
		wantLines(t, p, "lost k1")
		if n := j.Dropped(); n != 1 {
			t.Errorf("dropped %d, want the one after Close", n)
		}
	})
}

// Close does not wait beyond its context, and says how many events are lost.
func TestCloseHasADeadline(t *testing.T) {
	writing(t, Config{Buffer: 16}, func(t *testing.T, j *Journal, p *paper, _ *testkit.Log) {
		p.block = make(chan struct{})
		for i := range 18 {
			j.Observe(lost(i))
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errAway)
		defer cancel()
		began := time.Now()
		err := j.Close(ctx)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		if !errors.Is(err, errAway) || !strings.Contains(err.Error(), "16 events") || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if n := j.Dropped(); n != 18 {
			t.Errorf("dropped %d, want 18", n)
		}
		testkit.WantNil(t, "second Close", j.Close(t.Context()))
	})
}

func TestConfigIsChecked(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for want, cfg := range map[string]Config{
		"Contended is 25h0m0s": {Contended: 25 * time.Hour}, "Contended is -1s": {Contended: -time.Second},
		"Timeout is 1ms": {Timeout: time.Millisecond}, "Length is 99": {Length: 99}, "Length is 1000001": {Length: 1_000_001},
		"Buffer is 15": {Buffer: 15}, "Buffer is 1000001": {Buffer: 1_000_001}, "Source has 257 bytes": {Source: strings.Repeat("x", 257)},
	} {
		j, err := New(rdb, &cfg)
		testkit.WantErr(t, err, joblock.ErrInvalid)
		if j != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := New(nil, nil)
	testkit.WantErr(t, err, joblock.ErrInvalid)
	j, err := New(rdb, nil)
	testkit.WantNil(t, "New", err)
	testkit.WantNil(t, "Close", j.Close(t.Context()))
}
