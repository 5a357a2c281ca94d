package keyspace

import (
	"strings"
	"testing"
	"time"
)

// What was said about a limit comes back, and no other text passes for it.
func TestSaid(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	for _, s := range []Said{{3, at, 0, "", "web-1:77"}, {256, at, 2, "a", ""}, {1, at, 0, " 5 two ", "two  words "}, {1, time.Time{}, 0, "ä", "ü"}} {
		if got, ok := ParseSaid(s.String()); !ok || got != s {
			t.Errorf("%+v came back as %+v, %t", s, got, ok)
		}
	}
	long := Said{N: 3, Since: at, First: strings.Repeat("ä", 200), By: strings.Repeat("ü", 200)}
	if got, ok := ParseSaid(long.String()); len(long.String()) > maxSaid || !ok || len(got.By) < 90 || len(got.First) < 90 || !strings.HasPrefix(long.First, got.First) || !strings.HasPrefix(long.By, got.By) {
		t.Errorf("a long label: %d bytes, %+v", len(long.String()), got)
	}
	for _, text := range []string{"", "3", "web-1:77", "0 1 0 x", "3 x 0 y", "3 1 -1 y", "3 -1 0 y", "3 1 x y", "3 1 0", "3 1 0 y", "3 9999999999999 0 0 y", "3 1 0 x y", "3 1 0 2 y", "3 1 0 -1 y", "3 1 0 1 ü"} {
		if got, ok := ParseSaid(text); ok {
			t.Errorf("%q passes for %+v", text, got)
		}
	}
}
