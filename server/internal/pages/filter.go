package pages

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// A Filter says which locks a list shows, and in which order. The address has all of it.
type Filter struct {
	Prefix  string
	Part    string // a text anywhere in the key
	Holder  string // a part of the label
	Job     string // a part of the name; "any" with AnyJob
	States  map[string]bool
	Older   string // as it was written
	Waiters string
	Own     bool
	Sort    string
	Down    bool

	older   time.Duration
	waiters int
	after   *mark
}

// A mark is a place in a sorted list: the last row of a page. It stays valid when other rows appear or disappear.
type mark struct {
	Value int64  `json:"v"`
	Key   string `json:"k"`
}

const pageRows = 100

var sorts = []string{"since", "key", "state", "lease", "reserved", "waiters"}

func parseFilter(q url.Values) (*Filter, error) {
	f := &Filter{
		Prefix: one(q, "prefix"), Part: strings.TrimSpace(one(q, "contains")), Holder: strings.TrimSpace(one(q, "holder")), Job: strings.TrimSpace(one(q, "job")),
		Older: strings.TrimSpace(one(q, "older")), Waiters: strings.TrimSpace(one(q, "waiters")), Own: one(q, "own") == "1",
		Sort: oneOf(one(q, "sort"), sorts...), Down: one(q, "dir") == "down", States: make(map[string]bool),
	}
	for _, s := range q["state"] {
		if s == "" {
			continue
		}
		if s != "held" && s != "parked" && s != "orphaned" {
			return nil, bad("The state is %q, must be held, parked or orphaned.", shorten(visible(s), 40))
		}
		f.States[s] = true
	}
	var err error
	if f.Older != "" {
		if f.older, err = parseLength(f.Older); err != nil {
			return nil, bad("The age is %q, %s.", shorten(visible(f.Older), 40), err)
		}
	}
	if f.Waiters != "" {
		if f.waiters, err = strconv.Atoi(f.Waiters); err != nil || f.waiters < 0 {
			return nil, bad("The number of waiters is %q, must be a number from 0.", shorten(visible(f.Waiters), 40))
		}
	}
	if text := one(q, "after"); text != "" {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || json.Unmarshal(raw, &f.after) != nil || f.after == nil {
			return nil, bad("The address is cut off: its part \"after\" cannot be read.")
		}
	}
	return f, nil
}

// Any reports whether the filter excludes anything.
func (f *Filter) Any() bool {
	return f.Prefix != "" || f.Part != "" || f.Holder != "" || f.Job != "" || len(f.States) > 0 || f.older > 0 || f.waiters > 0
}

func (f *Filter) wants(r *Row, who *Caller, now time.Time) bool {
	switch {
	case !r.Locked(), r.Inner() && !f.Own && !(r.Role == ops.RoleGate && f.waiters > 0):
	case !strings.HasPrefix(r.Key, f.Prefix), !strings.Contains(r.Key, f.Part), !who.MayUse(r.Key):
	case len(f.States) > 0 && !f.States[r.State.String()]:
	case f.Holder != "" && !strings.Contains(r.Holder, f.Holder):
	case f.Job == "any" && r.Job == "", f.Job != "" && f.Job != "any" && !strings.Contains(r.Job, f.Job):
	case f.older > 0 && now.Sub(r.Since) < f.older:
	case r.Waiters < f.waiters:
	default:
		return true
	}
	return false
}

// value returns what rows are sorted by; rows with equal values are sorted by their keys.
func (f *Filter) value(r *Row) int64 {
	switch f.Sort {
	case "since":
		return r.Since.UnixMicro()
	case "lease":
		return soonest(r.Ends)
	case "reserved":
		return soonest(r.Until)
	case "waiters":
		return -int64(r.Waiters) // the longest line first
	case "state":
		return rankOf(r.State)
	}
	return 0
}

// soonest returns a value that sorts rows by their end, and rows without an end last.
func soonest(at time.Time) int64 {
	if at.IsZero() {
		return 1 << 60
	}
	return at.UnixMicro()
}

// rankOf returns a rank that puts states that need attention first.
func rankOf(s joblock.State) int64 {
	switch s {
	case joblock.StateOrphaned:
		return 0
	case joblock.StateParked:
		return 1
	case joblock.StateHeld:
		return 2
	}
	return 3
}

func (f *Filter) compare(a, b mark) int {
	c := cmp.Or(cmp.Compare(a.Value, b.Value), strings.Compare(a.Key, b.Key))
	if f.Down {
		return -c
	}
	return c
}

// sorted returns the rows of a walk in the order of the filter. It sorts each walk at most once for each order.
func (f *Filter) sorted(w *walk[Row]) []*Row {
	return of(w, fmt.Sprint("sorted ", f.Sort, f.Down), func() []*Row {
		rows := pointers(w.rows)
		slices.SortFunc(rows, func(a, b *Row) int { return f.compare(mark{f.value(a), a.Key}, mark{f.value(b), b.Key}) })
		return slices.CompactFunc(rows, func(a, b *Row) bool { return a.Key == b.Key }) // a walk may see a key twice
	})
}

// pointers returns pointers to the rows, for sorting: rows are large.
func pointers[T any](rows []T) []*T {
	all := make([]*T, len(rows))
	for i := range rows {
		all[i] = &rows[i]
	}
	return all
}

// page returns the rows of a page, the number of all matching rows, and the query value for the next page.
func (f *Filter) page(w *walk[Row], who *Caller, now time.Time) (rows []Row, all int, next string) {
	sorted := f.sorted(w)
	from := 0
	if f.after != nil {
		from = sort.Search(len(sorted), func(i int) bool {
			return f.compare(mark{f.value(sorted[i]), sorted[i].Key}, *f.after) > 0
		})
	}
	for i, r := range sorted {
		if !f.wants(r, who, now) {
			continue
		}
		all++
		switch {
		case i < from:
		case len(rows) < pageRows:
			rows = append(rows, *r)
		case next == "":
			last := &rows[len(rows)-1]
			text, _ := json.Marshal(mark{f.value(last), last.Key}) // a number and a text
			next = base64.RawURLEncoding.EncodeToString(text)
		}
	}
	return rows, all, next
}

// match returns up to most matching rows, regardless of pages.
func (f *Filter) match(w *walk[Row], who *Caller, now time.Time, most int) (rows []Row, more bool) {
	for _, r := range f.sorted(w) {
		if f.wants(r, who, now) {
			if len(rows) == most {
				return rows, true
			}
			rows = append(rows, *r)
		}
	}
	return rows, false
}
