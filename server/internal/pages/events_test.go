package pages

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// A chronicle is a Desk with events and actions.
type chronicle struct {
	*fake
	events []ops.Event // the oldest first
	acts   []ops.AuditEntry
	lock   ops.Lock
	passed int // how many events were read
}

func (c *chronicle) HasJournal() bool { return true }

func (c *chronicle) Events(_ context.Context, q ops.EventsQuery) iter.Seq2[ops.Event, error] {
	return func(yield func(ops.Event, error) bool) {
		for _, e := range slices.Backward(c.events) {
			if q.Before != "" && !ops.EventBefore(e.ID, q.Before) || !q.Wants(e) {
				continue
			}
			if c.passed++; !yield(e, nil) {
				return
			}
		}
	}
}

func (c *chronicle) Audit(context.Context, ops.AuditQuery) iter.Seq2[ops.AuditEntry, error] {
	return recorded(c.acts)
}

// recorded walks over the audit of actions: the record with the outcome of each, and that from before it began.
func recorded(acts []ops.AuditEntry) iter.Seq2[ops.AuditEntry, error] {
	return func(yield func(ops.AuditEntry, error) bool) {
		for _, e := range acts {
			after := e
			after.Of, e.Outcome, e.Error = e.ID, "", ""
			if !yield(after, nil) || !yield(e, nil) {
				return
			}
		}
	}
}

func (c *chronicle) Explain(_ context.Context, key string) (ops.Explanation, error) {
	return ops.Explanation{Key: key, Lock: c.lock}, nil
}

// add adds an event that happens now. Before it so much time passes.
func (c *chronicle) add(after time.Duration, e ops.Event) {
	time.Sleep(after)
	e.At = ops.Time{Time: time.Now()}
	e.ID = fmt.Sprintf("%d-%d", time.Now().UnixMilli(), len(c.events))
	if e.Text == "" {
		e.Text = "about " + e.Key
	}
	c.events = append(c.events, e)
}

func (c *chronicle) handler(t *testing.T) *Handler {
	h, err := New(Config{Desk: c, Scopes: []string{"shop"}, Recorded: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

var tags = regexp.MustCompile(`<[^>]*>`)

func wantPage(t *testing.T, page string, has bool, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(page, text) != has {
			t.Errorf("%q: %v, want %v, in %s", text, !has, has, shorten(strings.Join(strings.Fields(tags.ReplaceAllString(page, " ")), " "), 1500))
		}
	}
}

// A filter also finds what is older than the events that all pages share, and goes on from there. Old events are not read
// again with each look.
func TestOlderEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{fake: &fake{}}
		for i := range 150 {
			c.add(time.Minute, ops.Event{Kind: "lost", Key: fmt.Sprintf("old:%d", i)})
		}
		for range 3 * mostEvents / 2 {
			c.add(time.Second, ops.Event{Kind: "contended", Key: "busy"})
		}
		h := c.handler(t)
		get := func(path string) string { t.Helper(); return h.get(path, someone).Body.String() }
		wantPage(t, get("events"), true, "At least <b>2\u202f000 events</b>, looked for back to")
		page := get("events?kind=lost")
		wantPage(t, page, true, "about old:149<", "about old:50<", ">Older</a>")
		wantPage(t, page, false, "about old:49<")
		i := strings.Index(page, "after=")
		next := page[i+len("after=") : i+strings.Index(page[i:], `"`)]
		next, _, _ = strings.Cut(next, "&")
		page = get("events?kind=lost&after=" + next)
		wantPage(t, page, true, "about old:49<", "about old:0<", "<b>50 events</b>.")
		wantPage(t, page, false, "about old:50<", ">Older</a>")
		wantPage(t, get("events?key=old%3A7"), true, "<b>1 event</b>.", "about old:7<")
		wantPage(t, h.get("events?key=old%3A7", &Caller{ID: "y"}).Body.String(), false, "about old:7<") // no key is this one's
		passed := c.passed
		for range 20 {
			time.Sleep(2 * time.Second)
			get("events?key=old%3A7")
		}
		if n := c.passed - passed; n > 100 {
			t.Errorf("%d events were read again", n)
		}
		for range mostEvents { // all that were shared are older now
			c.add(time.Millisecond, ops.Event{Kind: "contended", Key: "busy"})
		}
		c.add(0, ops.Event{Kind: "lost", Key: "new"})
		time.Sleep(2 * time.Second)
		get("events?kind=contended&key=busy")
		time.Sleep(2 * time.Second)
		wantPage(t, get("events?kind=lost"), true, "At least <b>102 events</b>", "about new<", "about old:149<")
		wantPage(t, get("events?kind=acquired"), true, "No event matches the filter.", "<b>0 events</b>.")
	})
}

