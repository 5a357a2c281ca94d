package pages

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
)

// LimitsBody is what the list of limits shows.
type LimitsBody struct {
	Rows   []LimitRow
	All    int
	Next   string
	Prefix string
	Walk   WalkInfo

	Controls ops.Controls // the pauses of keys, and what operators have set
}

// LimitRow is a limit, or a sequence with several slots.
type LimitRow struct {
	Key     string
	Kind    string
	N       int // 0: not known
	AtLeast int
	Taken   int
	Waiting int
	Oldest  time.Time
	Changed string // who changed N, and when; "" if unknown
	Cells   []Row  // the taken permits or slots, by number
}

// Free returns how many more may have the key, or -1 if that is not known.
func (l LimitRow) Free() int {
	if l.N == 0 {
		return -1
	}
	return max(0, l.N-l.Taken)
}

func (h *Handler) limitsPage(ctx context.Context, v *View) (any, error) {
	w, err := h.locks.look(ctx)
	if err != nil {
		return nil, err
	}
	v.stale("the permits", w.at, w.err)
	all := of(w, "limits", func() []LimitRow { return limitsOf(w.rows) })
	b := &LimitsBody{Prefix: one(v.Query, "prefix"), Walk: infoOf(w, v.ahead())}
	set, err := get(ctx, h.cache, "controls"+v.Who.sight(), 2*time.Second, seen(v.Who, h.cfg.Desk.Controls))
	if b.Controls, err = take(v, "what operators have set", set, err); err != nil {
		return nil, err
	}
	after := one(v.Query, "after")
	var sizes []string
	for _, l := range all {
		if !strings.HasPrefix(l.Key, b.Prefix) || !v.Who.MayUse(l.Key) {
			continue
		}
		if b.All++; l.Key <= after && after != "" {
			continue
		}
		if len(b.Rows) < pageRows/2 {
			b.Rows = append(b.Rows, l)
			if l.Kind == ops.KindLimit {
				sizes = append(sizes, keyspace.Size(l.Key))
			}
		} else if b.Next == "" {
			b.Next = b.Rows[len(b.Rows)-1].Key
		}
	}
	known := h.statuses(ctx, v, "how many permits there are", "rows "+strings.Join(sizes, "\x00"), sizes)
	for i := range b.Rows {
		if size, ok := known[keyspace.Size(b.Rows[i].Key)]; ok {
			if said, ok := keyspace.ParseSaid(size.Holder); ok {
				b.Rows[i].N = said.N
				p := ops.Permits{N: said.N, Before: said.Before, First: said.First, Since: ops.Time{Time: said.Since}, Now: ops.Time{Time: h.storeNow()}}
				if said.Since.IsZero() {
					p.Since.Time = size.Since
				}
				b.Rows[i].Changed = p.Changed()
			}
		}
	}
	return b, nil
}

// limitsOf assembles limits and sequences from their permits, their slots and their gates.
func limitsOf(rows []Row) []LimitRow {
	by := make(map[string]*LimitRow)
	at := func(key, kind string) *LimitRow {
		if by[key] == nil {
			by[key] = &LimitRow{Key: key, Kind: kind}
		}
		return by[key]
	}
	for _, r := range rows {
		switch r.Role {
		case ops.RolePermit:
			at(r.Group, ops.KindLimit).take(r, r.Number)
		case ops.RoleSlot:
			at(r.Group, ops.KindSequence).take(r, r.Number)
		case ops.RoleGate:
			at(r.Group, ops.KindLimit).Waiting = r.Waiters
		}
	}
	for _, r := range rows {
		if l := by[r.Key]; l != nil && l.Kind == ops.KindSequence {
			l.take(r, 1) // the first slot is the key itself
			l.Waiting = r.Waiters
		}
	}
	all := make([]LimitRow, 0, len(by))
	for _, l := range by {
		slices.SortFunc(l.Cells, func(a, b Row) int { return a.Number - b.Number })
		all = append(all, *l)
	}
	slices.SortFunc(all, func(a, b LimitRow) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (l *LimitRow) take(r Row, number int) {
	r.Number = number
	l.AtLeast = max(l.AtLeast, number)
	if !r.Locked() {
		return
	}
	l.Taken++
	l.Cells = append(l.Cells, r)
	if l.Oldest.IsZero() || r.Since.Before(l.Oldest) {
		l.Oldest = r.Since
	}
}
