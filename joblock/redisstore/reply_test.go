package redisstore

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
)

// What a script never returns must be an error, and never a panic, a grant or a
// refusal.
func TestHostileRepliesAreErrors(t *testing.T) {
	list := func(v ...any) any { return v }
	const ok, held, released, lapsed, foreign = int64(1), int64(2), int64(6), int64(7), int64(9)
	for name, val := range map[string]any{
		"nil":                     nil,
		"string":                  "OK",
		"number":                  ok,
		"map":                     map[any]any{"a": 1},
		"empty list":              list(),
		"nil outcome":             list(nil),
		"text outcome":            list("1"),
		"outcome 0":               list(int64(0)),
		"outcome above":           list(int64(10)),
		"outcome above, alone":    int64(10),
		"more alone":              more,
		"more and an outcome":     list(more, ok),
		"outcome negative":        list(int64(-1)),
		"outcome overflowing":     list(int64(256 + 1)),
		"ok without fence":        list(ok),
		"ok with fence 0":         list(ok, "0", "", int64(1), nil),
		"ok with number fence":    list(ok, int64(7), "", int64(1), nil),
		"ok with negative":        list(ok, "-7", "", int64(1), nil),
		"ok with list memo":       list(ok, "7", "", int64(1), list()),
		"ok with number memo":     list(ok, "7", "", int64(1), int64(1)),
		"ok with unknown end":     list(ok, "7", "exploded", int64(1), nil),
		"ok with a number as end": list(ok, "7", int64(0), int64(1), nil),
		"ok too short":            list(ok, "7", ""),
		"ok too long":             list(ok, "7", "", int64(1), nil, int64(1)),
		"ok with text lease":      list(ok, "7", "", "1", nil),
		"ok with past lease":      list(ok, "7", "", int64(-1), nil),
		"fast without fence":      "R",
		"fast with fence 0":       "R0",
		"fast with negative":      "--7",
		"fast with unknown end":   "X7",
		"held alone":              list(held),
		"held in unknown state":   list(held, int64(4), int64(1), "h", "j"),
		"held for negative":       list(held, int64(1), int64(-1), "h", "j"),
		"held with text ahead":    list(held, int64(1), int64(1), "h", "j", "x", "1"),
		"held without clock":      list(held, int64(1), int64(1), "h", "j", int64(0)),
		"held at clock 0":         list(held, int64(1), int64(1), "h", "j", int64(0), "0"),
		"held too long":           list(held, int64(1), int64(1), "h", "j", int64(0), "1", "x"),
		"released alone":          list(released),
		"released oddly":          list(released, int64(1), ""),
		"lapsed with more":        list(lapsed, int64(1)),
		"foreign alone":           list(foreign),
		"foreign without a key":   list(foreign, "string"),
		"foreign with more":       list(foreign, "string", "key", "x"),
		"float":                   list(1.0),
		"error inside":            list(ok, "7", errors.New("ERR"), int64(1), nil),
	} {
		r, err := parseReply(acquireScript, val)
		if !errors.Is(err, errReply) {
			t.Errorf("%s: error is %v, want errReply", name, err)
		}
		if r.Outcome != driver.OutcomeUnknown || r.Fence != 0 {
			t.Errorf("%s: reply is %+v, want an unknown outcome", name, r)
		}
	}
	for _, sc := range []*script{acquireScript, takeScript, resumeScript, parkScript, renewScript, releaseScript, reserveScript} {
		for _, text := range []string{"", "O", "OK", "QUEUED", "X7", "-0", "- 0"} {
			if r, err := parseReply(sc, text); !errors.Is(err, errReply) || !reflect.DeepEqual(r, driver.Reply{}) {
				t.Errorf("%q to %s: %+v, %v; want no reply and errReply", text, sc.op, r, err)
			}
		}
	}
}

func TestHostileRecordsAreErrors(t *testing.T) {
	good := func() []any {
		return []any{int64(1), int64(1), "secret owner", "7", "6", int64(10), int64(20), "30000", "40000", "40000", int64(30), "0", "h", "j", "", "", nil, int64(2), "1700000000000000"}
	}
	if rec, exists, err := parseRecord("k", good()); err != nil || !exists || rec.Fence != 7 || rec.Owner != "secret owner" {
		t.Fatalf("good record: %+v, %v, %v", rec, exists, err)
	}
	for i := range good() {
		for _, bad := range []any{[]any{}, -1.5, int64(-1), true} {
			val := good()
			val[i] = bad
			rec, _, err := parseRecord("k", val)
			if !errors.Is(err, errReply) {
				t.Errorf("field %d is %v: error is %v, want errReply", i, bad, err)
			} else if strings.Contains(err.Error(), "secret") {
				t.Errorf("error shows the owner: %v", err)
			}
			if rec.Owner != "" || rec.State != driver.StateFree {
				t.Errorf("field %d is %v: record is %+v, want only the key", i, bad, rec)
			}
		}
		if _, _, err := parseRecord("k", good()[:i]); !errors.Is(err, errReply) {
			t.Errorf("cut to %d fields: error is %v, want errReply", i, err)
		}
	}
	if _, _, err := parseRecord("k", []any{int64(driver.OutcomeHeld), int64(1), int64(1), "", ""}); !errors.Is(err, errReply) {
		t.Errorf("refusal instead of a record: error is %v, want errReply", err)
	}
}

func TestDurationsSaturate(t *testing.T) {
	f := fields{rest: []any{int64(math.MaxInt64)}}
	if d := f.dur(); d != math.MaxInt64 {
		t.Errorf("duration is %v, want the longest there is", d)
	}
}

// Anybody may publish to a channel. What names no term must not look as if it did.
func TestHostileForcedPushesAreDropped(t *testing.T) {
	s := &store{prefix: "joblock:", places: []string{"joblock:"}}
	const good = "7\njoblock:a key"
	if f, ok := s.parseForced(good); !ok || f != (driver.Push{Key: "a key", Fence: 7}) {
		t.Fatalf("good push: %+v, %v", f, ok)
	}
	for _, bad := range []string{
		"", "7", "7\n", "7\njoblock:", "seven\njoblock:k", "0\njoblock:k", "-7\njoblock:k", "7\nk", "99999999999999999999\njoblock:k",
	} {
		if f, ok := s.parseForced(bad); ok {
			t.Errorf("%q was taken for %+v", bad, f)
		}
	}
}
