package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// listAll turns all pages over and returns how often each key was seen.
func listAll(t *testing.T, k *kit, req driver.ListRequest) map[string]int {
	t.Helper()
	seen := map[string]int{}
	todo := []string{req.Cursor}
	for pages := 0; len(todo) > 0; pages++ {
		req.Cursor, todo = todo[0], todo[1:]
		page, err := k.List(context.Background(), req)
		if err != nil {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, rec := range page.Records {
			seen[rec.Key]++
		}
		todo = append(todo, page.Next...)
		if pages > 10_000 {
			t.Fatal("the list does not end")
		}
	}
	return seen
}

func TestListTurnsOverManyPages(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		const n = 500
		for i := range n {
			k.acquire(fmt.Sprintf("k%03d", i))
		}
		for _, count := range []int{-1, 0, 1, 7, 1 << 40} {
			seen := listAll(t, k, driver.ListRequest{Count: count})
			if len(seen) != n {
				t.Errorf("with count %d the listing has %d keys, want %d", count, len(seen), n)
			}
		}
		if seen := listAll(t, k, driver.ListRequest{Prefix: "k12", Count: 50}); len(seen) != 10 {
			t.Errorf("prefix k12 gave %v", seen)
		}
	})
}

func TestListTakesPrefixesLiterally(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		odd := []string{"a*b", "a?b", "a[x]b", `a\b`, "a^b", "a-b", "a]b", `a\*b`, "[^a]", "axb"}
		for _, key := range odd {
			k.acquire(key)
		}
		for _, key := range odd {
			if seen := listAll(t, k, driver.ListRequest{Prefix: key}); len(seen) != 1 || seen[key] != 1 {
				t.Errorf("prefix %q gave %v", key, seen)
			}
		}
	})
}

func TestListShowsForeignValuesAndNothingElsesKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		k.acquire("ours")
		k.rdb.Set(ctx, "joblock:text", "v", 0)
		k.rdb.Set(ctx, "elsewhere", "v", 0)
		k.rdb.Set(ctx, "joblock:%%of a later version", "v", 0)
		page, err := k.List(ctx, driver.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]driver.State{}
		for _, rec := range page.Records {
			got[rec.Key] = rec.State
		}
		if len(got) != 2 || got["ours"] != driver.StateHeld || got["text"] != driver.StateForeign {
			t.Errorf("list gave %v", got)
		}
	})
}

func TestForgedCursorsAreRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		for _, c := range []string{"x", "-1", "0", "01", "1@", "@", "0@", "1@node:1", "0@node:1", "18446744073709551616", "1 ", " 1"} {
			if _, err := k.List(context.Background(), driver.ListRequest{Cursor: c}); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("cursor %q: %v, want ErrInvalid", c, err)
			}
		}
	})
}
