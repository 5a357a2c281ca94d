package pages

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// wholeEvery is how often a page about one key reads everything about the key while its record does not change.
	wholeEvery = 5 * time.Second

	// tailLength is how many records of actions the pages search.
	tailLength = 1000

	// tailRefused is how many of these records may be refusals, so that refusals displace no actions.
	tailRefused = 200

	// historyRows is the maximum number of rows in the history of a key.
	historyRows = 50
)

// LockBody is what the page about one key shows.
type LockBody struct {
	Key     string
	Row     Row
	E       ops.Explanation
	Actions []Offer
	WhyNot  string
	History []HistoryItem
	Journal bool // there is a journal
	Done    *HistoryItem
	Limit   *ops.Permits
	Unknown *UnknownKey // the key is unknown
	Again   string      // what goes wrong repeatedly with the key
}

// UnknownKey helps a viewer who has mistyped a key, or has a job instead of a key.
type UnknownKey struct {
	ops.Similar
	Job  bool // the key could be the name of a job
	Walk WalkInfo
}

// Offer is something that an operator may do, with the page on which to do it.
type Offer struct {
	ops.Offer
	Title   string
	Command string // of the command line, "" if there is none
	Href    string // "" if the pages do not have the action, or the caller may not perform it
}

// HistoryItem is something that has happened to a key.
type HistoryItem struct {
	ID      string
	At      time.Time
	What    string
	Who     string
	Text    string
	Outcome string // of an action
	Fence   int64
	Key     string
	Of      string // for display: what an action was done to
	Action  bool
	Href    string   // of the page about what an action was done to
	Keys    []string // the keys of the locks of a task
	kind    string   // of an event

	Times int       // how often it has happened, if more than once
	First time.Time // when it happened first, if more than once
}

// Good reports whether an action did what it should, as far as is known.
func (i *HistoryItem) Good() bool {
	return i.Outcome == ops.OutcomeDone || i.Outcome == ops.OutcomeAsked
}

// The titles of offers that are no actions.
var offerTitles = map[string]string{
	ops.ActWait: "Wait", ops.ActUnpause: "Unpause the queue", ops.ActStartKeep: "Start a keeper",
}

func (h *Handler) lockPage(ctx context.Context, v *View) (any, error) {
	key := one(v.Query, "key")
	if key == "" {
		return nil, bad("The address has no key. Open the list of locks, or write a key into the field above it.")
	}
	if !v.Who.MayUse(key) {
		return nil, &shown{403, "Not allowed", "You may not see this key."}
	}
	e, err := h.explained(ctx, v, key)
	if err != nil {
		return nil, err
	}
	if rowOf(e.Lock).Unknown && !v.Live {
		if other := h.meant(ctx, v, key); other != "" {
			return nil, &moved{"lock?" + url.Values{"key": {other}}.Encode()}
		}
	}
	b := &LockBody{Key: key, E: e, Row: rowOf(e.Lock), Journal: h.cfg.Desk.HasJournal()}
	b.WhyNot = v.WhyNot(v.Who.Operate, "operate")
	for _, a := range e.Actions {
		if (a.Name == ops.ActForce || a.Name == ops.ActFreeIdle) && !e.Lock.Locked() {
			continue // each permit of a limit has a page of its own
		}
		b.Actions = append(b.Actions, v.offer(a, e.Lock))
	}
	if p := e.Lock.Permits; p != nil && p.Kind != "" {
		b.Limit = p
	}
	b.Done = h.doneAction(ctx, v, func(e ops.AuditEntry) bool {
		// An action on the job of a lock leads back to the lock.
		return e.Scope == "" && (e.Key == key || e.Key == b.E.Lock.Job)
	})
	b.History = h.history(ctx, v, e.Lock)
	b.Again = h.again(ctx, v, e.Lock)
	if e.Lock.Unknown() && !b.Row.Locked() && b.Row.Fence == 0 {
		b.Unknown = h.unknown(ctx, v, key)
	}
	v.Title = shorten(visible(key), 60)
	return b, nil
}

