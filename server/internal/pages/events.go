package pages

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// mostEvents is how many of the latest events the pages share.
	mostEvents = 2000

	// mostLooked is how many older events are searched at once for rows that match a filter.
	mostLooked = 10_000

	// olderEvery is how often older events are read again. They do not change, but the journal eventually drops them.
	olderEvery = time.Minute

	// eventSlack is how much older an event may be than its place in the journal suggests.
	eventSlack = time.Minute
)

// EventsBody is what the list of events shows.
type EventsBody struct {
	Journal bool
	Rows    []ops.Event
	All     int
	Looked  time.Time // the time of the oldest event that was searched; zero if that is the oldest one in the journal
	Key     string
	Prefix  string
	Kind    string
	From    string
	To      string
	Kinds   []EventKind
	Next    string // the ID of the event before which the next page begins
}

// EventKind is a kind of events, and its title in the list.
type EventKind struct{ Name, Title string }

// kindPaused is the kind of events about ticks that were skipped because of a pause.
const kindPaused = "cron paused"

// kindTitles has titles for kinds whose names are not self-explanatory.
var kindTitles = map[string]string{
	event.Forced.String(): "freed by an operator, or by force",
	event.Freed.String():  "freed by a keeper or a program",
	kindPaused:            "cron: a tick was skipped in a pause",
}

func eventKinds() []EventKind {
	var all []EventKind
	for _, k := range ops.EventKinds() {
		title := kindTitles[k]
		if title == "" {
			title = k
		}
		all = append(all, EventKind{k, title})
	}
	return all
}

// kindOf returns the title of an event's kind in the list.
func kindOf(e ops.Event) string {
	switch e.Kind {
	case event.Forced.String():
		return ops.Lock{State: joblock.StateFree, Ended: driver.EndedForced, FreedBy: ops.FreedByForce, Reason: e.Reason}.How()
	case kindPaused:
		return "cron tick skipped"
	}
	return e.Kind
}

// Filtered reports whether the list shows only some events.
func (b *EventsBody) Filtered() bool {
	return b.Key != "" || b.Prefix != "" || b.Kind != "" || b.From != "" || b.To != ""
}

func (h *Handler) eventsPage(ctx context.Context, v *View) (any, error) {
	b := &EventsBody{
		Journal: h.cfg.Desk.HasJournal(), Key: strings.TrimSpace(one(v.Query, "key")), Prefix: one(v.Query, "prefix"), Kind: one(v.Query, "kind"),
		From: strings.TrimSpace(one(v.Query, "from")), To: strings.TrimSpace(one(v.Query, "to")), Kinds: eventKinds(),
	}
	if !b.Journal {
		return b, nil
	}
	q := ops.EventsQuery{Key: b.Key, Prefix: b.Prefix}
	if b.Kind != "" {
		q.Kinds = []string{b.Kind}
	}
	var to time.Time
	for _, bound := range []struct {
		name, text string
		at         *time.Time
	}{{"from", b.From, &q.Since}, {"to", b.To, &to}} {
		at, err := parseInstant(bound.text, v.Now)
		if err != nil {
			return nil, bad("The time %s is %q, %s.", bound.name, shorten(visible(bound.text), 40), err)
		}
		*bound.at = at
	}
	wants := func(e ops.Event) bool {
		return v.Who.MayUse(e.Key) && q.Wants(e) && (to.IsZero() || e.At.Before(to))
	}
	after := one(v.Query, "after")
	if after != "" && !ops.IsEventID(after) {
		return nil, bad("%q is not the place of an event.", shorten(visible(after), 40))
	}
	latest, err := h.journal(ctx, v)
	if err != nil {
		return nil, err
	}
	add := func(e ops.Event) {
		if b.All++; len(b.Rows) < pageRows {
			b.Rows = append(b.Rows, e)
		} else if b.Next == "" {
			b.Next = b.Rows[len(b.Rows)-1].ID
		}
	}
	for _, e := range latest {
		if (after == "" || ops.EventBefore(e.ID, after)) && wants(e) {
			add(e)
		}
	}
	if len(latest) < mostEvents || b.Next != "" {
		if b.Next != "" && len(latest) == mostEvents {
			b.Looked = latest[len(latest)-1].At.Time
		}
		return b, nil
	}
	end := latest[len(latest)-1].ID // the oldest of the shared events, which changes
	from := latest[len(latest)/2].ID
	if after != "" && ops.EventBefore(after, end) {
		end, from = after, after
	}
	if !to.IsZero() {
		if bound := fmt.Sprintf("%d-0", to.Add(eventSlack).UnixMilli()); ops.EventBefore(bound, end) {
			from = bound
		}
	}
	name := fmt.Sprintf("events %q %s", []string{b.Key, b.Prefix, b.Kind, b.From, b.To, after}, v.Who.sees())
	read := func() (read[olderEvents], error) {
		return get(ctx, h.cache, name, olderEvery, func(ctx context.Context) (olderEvents, error) {
			return h.older(ctx, from, end, q.Since, wants)
		})
	}
	r, err := read()
	if err == nil && r.err == nil && ops.EventBefore(r.val.from, from) && ops.EventBefore(r.val.from, end) {
		h.cache.forget(name) // some events in between were in neither list
		r, err = read()
	}
	older, err := take(v, "the older events", r, err)
	if err != nil {
		return nil, err
	}
	for _, e := range older.rows {
		if ops.EventBefore(e.ID, end) {
			add(e)
		}
	}
	if b.Looked = older.looked; b.Next == "" {
		b.Next = older.next
	}
	return b, nil
}

