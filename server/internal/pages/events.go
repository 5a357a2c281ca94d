package pages

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/event"
)

// EventsBody is what the list of events shows.
type EventsBody struct {
	Journal bool
	Rows    []Event
	Key     string
	Prefix  string
	Kind    string
	Kinds   []string
}

func (h *Handler) eventsPage(ctx context.Context, v *View) (any, error) {
	b := &EventsBody{Journal: h.cfg.Events != nil, Key: one(v.Query, "key"), Prefix: one(v.Query, "prefix"), Kind: one(v.Query, "kind")}
	for k := event.Acquired; k.String() != "unknown"; k++ {
		b.Kinds = append(b.Kinds, k.String())
	}
	if !b.Journal {
		return b, nil
	}
	if !v.Who.MayUse(b.Key) && b.Key != "" {
		return nil, &shown{403, "Not allowed", "You may not see this key."}
	}
	rows, err := h.eventsOf(ctx, v, EventsQuery{Key: b.Key, Prefix: b.Prefix, Kind: b.Kind, Most: pageRows})
	if err != nil {
		return nil, err
	}
	b.Rows = rows
	return b, nil
}

// eventsOf reads the journal. A caller sees only events of keys that the caller may use.
func (h *Handler) eventsOf(ctx context.Context, v *View, q EventsQuery) ([]Event, error) {
	r, err := get(ctx, h.cache, fmt.Sprintf("events %q %q %q %d", q.Key, q.Prefix, q.Kind, q.Most), tick, func(ctx context.Context) ([]Event, error) {
		return h.cfg.Events.Events(ctx, q)
	})
	all, err := take(v, r, err)
	if err != nil {
		return nil, err
	}
	rows := make([]Event, 0, len(all))
	for _, e := range all {
		if v.Who.MayUse(e.Key) {
			rows = append(rows, e)
		}
	}
	return rows, nil
}

// text says what else there is to an event.
func (e Event) text() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if e.Waited > 0 {
		add("waited %s", exact(e.Waited.Round(time.Millisecond)))
	}
	if e.Held > 0 {
		add("held for %s", exact(e.Held.Round(time.Millisecond)))
	}
	if e.Reason != "" {
		add("reason: %s", visible(e.Reason))
	}
	if e.Error != "" {
		add("%s", visible(e.Error))
	}
	return strings.Join(parts, "; ")
}

// Text is for templates.
func (e Event) Text() string { return e.text() }

// Grave reports whether a person should look at the event.
func (e Event) Grave() bool {
	switch e.Kind {
	case event.Lost.String(), event.CleanupFailed.String(), event.RenewalUnanswered.String(), event.RenewedLate.String(), event.FellBack.String(), event.Overran.String():
		return true
	}
	return false
}
