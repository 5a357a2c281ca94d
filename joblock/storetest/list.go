package storetest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

// maxPages guards against a Store that never returns a last page.
const maxPages = 10_000

var listCases = []testCase{
	{"an empty store has an empty list", func(k *kit) {
		if got := k.list("", 10); len(got) != 0 {
			k.Errorf("listed %v, want nothing", slices.Collect(maps.Keys(got)))
		}
	}},
	{"pages add up to every record under the prefix, and to no other", func(k *kit) {
		var all, a []string
		for i := range 40 {
			for _, prefix := range []string{"a:", "b:"} {
				key := fmt.Sprintf("%s%02d", prefix, i)
				k.hold(key, "me")
				all = append(all, key)
				if prefix == "a:" {
					a = append(a, key)
				}
			}
		}
		for _, tc := range []struct {
			prefix string
			count  int
			want   []string
		}{
			{"", 7, all},
			{"", 1000, all},
			{"a:", 7, a},
			{"a:", 1, a},
			{"a:39", 7, []string{"a:39"}},
			{"c:", 7, nil},
		} {
			got := slices.Sorted(maps.Keys(k.list(tc.prefix, tc.count)))
			slices.Sort(tc.want)
			if !slices.Equal(got, tc.want) {
				k.Errorf("list %q by %d: got %d keys %q, want %d", tc.prefix, tc.count, len(got), got, len(tc.want))
			}
		}
	}},
	{"List and Inspect show the same record in every state", func(k *kit) {
		k.holdFor("lapsed", "me", k.Unit)
		k.runFor("orphaned", "me", "q/job", k.Unit)
		k.lapse()
		k.hold("held", "me")
		k.parkFor("parked", "me", "q/job", 10*long)
		k.released("released", "me", "done")
		k.forced("forced", "me", "by hand")
		listed := k.list("", 3)
		for _, key := range []string{"held", "parked", "orphaned", "lapsed", "released", "forced"} {
			r, ok := listed[key]
			if !ok {
				k.Errorf("%s is not listed", key)
				continue
			}
			if diff := recordDiff(r, k.inspect(key)); diff != "" {
				k.Errorf("%s as listed, then as inspected: %s", key, diff)
			}
		}
	}},
}

// The method list reads all pages. A key may be listed twice, because SCAN of Redis may return a key twice.
func (k *kit) list(prefix string, count int) map[string]driver.Record {
	k.Helper()
	records := make(map[string]driver.Record)
	req := driver.ListRequest{Prefix: prefix, Count: count}
	for range maxPages {
		page, err := k.Store.List(k.ctx, req)
		if err != nil {
			k.Fatalf("List(%+v): %v", req, err)
		}
		for _, r := range page.Records {
			records[r.Key] = r
		}
		if page.Next == "" {
			return records
		}
		req.Cursor = page.Next
	}
	k.Fatalf("List(%q) had no last page among %d", prefix, maxPages)
	return nil
}