// olderEvents are events that match a filter.
type olderEvents struct {
	from   string // the ID before which they were looked for
	rows   []ops.Event
	looked time.Time // as in EventsBody.Looked
	next   string    // the ID of the last event that was searched, "" if the journal has no older one
}

// older returns a page of events before the event with the ID end, and also the newer events between end and from. So the
// result stays useful when new events have pushed others out of the shared ones.
func (h *Handler) older(ctx context.Context, from, end string, since time.Time, wants func(ops.Event) bool) (olderEvents, error) {
	found, n, rows := olderEvents{from: from}, 0, 0
	for e, err := range h.cfg.Desk.Events(ctx, ops.EventsQuery{Before: from, Since: since}) {
		if err != nil {
			return found, err
		}
		if n++; wants(e) {
			found.rows = append(found.rows, e)
			if ops.EventBefore(e.ID, end) {
				rows++
			}
		}
		if rows > pageRows || n == mostLooked {
			found.looked, found.next = e.At.Time, e.ID
			break
		}
	}
	return found, nil
}

// parseInstant parses a time: "15:04" of today or "2026-01-02 15:04", in UTC and optionally with seconds, or a time ago,
// "10m". The text "" means the zero time.
func parseInstant(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	text = strings.TrimSpace(strings.TrimSuffix(text, "UTC"))
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05Z", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			y, m, d := now.UTC().Date()
			return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, time.UTC), nil
		}
	}
	ago, err := parseLength(strings.TrimSuffix(strings.ReplaceAll(text, "min", "m"), " ago"))
	if err != nil {
		return time.Time{}, fmt.Errorf("must be a time in UTC such as 15:04 or 2006-01-02 15:04, or how long ago, such as 10m")
	}
	return now.Add(-ago), nil
}

// journal reads the latest events, the newest first. All pages share the result, and only new events are read each time.
func (h *Handler) journal(ctx context.Context, v *View) ([]ops.Event, error) {
	r, err := get(ctx, h.cache, "events", tick, func(ctx context.Context) ([]ops.Event, error) {
		h.mu.Lock()
		known := h.events
		h.mu.Unlock()
		q := ops.EventsQuery{}
		if len(known) > 0 {
			q.Since = known[0].At.Add(-eventSlack)
		}
		all := []ops.Event{}
		for e, err := range h.cfg.Desk.Events(ctx, q) {
			if err != nil {
				return nil, err
			}
			if len(known) > 0 && e.ID == known[0].ID || len(all) == mostEvents {
				break
			}
			all = append(all, e)
		}
		all = append(all, known[:min(len(known), mostEvents-len(all))]...)
		h.mu.Lock()
		h.events = all
		h.mu.Unlock()
		return all, nil
	})
	return take(v, "the journal", r, err)
}

var grave = []string{
	event.Lost.String(), event.CleanupFailed.String(), event.RenewalUnanswered.String(), event.RenewedLate.String(), event.FellBack.String(), event.Overran.String(),
}

// Grave reports whether an operator should look at the event.
func (b *EventsBody) Grave(e ops.Event) bool {
	return slices.Contains(grave, e.Kind) || strings.HasSuffix(e.Kind, " failed") || strings.HasSuffix(e.Kind, " missed")
}
