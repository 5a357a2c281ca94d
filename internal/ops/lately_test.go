package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// The journal shows who asked for a key and did not get it, and whether leases of that key regularly expire.
func TestLately(t *testing.T) {
	ago := func(d time.Duration, kind, prior string) Event {
		return Event{At: Time{noon.Add(-d)}, Kind: kind, Key: "k", Prior: prior, Source: "web-" + d.String()}
	}
	ended := func(d time.Duration, fence int64) Event {
		e := ago(d, "lost", "")
		e.Fence, e.Error = fence, "lock lost: the lease ran out: "+core.ErrNotRenewed.Error()
		return e
	}
	const m = time.Minute
	for name, c := range map[string]struct {
		events []Event
		never  string // what a lease says that was never renewed
		orphan bool
		since  time.Duration // how long ago the oldest entry was
		want   RecentEvents
		says   []string
	}{
		"nothing": {events: []Event{ago(m, "acquired", ""), ago(2*m, "released", ""), ago(61*m, "gave up", ""), ago(25*time.Hour, "acquired", "lapsed")}},
		"gave up": {events: []Event{ago(3*m, "gave up", ""), ago(9*m, "gave up", "")},
			want: RecentEvents{GaveUp: 2, LastAt: Time{noon.Add(-3 * m)}, LastBy: "web-3m0s"},
			says: []string{"In the last hour 2 calls gave up waiting for the key. The last one was in the process web-3m0s, at 11:57:00 UTC (3 min ago)."}},
		"busy": {events: []Event{ago(3*m, "contended", ""), ago(9*m, "gave up", "")}, since: 10 * m,
			want: RecentEvents{GaveUp: 1, Busy: 1, LastAt: Time{noon.Add(-3 * m)}, LastBy: "web-3m0s", Since: Time{noon.Add(-10 * m)}},
			says: []string{"Since 11:50:00 UTC (10 min ago), as far as the latest 1000 entries of the journal go back, 1 call found the key busy, and 1 gave up waiting."}},
		"busy, and an hour was read": {events: []Event{ago(3*m, "contended", ""), ago(65*m, "acquired", "lapsed")}, since: 70 * m,
			want: RecentEvents{Busy: 1, LastAt: Time{noon.Add(-3 * m)}, LastBy: "web-3m0s", Lapsed: 1, LapsedAt: Time{noon.Add(-65 * m)}, Since: Time{noon.Add(-70 * m)}},
			says: []string{"In the last hour 1 call found the key busy.", "Since 10:50:00 UTC (1 h 10 min ago), as far as the latest 1000 entries of the journal go back, 1 holder let the lease"}},
		"one lease": {events: []Event{ago(5*m, "acquired", "lapsed")}, since: 30 * time.Hour,
			want: RecentEvents{Lapsed: 1, LapsedAt: Time{noon.Add(-5 * m)}},
			says: []string{"In the last day 1 holder let the lease of this key run out; after the last of them the key was granted again at 11:55:00 UTC (5 min ago)."}},
		"no renewal": {events: []Event{ended(5*m, 6), ended(65*m, 5)}, never: "The holders of this key do not renew by themselves, as the journal shows: so nothing is known of this one, and it need not be dead.",
			want: RecentEvents{Unrenewed: 2, UnrenewedAt: Time{noon.Add(-5 * m)}},
			says: []string{"In the last day 2 holders of this key had ended the renewal themselves when their leases ran out, the last one at 11:55:00 UTC (5 min ago)."}},
		"no renewal of this one": {events: []Event{ended(5*m, 7)}, orphan: true,
			want: RecentEvents{Unrenewed: 1, UnrenewedAt: Time{noon.Add(-5 * m)}, Meant: true},
			says: []string{"its lease has run out, because it had ended the renewal itself, as the journal shows."}},
		"leases": {events: []Event{ago(5*m, "acquired", "lapsed"), ago(65*m, "acquired", "lapsed")},
			want: RecentEvents{Lapsed: 2, LapsedAt: Time{noon.Add(-5 * m)}},
			says: []string{"In the last day 2 holders let", "Perhaps their program never renews: then a lease without a renewal does not say that the holder is dead."}},
	} {
		var since time.Time
		if c.since > 0 {
			since = noon.Add(-c.since)
		}
		got := latelyIn(c.events, 7, noon, since)
		if (got == nil) != (c.want == RecentEvents{}) || got != nil && *got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		l := lockIn(joblock.StateHeld, "", 25*time.Second)
		if c.orphan {
			l = lockIn(joblock.StateOrphaned, "", 25*time.Second)
		}
		if c.never == "" && !c.orphan {
			c.never = "then it stopped between"
		}
		l.Renewed, l.TTL, l.Lately = Time{noon.Add(-25 * time.Second)}, Millis(30*time.Second), got
		l.Lease, l.ExpiresAt = Millis(5*time.Second), Time{noon.Add(5 * time.Second)}
		e := explain(l, Keeper{}, true, nil, nil)
		checkSentences(t, e)
		text := strings.Join(e.Text, "\n")
		for _, want := range append(c.says, c.never) {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in:\n%s", name, want, text)
			}
		}
		if strings.Contains(text, "Perhaps their") != (name == "leases") {
			t.Errorf("%s: a habit is reported of few, or not of many:\n%s", name, text)
		}
	}
}