// unknown looks for keys similar to an unknown one, among those that the caller may see. The command line searches the
// same keys. The result is nil if the keys cannot be read: the rest of the page does not depend on it.
func (h *Handler) unknown(ctx context.Context, v *View, key string) *UnknownKey {
	w, err := h.keys.look(ctx)
	if err != nil {
		return nil
	}
	like := of(w, "like "+key+" "+v.Who.sees(), func() ops.Similar {
		s, _ := ops.SimilarTo(key, false, func(yield func(ops.Lock, error) bool) {
			for i := range w.rows {
				if k := &w.rows[i]; v.Who.MayUse(k.key) && !yield(ops.Lock{Key: k.key, Role: k.role, Group: k.group}, nil) {
					return
				}
			}
		})
		return s
	})
	queue, _, ok := ops.ParseJob(key)
	return &UnknownKey{like, ok && queue != "" && v.Who.mayJob(key), infoOf(w, v.ahead())}
}

// redisPrefix is the default prefix of keys in Redis.
const redisPrefix = "joblock:"

// meant returns the intended key for a text that was copied with blanks or with the prefix of the keys in Redis. It
// returns "" if the store does not know the intended key either.
func (h *Handler) meant(ctx context.Context, v *View, key string) string {
	trimmed := strings.TrimSpace(key)
	for _, other := range []string{trimmed, strings.TrimPrefix(trimmed, redisPrefix)} {
		if other == "" || other == key || !v.Who.MayUse(other) {
			continue
		}
		if e, err := h.explained(ctx, v, other); err == nil && !rowOf(e.Lock).Unknown {
			return other
		}
	}
	return ""
}

// explained reads everything about a key when its record has changed, and every few seconds. A renewal counts as a
// change, so that everything that the page shows about the lease is from the same time.
func (h *Handler) explained(ctx context.Context, v *View, key string) (ops.Explanation, error) {
	name := "explain " + key + v.Who.sight()
	read := func() (read[ops.Explanation], error) {
		return get(ctx, h.cache, name, wholeEvery, seen(v.Who, func(ctx context.Context) (ops.Explanation, error) {
			e, err := h.cfg.Desk.Explain(ctx, key)
			h.clock(e.Lock.Now)
			return e, err
		}))
	}
	r, err := read()
	if err != nil {
		return ops.Explanation{}, err
	}
	fresh, ok := h.statuses(ctx, v, "the record of the key", "one "+key, []string{key})[key]
	// The key of a limit has no waiters of its own: what Explain says about waiters is about the line for the permits.
	if was := rowOf(r.val.Lock); ok && (was.Fence != fresh.Fence || was.State != fresh.State || was.Pulse != fresh.Pulse || apart(was.Renewed, fresh.Renewed) || apart(was.Ends, fresh.Ends) || apart(was.Until, fresh.Until) ||
		was.Waiters != fresh.Waiters && r.val.Lock.Permits == nil) {
		h.cache.forget(name)
		if newer, err := read(); err == nil {
			r = newer
		}
	}
	v.stale("the explanation", r.at, r.err)
	return r.val, nil
}

// apart reports whether two instants differ by more than the precision with which stores report them.
func apart(a, b time.Time) bool { return a.Sub(b).Abs() > 100*time.Millisecond }

// offer returns an offer of package ops with the page on which to do it.
func (v *View) offer(a ops.Offer, l ops.Lock) Offer {
	o := Offer{Offer: a, Title: offerTitles[a.Name], Command: cmdline.Of(a)}
	verb := ops.VerbOf(a.Name)
	if verb == nil {
		return o
	}
	o.Title = verb.Title
	switch {
	case !v.MayOperate():
	case verb.Has("Queue"):
		if l.Task != nil && v.Who.mayJob(l.Task.Job()) {
			o.Href = actURL("do", doOf(a.Name), "job", l.Job, "key", l.Key)
		}
	case !verb.Has("Fence"): // it is about the pause of a key, not about its holder
		o.Href = actURL("do", doOf(a.Name), "key", a.Key)
	case a.Name == ops.ActSkipJob && !v.Who.mayJob(l.Job), !l.Locked(): // the offers for the permits of a limit are on the pages of the permits
	default:
		o.Href = actURL("do", doOf(a.Name), "key", l.Key)
	}
	return o
}

