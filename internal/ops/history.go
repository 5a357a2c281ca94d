package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// History is what is known of the past of a key.
type History struct {
	Key   string      `json:"key"`
	Items []Happening `json:"items"`          // the newest first
	More  bool        `json:"more,omitempty"` // older items were left out

	// From is the time of the oldest event of any key in the journal; earlier events are not known. From is zero if the
	// journal is empty or there is none.
	From Time `json:"from,omitzero"`
}

// Happening is an Event, an operator's action, or something that only the key's record shows.
type Happening struct {
	At     Time        `json:"at"`
	Kind   string      `json:"kind"` // Event.Kind, AuditEntry.Action, or for a Lock the kind of an event or "lapsed"
	Text   string      `json:"text"` // a sentence, without a full stop
	Event  *Event      `json:"event,omitempty"`
	Action *AuditEntry `json:"action,omitempty"`
	Lock   *Lock       `json:"lock,omitempty"` // the record, if neither the journal nor the record of actions has it
}

// HistoryQuery says which part of the history of a key is shown.
type HistoryQuery struct {
	Key     string    `query:"key"`
	Since   time.Time `query:"since"`                                     // at or after this time
	Most    int       `query:"limit" jsonschema:"minimum=1,maximum=1000"` // from 1 to 1,000; default 50
	Actions bool      // whether operators' actions are included
}

const (
	mostHistory = 1000

	// sameTime is how far apart two reports of one event may be: one of a process, and one in the key's record.
	sameTime = 2 * time.Second

	// kindLapsed is the kind of a lease that ran out, according to the key's record. The holder may be dead, so there is
	// no event.
	kindLapsed = "lapsed"
)

// History returns what the journal, the record of actions and the key's own record show about a key, its permits and its
// slots. Actions on the tasks that had the lock are included. Permits, slots and cron jobs also have histories of their
// own. With the defaults of package journal, routine events are not written; only the latest holding's beginning and end
// are known, from the key's record.
//
// History reads the whole journal, which may be some 3 MB, and all actions since HistoryQuery.Since. Errors:
// joblock.ErrInvalid for a bad query, joblock.ErrUnavailable, joblock.ErrClosed.
func (d *Desk) History(ctx context.Context, q HistoryQuery) (History, error) {
	const op = "history"
	h := History{Key: q.Key, Items: []Happening{}}
	if err := core.CheckText(op, "", "key", q.Key, 1, driver.MaxKeyBytes); err != nil {
		return h, err
	}
	if q.Most == 0 {
		q.Most = 50
	}
	if q.Most < 1 || q.Most > mostHistory {
		return h, core.Invalid(op, q.Key, "the number of items is %d, must be from 1 to %d", q.Most, mostHistory)
	}
	lock, err := d.read(ctx, op, q.Key)
	if err != nil {
		return h, err
	}
	jobs := map[string]bool{lock.Job: true} // the jobs that are known to have had the lock
	count := 0
	for e, err := range d.Events(ctx, EventsQuery{Key: q.Key, Since: q.Since}) {
		if err != nil {
			return h, err
		}
		if count++; count > q.Most {
			h.More = true
			break
		}
		jobs[e.Job] = true
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
		if err := d.addActions(ctx, q, jobs, &h); err != nil {
			return h, err
		}
	}
	for _, one := range lock.recorded() {
		if !one.At.Before(q.Since) && !h.has(one) {
			h.Items = append(h.Items, one)
		}
	}
	slices.SortStableFunc(h.Items, func(a, b Happening) int { return b.At.Compare(a.At.Time) })
	InOrder(h.Items, func(h Happening) Place {
		switch {
		case h.Event != nil:
			return Place{h.Event.Key, h.Event.Fence, h.Kind, h.At.Time}
		case h.Lock != nil:
			return Place{h.Lock.Key, h.fence(), h.Kind, h.At.Time}
		}
		return Place{At: h.At.Time}
	})
	if len(h.Items) > q.Most {
		h.Items, h.More = h.Items[:q.Most], true
	}
	return h, nil
}

// addActions adds the actions of operators on the key, and on the tasks that had its lock.
func (d *Desk) addActions(ctx context.Context, q HistoryQuery, jobs map[string]bool, h *History) error {
	delete(jobs, "")
	key := Lock{Key: q.Key}
	var onTasks []AuditEntry // actions that do not name the key; an older action may show that their task had its lock
	add := func(e AuditEntry) {
		h.Items = append(h.Items, Happening{At: e.At, Kind: e.Action, Text: e.sentence(q.Key), Action: &e})
	}
	count := 0
	for e, err := range Actions(d.Audit(ctx, AuditQuery{Since: q.Since})) {
		if err != nil {
			return err
		}
		switch {
		case key.Concerns(e):
			if e.Before != nil && e.Before.Job != "" {
				jobs[e.Before.Job] = true
			}
			add(e)
			count++
		case e.Scope == "" && e.Key != "" && len(onTasks) < 10*mostHistory:
			onTasks = append(onTasks, e)
		}
		if count > q.Most {
			h.More = true
			break
		}
	}
	for _, e := range onTasks {
		if jobs[e.Key] {
			add(e)
		}
	}
	return nil
}

