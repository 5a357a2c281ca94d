package pages

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// mostEvents is how many of the latest events the pages look through.
	mostEvents = 2000

	// eventSlack is how much older than its place in the journal an event may be.
	eventSlack = time.Minute
)

// EventsBody is what the list of events shows.
type EventsBody struct {
	Journal bool
	Rows    []ops.Event
	All     int
	Full    bool // there are older events than those that the page looks through
	Key     string
	Prefix  string
	Kind    string
	Kinds   []string
	Next    string
}

func (h *Handler) eventsPage(ctx context.Context, v *View) (any, error) {
	b := &EventsBody{
		Journal: h.cfg.Desk.HasJournal(), Key: one(v.Query, "key"), Prefix: one(v.Query, "prefix"), Kind: one(v.Query, "kind"), Kinds: ops.EventKinds(),
	}
	if !b.Journal {
		return b, nil
	}
	all, err := h.journal(ctx, v)
	if err != nil {
		return nil, err
	}
	b.Full = len(all) == mostEvents
	after, past := one(v.Query, "after"), false
	for _, e := range all {
		if !v.Who.MayUse(e.Key) || b.Key != "" && e.Key != b.Key || !strings.HasPrefix(e.Key, b.Prefix) || b.Kind != "" && e.Kind != b.Kind {
			continue
		}
		if b.All++; after != "" && !past {
			past = e.ID == after
			continue
		}
		if len(b.Rows) < pageRows {
			b.Rows = append(b.Rows, e)
		} else if b.Next == "" {
			b.Next = b.Rows[len(b.Rows)-1].ID
		}
	}
	return b, nil
}

// journal reads the latest events, the newest first. All pages share the read, and only what is new is read again.
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

// Grave reports whether a person should look at the event.
func (b *EventsBody) Grave(e ops.Event) bool {
	return slices.Contains(grave, e.Kind) || strings.HasSuffix(e.Kind, " failed") || strings.HasSuffix(e.Kind, " missed")
}