// tail reads the latest actions of operators, the newest first. All pages share the result.
func (h *Handler) tail(ctx context.Context) (read[[]ops.AuditEntry], error) {
	return get(ctx, h.cache, "audit", 2*time.Second, func(ctx context.Context) ([]ops.AuditEntry, error) {
		all := []ops.AuditEntry{}
		refused := 0
		for e, err := range ops.Actions(h.cfg.Desk.Audit(ctx, ops.AuditQuery{})) {
			if err != nil {
				return nil, err
			}
			if e.Outcome == ops.OutcomeRefused {
				if refused++; refused > tailRefused {
					continue
				}
			}
			if all = append(all, e); len(all) == tailLength {
				break
			}
		}
		return all, nil
	})
}

// history collects what has happened to a key, the newest first.
func (h *Handler) history(ctx context.Context, v *View, l ops.Lock) []HistoryItem {
	var items []HistoryItem
	of := ops.EventsQuery{Key: l.Key}
	if v.Who.Operate || v.Who.Admin {
		r, err := h.tail(ctx)
		if err != nil {
			v.notice("What operators have done could not be read: %s.", plain(err))
		}
		for _, e := range r.val {
			if l.Concerns(e) {
				items = append(items, itemOf(e))
			}
		}
	}
	if h.cfg.Desk.HasJournal() {
		events, err := h.journal(ctx, v)
		if err != nil {
			v.notice("The journal could not be read: %s.", plain(err))
		}
		for _, e := range events {
			if of.Wants(e) {
				items = append(items, happened(e))
			}
		}
	}
	slices.SortStableFunc(items, func(a, b HistoryItem) int { return b.At.Compare(a.At) })
	ops.InOrder(items, func(i HistoryItem) ops.Place {
		if i.Action {
			return ops.Place{At: i.At} // the action was recorded before it began
		}
		return ops.Place{Key: i.Key, Fence: i.Fence, Kind: i.kind, At: i.At}
	})
	items = fold(items)
	return items[:min(len(items), historyRows)]
}

const (
	// againBack is how far back the page of a lock looks for repetitions, and againFrom is how many it takes to say so.
	againBack = time.Hour
	againFrom = 3

	// reasonAbsent ends the reason with which a keeper frees the key of a task that asynq does not have.
	reasonAbsent = "the task does not exist"
)

// again returns a text for a key that is repeatedly kept for a task that asynq does not have, or "". A single such task may
// have been deleted. If the next tasks are missing as well, a program hands the lock over and does not enqueue.
func (h *Handler) again(ctx context.Context, v *View, l ops.Lock) string {
	if l.State != joblock.StateParked || l.Task == nil || l.Task.State != ops.TaskAbsent || !h.cfg.Desk.HasJournal() {
		return ""
	}
	events, err := h.journal(ctx, v)
	if err != nil {
		return "" // the page's history says so
	}
	n, first, of := 1, l.Changed.Time, ops.EventsQuery{Key: l.Key}
	for _, e := range events { // the newest first
		if of.Wants(e) && e.Kind == event.Freed.String() && strings.HasSuffix(e.Reason, reasonAbsent) && e.Fence < l.Fence && l.Now.Sub(e.At.Time) < againBack {
			n, first = n+1, e.At.Time
		}
	}
	if n < againFrom {
		return ""
	}
	who := visible(cmp.Or(l.Holder, "its holder"))
	return fmt.Sprintf("%d times in %s, with this one, the key was kept for a task that asynq does not have. Probably %s hands the lock over to a task that is never enqueued.",
		n, length(l.Now.Sub(first)), who)
}

// happened returns an event as an item. Who is the process or the job that the event is about.
func happened(e ops.Event) HistoryItem {
	item := HistoryItem{ID: e.ID, At: e.At.Time, What: kindOf(e), Who: cmp.Or(e.Holder, e.Job, e.Node), Text: e.Text, Fence: e.Fence, Key: e.Key, kind: e.Kind}
	switch e.Kind {
	case event.Contended.String(), event.GaveUp.String():
		item.Who = e.Source // the text has the holder
	case event.Forced.String(), event.Freed.String():
		item.Who = cmp.Or(e.Holder, e.Source)
	}
	return item
}

// fold merges repeated refusals of the same process into one item, while nothing else happened. The items are the newest
// first.
func fold(items []HistoryItem) []HistoryItem {
	var all []HistoryItem
	for _, item := range items {
		at := -1
		for i := len(all) - 1; i >= 0 && refused(item) && refused(all[i]); i-- {
			if all[i].What == item.What && all[i].Who == item.Who && all[i].Fence == item.Fence && all[i].Key == item.Key {
				at = i
				break
			}
		}
		if at < 0 {
			all = append(all, item)
			continue
		}
		all[at].Times, all[at].First = max(2, all[at].Times+1), item.At
	}
	return all
}

