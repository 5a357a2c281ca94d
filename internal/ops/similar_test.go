package ops

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/rate"
)

// locksOf returns locks with these keys, and then the error, if there is one.
func locksOf(err error, keys ...string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		for _, key := range keys {
			l := Lock{Key: key}
			l.Role, l.Group, l.Number = roleOf(key)
			if !yield(l, nil) {
				return
			}
		}
		if err != nil {
			yield(Lock{}, err)
		}
	}
}

func TestKeysThatAreLikeAMistypedOne(t *testing.T) {
	keys := []string{
		"export:acct-7", "export:acct-71", "exports:acct-7", "import:prices", "deploy:shop", "webhooks:shop-1", "webhooks:shop-2",
		"geocoder%#1", "geocoder%#2", "geocoder%#gate", "%cron:shop:rollup", "%keeper%#1", "a",
	}
	for text, want := range map[string]string{
		"deploy:shpo":     "deploy:shop",
		"deplyo:shop":     "deploy:shop",
		"DEPLOY_SHOP":     "deploy:shop",
		"deploy":          "deploy:shop",
		"deploy:shop:eu":  "deploy:shop",
		"acct-7":          "export:acct-7 export:acct-71 exports:acct-7",
		"expotr:acct-7":   "export:acct-7 export:acct-71 exports:acct-7",
		"geocodr":         "geocoder",
		"webhooks:shop-3": "webhooks:shop-1 webhooks:shop-2",
		"rollup":          "",
		"a":               "",
		"b":               "",
		"":                "",
		"invoices":        "",
		"import:price":    "import:prices",
	} {
		got, err := SimilarTo(text, false, locksOf(nil, keys...))
		if is := strings.Join(got.Keys, " "); err != nil || is != want || got.Looked != 9 {
			t.Errorf("%q: %s, %d looked at, %v; want %s", text, is, got.Looked, err, want)
		}
	}
	for text, want := range map[string]string{
		"exprot:": "export:acct-7 export:acct-71 exports:acct-7",
		"deploi":  "deploy:shop",
		"geo":     "geocoder",
		"acct":    "",
		"x":       "",
	} {
		got, err := SimilarTo(text, true, locksOf(nil, keys...))
		if is := strings.Join(got.Keys, " "); err != nil || is != want {
			t.Errorf("the prefix %q: %s, %v; want %s", text, is, err, want)
		}
	}
	if got, _ := SimilarTo("export:", true, locksOf(nil, keys...)); got.Begin != 2 {
		t.Errorf("%d keys begin with export:", got.Begin)
	}
	var many []string
	for i := range 30 {
		many = append(many, fmt.Sprintf("job:%02d", i))
	}
	broken := errors.New("away")
	got, err := SimilarTo("job:99", false, locksOf(broken, many...))
	if err != broken || !slices.Equal(got.Keys, []string{"job:09", "job:19", "job:29", "job:00", "job:01"}) {
		t.Errorf("%q, %v", got.Keys, err)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b          string
		whole, prefix int
	}{
		{"", "", 0, 0}, {"abc", "", 3, 3}, {"", "abc", 3, 0}, {"abc", "abc", 0, 0}, {"abc", "acb", 1, 1}, {"abc", "abcd", 1, 0},
		{"abc", "xbc", 1, 1}, {"abcd", "abd", 1, 1}, {"ca", "abc", 3, 1}, {"kitten", "sitting", 3, 2},
	} {
		if got := distance([]rune(c.a), []rune(c.b), false); got != c.whole {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.whole)
		}
		if got := distance([]rune(c.a), []rune(c.b), true); got != c.prefix {
			t.Errorf("from %q to a beginning of %q: %d, want %d", c.a, c.b, got, c.prefix)
		}
	}
}

// A key is unknown only if the store has no record of it and no caller waits for it.
func TestUnknownKeys(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
		d, err := New(Config{Locks: locks})
		testkit.WantNil(t, "New", err)
		held, err := locks.TryAcquire(t.Context(), "held")
		testkit.WantNil(t, "TryAcquire", err)
		freed, err := locks.TryAcquire(t.Context(), "freed", joblock.Retain(time.Hour))
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "Release", freed.Release(t.Context()))
		_, err = limit.New(locks, 2).TryAcquire(t.Context(), "limited")
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "Allow", rate.Allow(t.Context(), locks, rate.Limit{Key: "rated", N: 1, Per: time.Hour}))
		for key, want := range map[string]bool{"rated": false, "held": false, "freed": false, "limited": false, "hedl": true} {
			e, err := d.Explain(t.Context(), key)
			testkit.WantNil(t, "Explain", err)
			l, err := d.Lock(t.Context(), key)
			testkit.WantNil(t, "Lock", err)
			if e.Lock.Unknown() != want || l.Unknown() != want {
				t.Errorf("%s is unknown: %v and %v, want %v", key, e.Lock.Unknown(), l.Unknown(), want)
			}
		}
		testkit.WantNil(t, "Release", held.Release(t.Context()))
	})
}