// Events can be asked for from a time and to a time.
func TestEventsOfATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{fake: &fake{}}
		for i := range 60 {
			c.add(time.Minute, ops.Event{Kind: "lost", Key: fmt.Sprintf("m:%d", i)})
		}
		h := c.handler(t)
		get := func(pairs ...string) string {
			t.Helper()
			q := url.Values{}
			for i := 0; i < len(pairs); i += 2 {
				q.Set(pairs[i], pairs[i+1])
			}
			return h.get("events?"+q.Encode(), someone).Body.String()
		}
		wantPage(t, get("from", "10m"), true, "<b>11 events</b>", "m:59", "m:49")
		wantPage(t, get("from", "10 min ago", "to", "5m"), true, "<b>5 events</b>", "m:50")
		at := time.Now().Add(-30 * time.Minute).UTC()
		for _, layout := range []string{"15:04", "15:04:05", "15:04 UTC", "2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02T15:04:05Z"} {
			wantPage(t, get("from", at.Format(layout)), true, "<b>31 events</b>")
		}
		wantPage(t, get("from", "noon"), true, "must be a time in UTC such as 15:04")
		wantPage(t, get("after", "x"), true, "is not the place of an event")
	})
}

// What an operator has freed is called the same everywhere, and found by one filter.
func TestWhatOperatorsFreedHasOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{fake: &fake{}}
		c.add(0, ops.Event{Kind: "forced", Key: "stuck", Reason: "TICKET-5 (by eva)"})
		now := ops.Time{Time: time.Now()}
		c.acts = []ops.AuditEntry{
			{ID: "4-0", At: now, Action: "cron pause", Scope: "shop", Key: "rates", By: "eva", Outcome: "done"},
			{ID: "3-0", At: now, Action: "cancel task", Key: "default/1", Keys: []string{"stuck"}, By: "eva", Outcome: "asked"},
			{ID: "2-0", At: now, Action: "free if idle", IfIdle: true, Key: "stuck", Fence: 7, By: "eva", Outcome: "done"},
			{ID: "1-0", At: now, Action: "force release", Key: "other", Fence: 8, By: "eva", Outcome: "done"},
		}
		h := c.handler(t)
		get := func(path string) string { t.Helper(); return h.get(path, someone).Body.String() }
		wantPage(t, get("events?kind=forced"), true, `<td data-l="kind">freed by an operator</td>`, `<option value="forced" selected>freed by an operator, or by force</option>`)
		wantPage(t, get("events?key=stuck"), true, `href="audit?key=stuck"`)
		wantPage(t, get("audit"), true, "<b>4 actions</b>", "cronjob?name=rates&amp;scope=shop", "job?job=default%2F1", `href="events"`)
		wantPage(t, get("audit?action=free+if+idle"), true, "<b>1 action</b>", "<option selected>free if idle</option>", "<option>force release</option>")
		wantPage(t, get("audit?action=force+release"), true, "<b>1 action</b>", ">other</")
		wantPage(t, get("audit?action=freed+by+an+operator"), true, "<b>2 actions</b>")
		wantPage(t, get("audit?key=stuck"), true, "<b>2 actions</b>", "cancel task", "free if idle")
		wantPage(t, h.get("events", &Caller{ID: "y", AllKeys: true, AllQueues: true}).Body.String(), false, "audit")
	})
}

// The history of a lock says who was refused, how often, and when by the clock. What one fence did comes after what the
// fence before it did.
func TestHistoryOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{fake: &fake{}, lock: ops.Lock{Key: "geo", State: joblock.StateHeld, Fence: 8}}
		c.add(0, ops.Event{Kind: "acquired", Key: "geo", Holder: "second", Fence: 8, Text: "second got it"})
		c.add(20*time.Millisecond, ops.Event{Kind: "released", Key: "geo", Holder: "first", Fence: 7, Text: "first gave it back"})
		first := time.Now().Add(time.Second).UTC().Format("15:04:05")
		for range 40 {
			c.add(time.Second, ops.Event{Kind: "contended", Key: "geo%#2", Holder: "second", Source: "asker", Fence: 8, Text: "second has it"})
			c.add(time.Second, ops.Event{Kind: "contended", Key: "geo%#2", Holder: "second", Source: "other", Fence: 8, Text: "second has it"})
		}
		page := c.handler(t).get("lock?key=geo", someone).Body.String()
		_, page, _ = strings.Cut(page, "<h2>History</h2>")
		wantPage(t, page, true, "asker", "other", "contended <b>40×</b>", "the last of 40, since", first, `href="events?key=geo"`, "second got it")
		if strings.Count(page, "contended") != 2 || strings.Index(page, "second got it") > strings.Index(page, "first gave it back") {
			t.Error(page)
		}
	})
}

// The list knows the kinds that it calls otherwise.
func TestKindsThatAreCalledOtherwise(t *testing.T) {
	for kind := range kindTitles {
		if !slices.Contains(ops.EventKinds(), kind) {
			t.Errorf("there is no kind %q", kind)
		}
	}
}

// Fold leaves what happened between.
func TestFold(t *testing.T) {
	c := HistoryItem{What: "contended", Who: "a", Fence: 1}
	d := HistoryItem{What: "contended", Who: "b", Fence: 1}
	x := HistoryItem{What: "released", Who: "a", Fence: 1}
	var got []string
	for _, i := range fold([]HistoryItem{c, d, c, x, c, d, d}) {
		got = append(got, fmt.Sprint(i.What[:1], i.Who, i.Times))
	}
	if want := []string{"ca2", "cb0", "ra0", "ca0", "cb2"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