func refused(i HistoryItem) bool {
	return !i.Action && (i.What == event.Contended.String() || i.What == event.GaveUp.String())
}

func itemOf(e ops.AuditEntry) HistoryItem {
	item := HistoryItem{ID: e.ID, At: e.At.Time, What: e.Action, Who: e.By, Text: e.Reason, Outcome: e.Outcome, Fence: e.Fence, Key: e.Key, Action: true}
	item.Keys = e.Keys
	switch {
	case e.Scope != "" && e.Key != "":
		item.Of, item.Href = visible(e.Key), "cronjob?"+url.Values{"scope": {e.Scope}, "name": {e.Key}}.Encode()
	case e.Scope != "":
		item.Of, item.Href = "all of "+visible(e.Scope), "cron?"+url.Values{"scope": {e.Scope}}.Encode()
	case e.Key != "" && e.Fence == 0 && strings.HasSuffix(e.Action, " task"):
		item.Of, item.Href = visible(e.Key), "job?"+url.Values{"job": {e.Key}}.Encode()
	case e.Key != "":
		item.Of, item.Href = visible(e.Key), "lock?"+url.Values{"key": {e.Key}}.Encode()
	}
	if e.Error != "" {
		item.Outcome += ": " + e.Error
	}
	return item
}

// doneAction returns the action that led to this page. It looks the action up in the record of actions, so that no
// address can claim an action that never happened, or one on another subject.
func (h *Handler) doneAction(ctx context.Context, v *View, about func(ops.AuditEntry) bool) *HistoryItem {
	id := one(v.Query, "done")
	if id == "" {
		return nil
	}
	r, err := h.tail(ctx)
	if err != nil {
		return nil
	}
	for _, e := range r.val {
		if e.ID == id && (e.By == v.Who.ID || v.Who.Admin) && about(e) {
			item := itemOf(e)
			return &item
		}
	}
	return nil
}

// OfLimit reports whether the key is that of a limit. Such a key is never taken itself, so it is neither free nor held.
func (b *LockBody) OfLimit() bool { return b.Limit != nil && b.Limit.Kind == ops.KindLimit }

// Full reports whether all permits of the limit are taken.
func (b *LockBody) Full() bool { return b.OfLimit() && b.Limit.N > 0 && b.Limit.Taken >= b.Limit.N }

// Live reports whether the lock has a running holder, as far as the store knows.
func (b *LockBody) Live() bool { return b.Row.State == joblock.StateHeld }

// Renewing reports whether the holder renews its lease: it has renewed at least once, and no renewal is overdue.
func (b *LockBody) Renewing() bool {
	return b.Live() && b.Row.Pulse == ops.PulseFresh && b.Row.Renewed.After(b.E.Lock.Changed.Time)
}

// Turns reports whether the waiters' turns can be estimated.
func (b *LockBody) Turns() bool { return !b.turn(1).IsZero() }

// Turn estimates when a waiter gets the key, if holders take as long as they did recently. It is zero if the present
// holder has already taken longer than all of these. Each rendering estimates it again.
func (b *LockBody) Turn(w ops.Waiter) time.Time { return b.turn(w.Position) }

func (b *LockBody) turn(position int) time.Time {
	l, h := &b.E.Lock, b.E.Lock.Holds
	if h == nil || b.Limit != nil || !l.Locked() || l.Since.IsZero() || l.Age > h.Most {
		return time.Time{}
	}
	at := l.Since.Add(h.Median.Duration())
	if at.Before(l.Now.Time) {
		at = l.Since.Add(h.Most.Duration())
	}
	return at.Add(time.Duration(position-1) * h.Median.Duration())
}

// MoreWaiters returns how many waiters are not shown.
func (b *LockBody) MoreWaiters() int {
	n := b.E.Lock.Waiters
	if b.Limit != nil {
		n = max(n, b.Limit.Waiting)
	}
	return max(0, n-len(b.E.Lock.Line))
}

// Task is the task of the job, or nil.
func (b *LockBody) Task() *ops.Task { return b.E.Lock.Task }
