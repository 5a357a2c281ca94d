package ops

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/scheduler"
)

// Event is an event of a lock or a cron job, written by package joblock/journal. Fields without a value are left out of
// the JSON.
type Event struct {
	ID   string `json:"id"`             // the event's place in the journal
	At   Time   `json:"at,omitzero"`    // when the event happened, by the clock of Redis; zero for EventGap
	Kind string `json:"kind"`           // one of EventKinds
	Text string `json:"text,omitempty"` // the event in a sentence, without a full stop

	// These fields are for events of a lock; see event.Event. For an event of a cron job, Key is the key of the job's
	// lock.
	Key       string `json:"key,omitempty"`
	Owner     string `json:"owner,omitempty"` // a digest
	Fence     int64  `json:"fence,omitempty"`
	Holder    string `json:"holder,omitempty"`
	Job       string `json:"job,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Error     string `json:"error,omitempty"`
	Code      string `json:"code,omitempty"`
	Waited    Millis `json:"waited_ms,omitzero"`
	Held      Millis `json:"held_ms,omitzero"`
	Late      Millis `json:"late_ms,omitzero"`
	Remaining Millis `json:"remaining_ms,omitzero"`
	Prior     string `json:"prior,omitempty"`
	Recovered bool   `json:"recovered,omitempty"`
	Locks     int    `json:"locks,omitempty"`

	// These fields are for events of a cron job; see scheduler.Event.
	Scope    string `json:"scope,omitempty"`
	Name     string `json:"name,omitempty"`
	Tick     Time   `json:"tick,omitzero"`
	Node     string `json:"node,omitempty"`
	Took     Millis `json:"took_ms,omitzero"`
	Attempts int    `json:"attempts,omitempty"`
	Count    int    `json:"count,omitempty"`

	Dropped int64  `json:"dropped,omitempty"` // of EventDropped: how many events the journal of Source has dropped here
	Source  string `json:"source,omitempty"`  // the process that recorded the event

	nonce string
}

// Kinds of events that no process has recorded.
const (
	// EventDropped stands for events that a process could not write.
	EventDropped = eventlog.KindDropped

	// EventGap comes from a Feed only: older events are no longer in the journal.
	EventGap = "gap"
)

// EventKinds returns the kinds of events that a journal may contain.
func EventKinds() []string {
	var kinds []string
	for k := event.Acquired; k.String() != "unknown"; k++ {
		kinds = append(kinds, k.String())
	}
	for _, k := range []scheduler.Kind{
		scheduler.Started, scheduler.TakenOver, scheduler.Done, scheduler.Failed, scheduler.Interrupted,
		scheduler.Cancelled, scheduler.Broken, scheduler.Lost, scheduler.Missed, scheduler.Overlapped,
		scheduler.Paused, scheduler.Backfilled, scheduler.Redefined, scheduler.SpecChanged, scheduler.Contested,
		scheduler.ClockSetBack, scheduler.Overrun, scheduler.Stuck, scheduler.Enqueued,
	} {
		kinds = append(kinds, eventlog.CronKind(string(k)))
	}
	return append(kinds, EventDropped)
}

// EventsQuery says which events are shown: those that match all fields that are set.
type EventsQuery struct {
	Key    string    `query:"key"`    // of this key, its permits and its slots
	Prefix string    `query:"prefix"` // of keys that begin with Prefix
	Kinds  []string  `query:"kind"`   // of one of these kinds
	Scope  string    `query:"scope"`  // of cron jobs of this scope
	Name   string    `query:"name"`   // of the cron job of this name
	Since  time.Time `query:"since"`  // events at or after this time
	Before string    `query:"cursor"` // for Desk.Events: events older than the one with this ID
}

func (q *EventsQuery) check(op string) error {
	for _, kind := range q.Kinds {
		if !slices.Contains(EventKinds(), kind) {
			return core.Invalid(op, "", "the kind is %.40q, must be one of: %s", kind, strings.Join(EventKinds(), ", "))
		}
	}
	if _, _, ok := eventlog.ParseID(q.Before); q.Before != "" && !ok {
		return core.Invalid(op, "", "%.40q is not the ID of an event", q.Before)
	}
	if err := core.CheckText(op, "", "prefix", q.Prefix, 0, driver.MaxKeyBytes); err != nil {
		return err
	}
	return core.CheckText(op, "", "key", q.Key, 0, driver.MaxKeyBytes)
}

// Wants reports whether the query shows e. It ignores Before.
func (q *EventsQuery) Wants(e Event) bool {
	switch {
	case q.Key != "" && e.Key != q.Key && groupOf(e.Key) != q.Key:
	case !strings.HasPrefix(e.Key, q.Prefix):
	case len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind):
	case q.Scope != "" && e.Scope != q.Scope:
	case q.Name != "" && e.Name != q.Name:
	case e.At.Before(q.Since):
	default:
		return true
	}
	return false
}

// IsEventID reports whether text may be the ID of an event.
func IsEventID(text string) bool {
	_, _, ok := eventlog.ParseID(text)
	return ok
}

// EventBefore reports whether the event with ID a is older in the journal than the event with ID b. Both must be event
// IDs.
func EventBefore(a, b string) bool { return eventlog.Before(a, b) }

func groupOf(key string) string {
	_, group, _ := roleOf(key)
	return group
}

// Journal reads the events that package joblock/journal has written. Make a Journal with NewJournal.
type Journal struct {
	rdb     redis.UniversalClient
	key     string
	timeout time.Duration
}

// NewJournal returns the Journal at the prefix of the locks. A call takes at most the given timeout. An ACL user needs
// XRANGE and XREVRANGE.
func NewJournal(rdb redis.UniversalClient, prefix string, timeout time.Duration) *Journal {
	return &Journal{rdb, prefix + eventlog.Name, timeout}
}

// eventPage is how many events one call reads.
const eventPage = 500

// page reads at most most entries from from to to, the newest or the oldest first.
func (j *Journal) page(ctx context.Context, newestFirst bool, from, to string, most int64) ([]redis.XMessage, error) {
	within, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	var page []redis.XMessage
	var err error
	if newestFirst {
		page, err = j.rdb.XRevRangeN(within, j.key, to, from, most).Result()
	} else {
		page, err = j.rdb.XRangeN(within, j.key, from, to, most).Result()
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE"):
		return nil, core.Invalid("events", "", "the value at %q is not a journal", j.key)
	case err != nil:
		return nil, &refused{"the journal could not be read: " + err.Error(), joblock.ErrUnavailable, err}
	}
	return page, nil
}

// HasJournal reports whether events can be read. It does not check whether any process writes them.
func (d *Desk) HasJournal() bool { return d.cfg.Journal != nil }

// Events iterates over the events of the journal, the newest first. An event that was written twice is shown once.
// Without Config.Journal there are no events. An error ends the walk: joblock.ErrInvalid for a bad query, and
// joblock.ErrUnavailable.
func (d *Desk) Events(ctx context.Context, q EventsQuery) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := q.check("events"); err != nil {
			yield(Event{}, err)
			return
		}
		if d.cfg.Journal == nil {
			return
		}
		from, to := "-", "+"
		if q.Before != "" {
			to = "(" + q.Before
		}
		if !q.Since.IsZero() {
			from = strconv.FormatInt(max(0, q.Since.UnixMilli()), 10) // an entry is never older than its ID
		}
		var once repeats
		for {
			page, err := d.cfg.Journal.page(ctx, true, from, to, eventPage)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, m := range page {
				if e, ok := eventOf(m); ok && once.first(e.nonce) && q.Wants(e) && !yield(e, nil) {
					return
				}
			}
			if len(page) < eventPage {
				return
			}
			to = "(" + page[len(page)-1].ID
		}
	}
}

// repeats remembers the latest nonces. That suffices, because the two copies of an entry that was written twice are close
// to each other.
type repeats struct {
	known map[string]bool
	order []string
}

const mostRepeats = 4096

// first reports whether nonce has not been seen before.
func (r *repeats) first(nonce string) bool {
	if r.known[nonce] {
		return false
	}
	if r.known == nil {
		r.known = make(map[string]bool)
	}
	if len(r.order) >= mostRepeats {
		delete(r.known, r.order[0])
		r.order = r.order[1:]
	}
	r.known[nonce], r.order = true, append(r.order, nonce)
	return true
}

func eventOf(m redis.XMessage) (Event, bool) {
	e, at, ok := eventlog.Decode(m)
	if !ok {
		return Event{}, false
	}
	is := Event{
		ID: m.ID, At: Time{at}, Kind: e.Kind, Key: e.Key, Owner: e.Owner, Fence: e.Fence, Holder: e.Holder, Job: e.Job, Reason: e.Reason,
		Error: e.Error, Code: e.Code, Waited: millisOf(e.Waited), Held: millisOf(e.Held), Late: millisOf(e.Late), Remaining: millisOf(e.Remaining),
		Prior: e.Prior, Recovered: e.Recovered, Locks: e.Locks, Scope: e.Scope, Name: e.Name, Tick: Time{e.Tick}, Node: e.Node, Took: millisOf(e.Took),
		Attempts: e.Attempts, Count: e.Count, Dropped: e.Dropped, Source: e.Source, nonce: e.Nonce,
	}
	is.Text = is.sentence()
	return is, true
}

// A feed follows the journal of a Desk.
type feed struct {
	desk *Desk
	q    EventsQuery
	at   string // the ID of the last entry that was read; "" before the first look at the journal
	ask  string // the place at which to begin, from the caller
	once repeats
}

// FromNow is the place after the newest event, and FromStart is the place before the oldest one.
const (
	FromNow   = ""
	FromStart = "0"
)

// Follow returns a Feed of the events after a place: FromNow, FromStart, an earlier event's Event.ID, or an earlier
// Feed.Position. EventsQuery.Before must not be set. Errors: joblock.ErrInvalid for a bad query or place, and if there is
// no Config.Journal.
func (d *Desk) Follow(q EventsQuery, after string) (Feed, error) {
	const op = "follow events"
	if err := q.check(op); err != nil {
		return nil, err
	}
	if _, _, ok := eventlog.ParseID(after); after != FromNow && !ok {
		return nil, core.Invalid(op, "", "%.40q is not the ID of an event", after)
	}
	if d.cfg.Journal == nil {
		return nil, core.Invalid(op, "", "there is no journal here")
	}
	return &feed{desk: d, q: q, ask: after}, nil
}

// Position returns the place up to which Next has read, including events that the query does not show. It is "" until
// Next has read the journal once.
func (f *feed) Position() string { return f.at }

// Close does nothing: a feed holds no resources.
func (f *feed) Close() {}

// feedEvery is the interval at which a Feed polls the journal.
const feedEvery = 300 * time.Millisecond

// Next returns the next events, the oldest first, as soon as there are any. If none comes within atMost, it returns none.
// If events in between were lost, because Redis removed them or the whole journal, an Event of kind EventGap takes their
// place. After an error, joblock.ErrUnavailable or the cause of ctx, Next can be called again and continues at the same
// place.
func (f *feed) Next(ctx context.Context, atMost time.Duration) ([]Event, error) {
	until := time.Now().Add(atMost)
	for {
		events, err := f.look(ctx)
		if err != nil || len(events) > 0 {
			return events, err
		}
		rest := min(feedEvery, time.Until(until))
		if rest <= 0 {
			return nil, nil
		}
		if err := sleep.For(ctx, rest); err != nil {
			return nil, err
		}
	}
}

// look reads the entries written since the last look.
func (f *feed) look(ctx context.Context) (events []Event, err error) {
	j := f.desk.cfg.Journal
	gap := false
	if f.at == "" {
		if gap, err = f.begin(ctx, j); err != nil {
			return nil, err
		}
	}
	page, err := j.page(ctx, false, "("+f.at, "+", eventPage)
	if err != nil {
		return nil, err
	}
	if len(page) == eventPage { // the feed is behind, so Redis may have removed entries
		oldest, err := j.page(ctx, false, "-", "+", 1)
		if err != nil {
			return nil, err
		}
		gap = gap || len(oldest) > 0 && f.at != FromStart && oldest[0].ID == page[0].ID
	}
	if gap {
		events = append(events, Event{ID: f.at, Kind: EventGap, Text: "events before this one are not in the journal any more"})
	}
	for _, m := range page {
		if e, ok := eventOf(m); ok && f.once.first(e.nonce) && f.q.Wants(e) {
			events = append(events, e)
		}
		f.at = m.ID
	}
	return events, nil
}

// begin finds the place at which the feed begins. gap says that events after the requested place are or may be missing.
func (f *feed) begin(ctx context.Context, j *Journal) (gap bool, err error) {
	newest, err := j.page(ctx, true, "-", "+", 1)
	if err != nil {
		return false, err
	}
	last := FromStart
	if len(newest) > 0 {
		last = newest[0].ID
	}
	switch f.ask {
	case FromNow:
		f.at = last
		return false, nil
	case FromStart:
		f.at = FromStart
		return false, nil
	}
	if eventlog.Before(last, f.ask) { // Redis has lost the end of the journal, or the whole journal
		f.at = last
		return true, nil
	}
	oldest, err := j.page(ctx, false, "-", "+", 1)
	if err != nil {
		return false, err
	}
	f.at = f.ask
	return len(oldest) > 0 && eventlog.Before(f.ask, oldest[0].ID), nil
}
