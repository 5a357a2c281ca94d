package joblock_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memo"
)

// Each option is one of exactly the calls that have a use for it; see the table in
// options.go. What is not here does not compile.
func TestOptionsAreTypedByCall(t *testing.T) {
	calls := map[string]reflect.Type{
		"TryAcquire":     optionOf((*joblock.Locker).TryAcquire),
		"Acquire":        optionOf((*joblock.Locker).Acquire),
		"AcquireAll":     optionOf((*joblock.Locker).AcquireAll),
		"Do":             optionOf((*joblock.Locker).Do),
		"Singleton":      optionOf((*joblock.Locker).Singleton),
		"Resume":         optionOf((*joblock.Locker).Resume),
		"Park":           optionOf((*joblock.Lock).Park),
		"Lock.Release":   optionOf((*joblock.Lock).Release),
		"Locker.Release": optionOf((*joblock.Locker).Release),
		"ForceRelease":   optionOf((*joblock.Locker).ForceRelease),
	}
	acquiring := []string{"TryAcquire", "Acquire", "AcquireAll", "Do", "Singleton"}
	taking := append([]string{"Resume"}, acquiring...)
	for name, option := range map[string]struct {
		made any
		by   []string
	}{
		"TTL":       {joblock.TTL, taking},
		"Holder":    {joblock.Holder, taking},
		"NoRenew":   {joblock.NoRenew, taking},
		"MaxRenew":  {joblock.MaxRenew, taking},
		"Retain":    {joblock.Retain, taking},
		"WithGrant": {memo.WithGrant, taking},
		"Owner":     {joblock.Owner, acquiring},
		"MaxWait":   {joblock.MaxWait, acquiring},
		"Reserve":   {joblock.Reserve, []string{"Resume", "Park"}},
		"ForJob":    {joblock.ForJob, []string{"Resume", "Park"}},
		"IfIdle":    {joblock.IfIdle, []string{"Locker.Release", "ForceRelease"}},
		"IfFence":   {joblock.IfFence, []string{"Locker.Release", "ForceRelease"}},
		"Reason":    {joblock.Reason, []string{"Lock.Release", "Locker.Release", "ForceRelease"}},
	} {
		want := make(map[string]bool)
		for _, call := range option.by {
			want[call] = true
		}
		made := reflect.TypeOf(option.made).Out(0)
		for call, takes := range calls {
			if got := made.Implements(takes); got != want[call] {
				t.Errorf("%s takes %s: %t", call, name, got)
			}
		}
	}
}

// A call that does not wait has no use for a bound of the wait.
func TestTryAcquireRefusesMaxWait(t *testing.T) {
	k := newKit(t, nil)
	_, err := k.locks.TryAcquire(t.Context(), "key", joblock.MaxWait(time.Second))
	wantErr(t, err, joblock.ErrInvalid)
	_, err = limit.New(k.locks, 1).TryAcquire(t.Context(), "key", joblock.MaxWait(time.Second))
	wantErr(t, err, joblock.ErrInvalid)
}

// A token is released under one fence alone.
func TestReleaseOfATokenIfFence(t *testing.T) {
	k := newKit(t, nil)
	lock := k.acquire("key")
	wantErr(t, k.locks.Release(t.Context(), lock.Token(), joblock.IfFence(lock.Fence()-1)), joblock.ErrNotOwner)
	k.wantState("key", joblock.StateHeld)
	wantNil(t, "Release", k.locks.Release(t.Context(), lock.Token(), joblock.IfFence(lock.Fence())))
	k.wantState("key", joblock.StateFree)
}

// optionOf returns the type of the options that call takes.
func optionOf(call any) reflect.Type {
	typ := reflect.TypeOf(call)
	return typ.In(typ.NumIn() - 1).Elem()
}
