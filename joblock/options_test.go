package joblock_test

import (
	"reflect"
	"testing"

	"github.com/joblock/toolkit/joblock"
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
	}
	waiting := []string{"Acquire", "AcquireAll", "Do", "Singleton"}
	acquiring := append([]string{"TryAcquire"}, waiting...)
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
		"MaxWait":   {joblock.MaxWait, waiting},
		"Reserve":   {joblock.Reserve, []string{"Resume", "Park"}},
		"ForJob":    {joblock.ForJob, []string{"Resume", "Park", "Locker.Release"}},
		"IfIdle":    {joblock.IfIdle, []string{"Locker.Release"}},
		"Reason":    {joblock.Reason, []string{"Lock.Release", "Locker.Release"}},
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

// optionOf returns the type of the options that call takes.
func optionOf(call any) reflect.Type {
	typ := reflect.TypeOf(call)
	return typ.In(typ.NumIn() - 1).Elem()
}
