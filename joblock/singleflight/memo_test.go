package singleflight_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// plant writes text as the memo of "key", as any program that can write to the store might.
func (k *kit) plant(text []byte) {
	k.Helper()
	lock := k.Acquire("key")
	wantNil(k, "memo.Write", memo.Write(k.Context(), lock, text))
	wantNil(k, "Release", lock.Release(k.Context()))
}

// result is the memo that Do leaves for a value of type T.
func result[T any](k *kit, v T) []byte {
	k.Helper()
	_, err := singleflight.Do(k.Context(), k.Locks, "template", time.Minute, func(context.Context) (T, error) { return v, nil })
	wantNil(k, "Do", err)
	return k.Record("template").Memo
}

// flyOver reports whether a caller who wants a T computes, rather than be given
// what is kept at "key".
func flyOver[T any](k *kit) (computed bool) {
	k.Helper()
	_, err := singleflight.Do(k.Context(), k.Locks, "key", time.Minute, func(context.Context) (v T, err error) {
		computed = true
		return v, nil
	})
	wantNil(k, "Do", err)
	return computed
}

type oldShape struct{ A int }

type newShape struct{ A string }

// touchy panics when it is decoded.
type touchy struct{ N int }

func (*touchy) DecodeMsgpack(*msgpack.Decoder) error { panic("not for me") }

// Only a fresh result of the caller's own type is one.
func TestFlightComputesOverAnythingElse(t *testing.T) {
	const header = 28
	forge := func(k *kit, body ...byte) []byte { return append(result(k, any(1))[:header:header], body...) }
	for name, tt := range map[string]struct {
		memo     func(k *kit) []byte
		computes func(k *kit) bool
		want     bool
	}{
		"its own":             {func(k *kit) []byte { return result(k, 1) }, flyOver[int], false},
		"nil pointer":         {func(k *kit) []byte { return result(k, (*rates)(nil)) }, flyOver[*rates], false},
		"nil interface":       {func(k *kit) []byte { return result(k, any(nil)) }, flyOver[any], false},
		"nothing at all":      {func(k *kit) []byte { return result(k, struct{}{}) }, flyOver[struct{}], false},
		"no memo":             {func(k *kit) []byte { return nil }, flyOver[int], true},
		"a checkpoint":        {func(k *kit) []byte { return []byte("checkpoint 7, and then some more text") }, flyOver[string], true},
		"another version":     {func(k *kit) []byte { m := result(k, 1); m[3]++; return m }, flyOver[int], true},
		"another type":        {func(k *kit) []byte { return result(k, 1) }, flyOver[int64], true},
		"a struct like it":    {func(k *kit) []byte { return result(k, oldShape{1}) }, flyOver[newShape], true},
		"an empty value":      {func(k *kit) []byte { return forge(k) }, flyOver[any], true},
		"cut short":           {func(k *kit) []byte { m := result(k, "text"); return m[:len(m)-1] }, flyOver[string], true},
		"too long":            {func(k *kit) []byte { return append(result(k, 1), 0) }, flyOver[int], true},
		"only a header's cut": {func(k *kit) []byte { return result(k, 1)[:header-1] }, flyOver[int], true},
		"huge array":          {func(k *kit) []byte { return forge(k, 0xdd, 0xff, 0xff, 0xff, 0xff) }, flyOver[any], true},
		"huge map":            {func(k *kit) []byte { return forge(k, 0xdf, 0xff, 0xff, 0xff, 0xff) }, flyOver[any], true},
		"huge bytes":          {func(k *kit) []byte { return forge(k, 0xc6, 0xff, 0xff, 0xff, 0xff) }, flyOver[any], true},
		"panicking decoder":   {func(k *kit) []byte { return result(k, touchy{1}) }, flyOver[touchy], true},
		"endless life": {func(k *kit) []byte {
			m := result(k, 1)
			binary.BigEndian.PutUint64(m[header-8:], 1<<63-1)
			return m
		}, flyOver[int], true},
		"written before time": {func(k *kit) []byte {
			m := result(k, 1)
			binary.BigEndian.PutUint64(m[header-16:], 1<<63)
			return m
		}, flyOver[int], true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				k.plant(bytes.Clone(tt.memo(k)))
				if got := tt.computes(k); got != tt.want {
					t.Errorf("computed %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// A struct whose memo does not fit any more: same name, another type of field.
func TestFlightComputesOverAnOlderShape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		memo := result(k, newShape{"text"})
		body, err := msgpack.Marshal(oldShape{1})
		wantNil(t, "Marshal", err)
		k.plant(append(memo[:28:28], body...))
		if !flyOver[newShape](k) {
			t.Error("a number was taken for a string")
		}
	})
}

// A struct that has got a field since takes what is there.
func TestFlightTakesAResultWithFieldsMissingOrUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		memo := result(k, newShape{"text"})
		body, err := msgpack.Marshal(map[string]string{"B": "unknown"})
		wantNil(t, "Marshal", err)
		k.plant(append(memo[:28:28], body...))
		if flyOver[newShape](k) {
			t.Error("computed")
		}
	})
}

