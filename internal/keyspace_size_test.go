package internal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// What was said about a limit comes back, and no other text passes for it.
func TestWhatWasSaidAboutALimitComesBack(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	for _, s := range []keyspace.Said{
		{N: 3, Since: at, By: "web-1:77"},
		{N: 256, Since: at, Before: 2, First: "a"},
		{N: 1, Since: at, First: " 5 two ", By: "two  words "},
		{N: 1, First: "ä", By: "ü"},
	} {
		if got, ok := keyspace.ParseSaid(s.String()); !ok || got != s {
			t.Errorf("%+v came back as %+v, %t", s, got, ok)
		}
	}
	long := keyspace.Said{N: 3, Since: at, First: strings.Repeat("ä", 200), By: strings.Repeat("ü", 200)}
	if got, ok := keyspace.ParseSaid(long.String()); len(long.String()) > driver.MaxLabelBytes || !ok || len(got.By) < 90 || len(got.First) < 90 || !strings.HasPrefix(long.First, got.First) || !strings.HasPrefix(long.By, got.By) {
		t.Errorf("a long label: %d bytes, %+v", len(long.String()), got)
	}
	for _, text := range []string{"", "3", "web-1:77", "0 1 0 x", "3 x 0 y", "3 1 -1 y", "3 -1 0 y", "3 1 x y", "3 1 0", "3 1 0 y", "3 9999999999999 0 0 y", "3 1 0 x y", "3 1 0 2 y", "3 1 0 -1 y", "3 1 0 1 ü"} {
		if got, ok := keyspace.ParseSaid(text); ok {
			t.Errorf("%q passes for %+v", text, got)
		}
	}
}
