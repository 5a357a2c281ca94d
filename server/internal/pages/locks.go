package pages

import (
	"cmp"
	"context"
	"strings"
	"time"
)

// WalkInfo says how old and how complete a walk is.
type WalkInfo struct {
	At   time.Time
	Done float64
	Took time.Duration
	More int
	Jobs bool // the walk read the index of jobs instead of all keys
	Rows bool // the rows on the screen are read separately
	Old  bool // a newer walk is overdue
}

// Whole reports whether the walk is complete. Until then, an empty result means nothing.
func (w WalkInfo) Whole() bool { return w.Done >= 1 }

func infoOf[T any](w *walk[T], ahead time.Duration) WalkInfo {
	return WalkInfo{At: w.at.Add(ahead), Done: w.done, Took: w.took, More: w.more, Old: w.err != nil}
}

// LocksBody is what the list of locks shows.
type LocksBody struct {
	Filter *Filter
	Rows   []Row
	All    int
	Next   string
	Walk   WalkInfo
	News   int // how many more locks match than when the page was rendered first
	Bulk   string
	Key    string // an exact key to open
	States []string
}

// A sticky has the rows that a stream keeps showing once it has shown a whole walk, so that rows do not move while the
// viewer reads them.
type sticky struct {
	keys []string
	next string
	done bool
}

func (h *Handler) locksPage(ctx context.Context, v *View) (any, error) {
	f, err := parseFilter(v.Query)
	if err != nil {
		return nil, err
	}
	w, err := h.locks.look(ctx)
	if err != nil {
		return nil, err
	}
	v.stale("the list of keys", w.at, w.err)
	body := &LocksBody{Filter: f, Walk: infoOf(w, v.ahead()), States: []string{"held", "parked", "orphaned"}}
	body.Walk.Rows = true
	body.Rows, body.All, body.Next = f.page(w, v.Who, v.Now)
	if v.sticky != nil {
		h.stick(v, w, body)
	}
	keys := make([]string, len(body.Rows))
	for i, r := range body.Rows {
		keys[i] = r.Key
	}
	fresh := h.statuses(ctx, v, "the rows", "rows "+strings.Join(keys, "\x00"), keys)
	for i, r := range body.Rows {
		if now, ok := fresh[r.Key]; ok {
			body.Rows[i] = now
		}
	}
	body.Bulk = "bulk?" + filterQuery(v.Query).Encode()
	return body, nil
}

// stick keeps the rows of a stream in their places.
func (h *Handler) stick(v *View, w *walk[Row], body *LocksBody) {
	s := v.sticky
	if !s.done {
		if s.done, s.next = w.whole() && len(body.Rows) > 0, body.Next; !s.done {
			return
		}
		for _, r := range body.Rows {
			s.keys = append(s.keys, r.Key)
		}
		return
	}
	by := of(w, "by key", func() map[string]*Row {
		m := make(map[string]*Row, len(w.rows))
		for i := range w.rows {
			m[w.rows[i].Key] = &w.rows[i]
		}
		return m
	})
	rows := make([]Row, 0, len(s.keys))
	for _, key := range s.keys {
		r := by[key]
		if r == nil {
			r = &Row{Key: key}
		}
		rows = append(rows, *r)
	}
	shown := 0
	for _, r := range body.Rows {
		for _, key := range s.keys {
			if key == r.Key {
				shown++
				break
			}
		}
	}
	body.News = len(body.Rows) - shown
	body.Rows, body.Next = rows, cmp.Or(s.next, body.Next)
}
