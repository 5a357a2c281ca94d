package pages

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// What the list of jobs sorts to its top is named only if there is something.
func TestWhatComesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := ops.Lock{Key: "k", State: joblock.StateHeld, Job: "q/1", Fence: 4}
		page := func(suspect string) string {
			f := &fake{jobs: []ops.Job{{Job: "q/1", Key: "k", Lock: l, Task: ops.Task{State: "active"}, Suspect: suspect}}, statuses: []ops.Lock{l}}
			return newHandler(t, f).get("jobs", someone).Body.String()
		}
		wantPage(t, page(""), true, "no suspects.")
		wantPage(t, page(""), false, "These come first")
		wantPage(t, page("why"), true, "1 suspect</a>. These come first.")
	})
}

// A form says under which name the reason is recorded, and that there is no name if the server knows no callers.
func TestWhoseReasonItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for who, text := range map[string]string{"eva": "recorded, with your name eva; others see it", "anyone": "recorded as by “anyone”, because this server does not ask who you are"} {
			h := newKeyed(t, map[string]ops.Explanation{"k": {Lock: ops.Lock{State: joblock.StateParked, Fence: 4}}})
			wantPage(t, h.get("act?do=free-if-idle&key=k", &Caller{ID: who, Operate: true, AllKeys: true, AllQueues: true}).Body.String(), true, text)
		}
	})
}

// That ticks are skipped stands before them, and when the next tick comes makes a sentence also once it has come.
func TestTheNextTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		f := &triggered{fake: &fake{}, job: ops.CronJob{Scope: "shop", Name: "rates", Now: ops.Time{Time: now}, Next: ops.Time{Time: now}, Paused: true}}
		f.ticks = []ops.CronTick{{At: now.Add(time.Hour)}}
		h, err := New(Config{Desk: f, Scopes: []string{"shop"}, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		page := h.get("cronjob?scope=shop&name=rates", someone).Body.String()
		if note := strings.Index(page, "these are skipped"); note < 0 || note > strings.Index(page, `<ol class="ticks">`) {
			t.Errorf("the note about skipped ticks is at %d: %s", note, page)
		}
		f.job.Paused = false
		time.Sleep(3 * time.Second)
		page = tags.ReplaceAllString(h.get("cronjob?scope=shop&name=rates", someone).Body.String(), "")
		wantPage(t, page, true, "Next tick at 00:00:00 UTC (now).")
		wantPage(t, page, false, "these are skipped")
	})
}

// The page of the nodes has the outboxes, if there are any.
func TestNodesHaveTheOutboxes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		f := &fake{}
		page := func() string { return newHandler(t, f).get("nodes", someone).Body.String() }
		wantPage(t, page(), false, "Outboxes")
		o := ops.Outbox{Name: "orders", State: ops.OutboxWell, Relay: "shop-1:77", At: ops.Time{Time: now}, Sent: 40, Waiting: 3}
		late := ops.Outbox{Name: "late", State: ops.OutboxBehind, Oldest: ops.Millis(90 * time.Second), Refused: 2, LastError: "refused <b>", At: ops.Time{Time: now}}
		f.boxes = ops.Outboxes{Outboxes: []ops.Outbox{o, late, {Name: "away", State: ops.OutboxUnread}, {Name: "gone", State: ops.OutboxUnserved}}, Now: ops.Time{Time: now}}
		text := page()
		wantPage(t, text, true, "<h2>Outboxes</h2>", "orders", "shop-1:77", "behind", "1 min 30 s", "refused &lt;b&gt;", "its database does not answer", "no relay works")
		if n := strings.Count(text, `class="alarm"`); n != 3 {
			t.Errorf("%d rows are marked, want 3", n)
		}
	})
}
