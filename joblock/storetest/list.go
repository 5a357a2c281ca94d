package storetest

import (
	"fmt"
	"maps"
	"slices"
	"sync"

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
	{"the parts of a list may be read at the same time", func(k *kit) {
		var want []string
		for i := range 60 {
			key := fmt.Sprintf("%02d", i)
			k.hold(key, "me")
			want = append(want, key)
		}
		req := driver.ListRequest{Count: 7}
		first, err := k.Store.List(k.ctx, req)
		if err != nil {
			k.Fatalf("List(%+v): %v", req, err)
		}
		parts := make([][]driver.Record, len(first.Next))
		var reading sync.WaitGroup
		for i, cursor := range first.Next {
			reading.Go(func() { parts[i] = k.part(driver.ListRequest{Cursor: cursor, Count: req.Count}) })
		}
		reading.Wait()
		got := make(map[string]bool)
		for _, recs := range append(parts, first.Records) {
			for _, r := range recs {
				got[r.Key] = true
			}
		}
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
			k.Errorf("%d parts have the keys %q, want %q", len(parts), keys, want)
		}
	}},
	{"the progress of all pages adds up to 1, unless the store does not know", func(k *kit) {
		for i := range 60 {
			k.hold(fmt.Sprintf("%02d", i), "me")
		}
		sum := 0.0
		k.pages(driver.ListRequest{Count: 7}, func(page driver.ListPage) {
			if page.Progress < 0 || page.Progress > 1 {
				k.Errorf("a page has the progress %v, want one from 0 to 1", page.Progress)
			}
			sum += page.Progress
		})
		if sum != 0 && (sum < 0.99 || sum > 1.01) {
			k.Errorf("the progress of all pages is %v, want 1", sum)
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

// list reads all pages, one after the other. A key may be listed twice, because SCAN of Redis may return a key
// twice.
func (k *kit) list(prefix string, count int) map[string]driver.Record {
	k.Helper()
	records := make(map[string]driver.Record)
	k.pages(driver.ListRequest{Prefix: prefix, Count: count}, func(page driver.ListPage) {
		for _, r := range page.Records {
			records[r.Key] = r
		}
	})
	return records
}

// pages reads all pages from req on, one after the other.
func (k *kit) pages(req driver.ListRequest, read func(driver.ListPage)) {
	k.Helper()
	todo := []string{req.Cursor}
	for n := 0; len(todo) > 0; n++ {
		if n == maxPages {
			k.Fatalf("List(%q) had no last page among %d", req.Prefix, maxPages)
		}
		first := todo[0] == ""
		req.Cursor, todo = todo[0], todo[1:]
		page, err := k.Store.List(k.ctx, req)
		if err != nil {
			k.Fatalf("List(%+v): %v", req, err)
		}
		if len(page.Next) > 1 && !first {
			k.Errorf("List(%+v) has the cursors %q, only the first page may have more than one", req, page.Next)
		}
		if slices.Contains(page.Next, "") {
			k.Errorf("List(%+v) has an empty cursor, which is that of the first page", req)
		}
		read(page)
		todo = append(todo, page.Next...)
	}
}

// part reads the pages of one part of a list, from req on. part may run in any goroutine.
func (k *kit) part(req driver.ListRequest) (records []driver.Record) {
	for range maxPages {
		page, err := k.Store.List(k.ctx, req)
		if err != nil {
			k.Errorf("List(%+v): %v", req, err)
			return records
		}
		records = append(records, page.Records...)
		if len(page.Next) == 0 {
			return records
		}
		req.Cursor = page.Next[0]
	}
	k.Errorf("List(%q) had no last page among %d", req.Prefix, maxPages)
	return records
}