// recorded returns what the record of a key shows of its past: how the present or the last holding began and ended.
func (l Lock) recorded() (all []Happening) {
	who := visibleOr(l.Holder, "a holder without a label")
	add := func(at Time, kind, text string) {
		if !at.IsZero() {
			all = append(all, Happening{At: at, Kind: kind, Text: text, Lock: &l})
		}
	}
	if l.Fence == 0 || l.State == joblock.StateForeign {
		return nil
	}
	begun := "the key was acquired"
	if l.First == l.Fence {
		begun = who + " got the lock"
	}
	add(l.Since, event.Acquired.String(), begun)
	switch l.State {
	case joblock.StateHeld, joblock.StateOrphaned:
		if l.Changed.After(l.Since.Time) {
			add(l.Changed, event.Resumed.String(), who+" resumed the lock")
		}
	case joblock.StateParked:
		add(l.Changed, event.Parked.String(), who+" no longer runs under the lock"+keptFor(l.Job))
	}
	reason := ""
	if l.Reason != "" {
		reason = ": " + visible(l.Reason)
	}
	switch {
	case l.State != joblock.StateFree:
	case l.Ended == driver.EndedForced && l.FreedBy == FreedByForce:
		add(l.EndedAt, event.Forced.String(), freedByForce(l.Reason)+reason)
	case l.FreedBy == FreedByKeeper:
		add(l.EndedAt, event.Freed.String(), "a keeper has freed the key: "+visible(strings.TrimPrefix(l.Reason, workerstats.KeeperReason)))
	case l.Ended == driver.EndedForced:
		add(l.EndedAt, event.Freed.String(), "a program has freed the key"+reason)
	case l.Ended == driver.EndedLapsed:
		add(l.EndedAt, kindLapsed, "the lock of "+who+" has lapsed: its lease was not renewed in time")
	default:
		add(l.EndedAt, event.Released.String(), who+" has released the lock"+reason)
	}
	return all
}

// has reports whether h already contains one, an item from the key's record: as an event or as an operator's action.
func (h *History) has(one Happening) bool {
	return slices.ContainsFunc(h.Items, func(is Happening) bool {
		if one.At.Sub(is.At.Time).Abs() > sameTime {
			return false
		}
		acted := is.Action != nil && is.Action.Outcome != OutcomeRefused && is.Action.Fence == one.Lock.Fence
		return is.Kind == one.Kind || isFreed(one.Kind) && (isFreed(is.Kind) || acted)
	})
}

// fence returns the fence under which the holding in a key's record began or ended. They differ if the lock was resumed.
func (h *Happening) fence() int64 {
	if h.Kind == event.Acquired.String() {
		return h.Lock.First
	}
	return h.Lock.Fence
}

// Place has the properties of an item that InOrder compares.
type Place struct {
	Key   string
	Fence int64     // 0 if unknown
	Kind  string    // of an event; "" if unknown
	At    time.Time // by the clock of any process, so not exact
}

// stages numbers the kinds of events that occur once under a fence, in their order.
var stages = map[string]int{
	event.Acquired.String(): 1, event.Parked.String(): 2,
	event.Released.String(): 3, event.ReleasedByToken.String(): 3, event.Lost.String(): 3, event.Freed.String(): 3, event.Forced.String(): 3,
}

// before reports whether p came before other according to their fences or kinds, regardless of the clocks.
func (p Place) before(other Place) bool {
	if p.Fence == other.Fence {
		return stages[p.Kind] > 0 && stages[p.Kind] < stages[other.Kind]
	}
	return p.Fence > 0 && p.Fence < other.Fence
}

// InOrder reorders items, which are newest first, where the clocks of several processes contradict the fences. Within two
// seconds, an event under a later fence of the same key goes before one under an earlier fence, and the end of a holding
// before its beginning.
func InOrder[T any](items []T, of func(T) Place) {
	for i := range items {
		is, to := of(items[i]), i
		for j := i - 1; j >= 0 && is.Fence > 0; j-- {
			above := of(items[j])
			if above.At.Sub(is.At) > sameTime {
				break
			}
			if above.Key == is.Key && above.before(is) {
				to = j
			}
		}
		item := items[i]
		copy(items[to+1:i+1], items[to:i])
		items[to] = item
	}
}

// isFreed reports whether kind says that a caller other than its owner freed the key.
func isFreed(kind string) bool { return kind == event.Forced.String() || kind == event.Freed.String() }

// sentence describes the action, without a full stop. It names the key that was acted on unless that is the parameter
// key.
func (e *AuditEntry) sentence(key string) string {
	text := visible(e.Action)
	if e.Key != key {
		text += " on " + quote(e.Key)
	}
	text += fmt.Sprintf(": %s by %s", visible(e.Outcome), visible(e.By))
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
