package internal_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/eventlog"
)

func TestEntryOfTheEventLogComesBack(t *testing.T) {
	var e eventlog.Entry
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() { // every field, so that none is forgotten
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString(v.Type().Field(i).Name)
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(i + 1))
		case reflect.Bool:
			f.SetBool(true)
		default:
			f.Set(reflect.ValueOf(time.UnixMilli(77).UTC()))
		}
	}
	text, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	e.Ago = 500
	text2, _ := e.Encode()
	for _, text := range []string{text, text2} {
		got, at, ok := eventlog.Decode(redis.XMessage{ID: "10000-3", Values: map[string]any{eventlog.Field: text}})
		want := time.UnixMilli(10000 - got.Ago).UTC()
		if !ok || at != want {
			t.Errorf("at %s, %v; want %s", at, ok, want)
		}
		got.Ago = e.Ago
		if got != e {
			t.Errorf("got %+v, want %+v", got, e)
		}
	}
	for _, bad := range []redis.XMessage{
		{ID: "1-1", Values: map[string]any{"x": text}},
		{ID: "1-1", Values: map[string]any{eventlog.Field: "{}"}},
		{ID: "1-1", Values: map[string]any{eventlog.Field: "x"}},
		{ID: "x", Values: map[string]any{eventlog.Field: text}},
	} {
		if _, _, ok := eventlog.Decode(bad); ok {
			t.Errorf("%v is an entry", bad)
		}
	}
}

func TestIDsOfTheEventLog(t *testing.T) {
	for id, want := range map[string][2]int64{"0": {}, "5": {5, 0}, "17-3": {17, 3}} {
		if ms, seq, ok := eventlog.ParseID(id); !ok || ms != want[0] || seq != want[1] {
			t.Errorf("%s is %d, %d, %v", id, ms, seq, ok)
		}
	}
	for _, id := range []string{"", "-", "1-", "-1", "+1", "1-2-3", "x", "1-x", "99999999999999999999-1", " 1"} {
		if _, _, ok := eventlog.ParseID(id); ok {
			t.Errorf("%q is an ID", id)
		}
	}
	in := []string{"0", "1-5", "2-1", "2-10", "10-0"}
	for i, a := range in {
		for j, b := range in {
			if eventlog.Before(a, b) != (i < j) {
				t.Errorf("Before(%s, %s) is %v", a, b, i >= j)
			}
		}
	}
}
