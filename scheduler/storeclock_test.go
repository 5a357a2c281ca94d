package scheduler

import (
	"testing"
	"time"
	"unsafe"
)

// nodeClock is a node's clock that is moved by hand. Its wall clock can be moved without its
// monotonic reading.
type nodeClock struct {
	at   time.Time
	wall time.Duration
}

// now relies on the layout of a time.Time with a monotonic reading: the seconds of the wall
// clock start at bit 30 of the first word. No call makes such a time.
func (c *nodeClock) now() time.Time {
	t := c.at
	*(*uint64)(unsafe.Pointer(&t)) += uint64(int64(c.wall/time.Second)) << 30
	return t
}

func TestClockFollowsTheStore(t *testing.T) {
	own := &nodeClock{at: time.Now()}
	c := storeClock{local: own.now}
	store := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ask := func(there, back time.Duration) time.Duration {
		sent := own.now()
		own.at, store = own.at.Add(there), store.Add(there)
		answer := store
		own.at, store = own.at.Add(back), store.Add(back)
		return c.learn(sent, answer)
	}
	pass := func(d time.Duration) { own.at, store = own.at.Add(d), store.Add(d) }
	wantOff := func(most time.Duration) {
		t.Helper()
		if off := c.now().Sub(store); off.Abs() > most {
			t.Errorf("off by %s, want at most %s", off, most)
		}
	}
	if c.synced() {
		t.Error("synced before the first answer")
	}
	ask(2*time.Millisecond, 0)
	wantOff(time.Millisecond)
	for range 10 { // slow answers do no harm, whichever way is the slow one
		ask(time.Second, 0)
		ask(0, time.Second)
		wantOff(time.Millisecond)
	}
	for range 10 { // nor do steps of the wall clock
		own.wall += time.Hour
		pass(time.Second)
		wantOff(time.Millisecond)
	}
	ask(time.Millisecond, time.Millisecond)
	for range 100 { // the two clocks drift apart by a thousandth
		pass(10 * time.Second)
		own.at = own.at.Add(10 * time.Millisecond)
		ask(time.Millisecond, time.Millisecond)
		wantOff(2 * time.Millisecond)
	}
	store = store.Add(-time.Hour)
	if moved := ask(0, time.Millisecond); (moved + time.Hour).Abs() > 10*time.Millisecond {
		t.Errorf("learn reports a move by %s, want -1h", moved)
	}
	wantOff(2 * time.Millisecond)

	if !c.synced() {
		t.Error("not synced")
	}
	own.wall += time.Minute // the machine was suspended: the monotonic clock stood still
	store = store.Add(time.Minute)
	if c.synced() {
		t.Error("synced though the monotonic clock stood still for a minute")
	}
	ask(0, time.Millisecond)
	wantOff(2 * time.Millisecond)
	if !c.synced() {
		t.Error("not synced by an answer")
	}
}
