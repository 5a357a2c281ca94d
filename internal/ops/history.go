package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
)

// History is what is known of the past of a key.
type History struct {
	Key   string      `json:"key"`
	Items []Happening `json:"items"`          // the newest first
	More  bool        `json:"more,omitempty"` // older ones were left out

	// From is the time of the oldest event in the journal, of any key. What was before is not known. From is zero if the
	// journal is empty or there is none.
	From Time `json:"from,omitzero"`
}

// Happening is an Event, or an action of an operator.
type Happening struct {
	At     Time        `json:"at"`
	Kind   string      `json:"kind"` // Event.Kind or AuditEntry.Action
	Text   string      `json:"text"` // in a sentence, without a full stop
	Event  *Event      `json:"event,omitempty"`
	Action *AuditEntry `json:"action,omitempty"`
}

// HistoryQuery says which part of the history of a key is shown.
type HistoryQuery struct {
	Key     string
	Since   time.Time // from then on
	Most    int       // from 1 to 1,000; default 50
	Actions bool      // with what operators have done; they are those of Desk.Actions
}

const mostHistory = 1000

// History reads what the journal, and the record of actions, have of a key, its permits and its slots. Permits, slots and
// cron jobs have histories of their own, too. With the defaults of package journal an event that is routine is in no
// history.
//
// History reads all of the journal, which may be some 3 MB. Errors: joblock.ErrInvalid for a bad query, and
// joblock.ErrUnavailable.
func (d *Desk) History(ctx context.Context, q HistoryQuery) (History, error) {
	const op = "history"
	h := History{Key: q.Key, Items: []Happening{}}
	if err := door.CheckText(op, "", "key", q.Key, 1, driver.MaxKeyBytes); err != nil {
		return h, err
	}
	if q.Most == 0 {
		q.Most = 50
	}
	if q.Most < 1 || q.Most > mostHistory {
		return h, door.Invalid(op, q.Key, "the number of items is %d, must be from 1 to %d", q.Most, mostHistory)
	}
	count := 0
	for e, err := range d.Events(ctx, EventsQuery{Key: q.Key, Since: q.Since}) {
		if err != nil {
			return h, err
		}
		if count++; count > q.Most {
			h.More = true
			break
		}
		h.Items = append(h.Items, Happening{At: e.At, Kind: e.Kind, Text: e.Text, Event: &e})
	}
	if d.cfg.Journal != nil {
		oldest, err := d.cfg.Journal.page(ctx, false, "-", "+", 1)
		if err != nil {
			return h, err
		}
		for _, m := range oldest {
			if e, ok := eventOf(m); ok {
				h.From = e.At
			}
		}
	}
	if q.Actions {
		if err := d.addActions(ctx, q, &h); err != nil {
			return h, err
		}
	}
	slices.SortStableFunc(h.Items, func(a, b Happening) int { return b.At.Compare(a.At.Time) })
	if len(h.Items) > q.Most {
		h.Items, h.More = h.Items[:q.Most], true
	}
	return h, nil
}

// addActions adds the actions of operators on the key.
func (d *Desk) addActions(ctx context.Context, q HistoryQuery, h *History) error {
	count := 0
	for e, err := range d.Actions(ctx, AuditQuery{Key: q.Key, Since: q.Since}) {
		if err != nil {
			return err
		}
		if count++; count > q.Most {
			h.More = true
			break
		}
		h.Items = append(h.Items, Happening{At: e.At, Kind: e.Action, Text: e.sentence(), Action: &e})
	}
	return nil
}

// The method sentence says what an operator has done, without a full stop.
func (e *AuditEntry) sentence() string {
	text := fmt.Sprintf("%s: %s by %s", visible(e.Action), visible(e.Outcome), visible(e.By))
	if e.From != "" {
		text += " from " + visible(e.From)
	}
	if e.Reason != "" {
		text += ": " + visible(e.Reason)
	}
	if e.Error != "" {
		text += " (" + visible(e.Error) + ")"
	}
	return text
}