// The nested arrays of a whole memo must not be the end of the process.
func TestFlightSurvivesADeepResult(t *testing.T) {
	k := newKit(t, nil)
	memo := result(k, any(1))[:28:28]
	memo = append(memo, bytes.Repeat([]byte{0x91}, driver.MaxMemoBytes-len(memo)-1)...)
	k.plant(append(memo, 0xc0))
	if flyOver[any](k) {
		t.Error("computed, though it is a value like any other")
	}
}

// When the store's clock jumps, a result may seem too old, but only within the size
// of the jump too fresh; and one from the future is none.
func TestFlightWhenTheStoreClockIsSet(t *testing.T) {
	for _, tt := range []struct {
		name     string
		age      time.Duration // when the clock is set
		step     time.Duration
		computes bool
	}{
		{"ahead within its life", 10 * time.Second, 49 * time.Second, false},
		{"ahead beyond it", 10 * time.Second, 50 * time.Second, true},
		{"back to before it was written", 10 * time.Second, -11 * time.Second, true},
		{"back by a year", 0, -366 * 24 * time.Hour, true},
		{"back within its life", 50 * time.Second, -45 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				c := computer{}
				c.fly(t, k.Locks, time.Minute)
				time.Sleep(tt.age)
				k.StoreSkew += tt.step
				c.fly(t, k.Locks, time.Minute)
				if computed := c.runs.Load() == 2; computed != tt.computes {
					t.Fatalf("computed %v, want %v", computed, tt.computes)
				}
				if !tt.computes {
					return
				}
				// The new one lives by the new clock: its TTL, and not until the clock is
				// back where it was.
				time.Sleep(time.Minute - time.Millisecond)
				if n := c.fly(t, k.Locks, time.Minute); n != 2 {
					t.Errorf("just before its end got run %d", n)
				}
				time.Sleep(time.Millisecond)
				if n := c.fly(t, k.Locks, time.Minute); n != 3 {
					t.Errorf("after its end got run %d", n)
				}
			})
		})
	}
}

// No caller that waits while the clock is behind the fences gets a stale result.
func TestFlightWaitersAreNeverServedAStaleResultAfterAStepBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		wantNil(t, "Release", k.Acquire("key").Release(t.Context())) // a fence from before the step
		k.StoreSkew = -time.Hour
		c := computer{took: 30 * time.Second}
		done := make(chan struct{})
		for range 5 {
			go func() {
				defer func() { done <- struct{}{} }()
				start := time.Now()
				n := c.fly(t, k.Locks, time.Second)
				if d := time.Since(start); d != time.Duration(n)*c.took {
					t.Errorf("got run %d after %s", n, d)
				}
			}()
		}
		for range 5 {
			<-done
		}
	})
}
