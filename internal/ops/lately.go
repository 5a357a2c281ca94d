package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// RecentEvents is what the journal shows about the callers of a key, its permits and its slots. With the defaults of
// package journal, it has callers that gave up waiting, but not callers that did not wait and were refused.
type RecentEvents struct {
	GaveUp   int    `json:"gave_up,omitempty"`  // how many gave up waiting in the last hour
	Busy     int    `json:"busy,omitempty"`     // how many found the key busy in the last hour, if the journal records that
	LastAt   Time   `json:"last_at,omitzero"`   // when the last of these was refused
	LastBy   string `json:"last_by,omitempty"`  // the process of the last one
	Lapsed   int    `json:"lapsed,omitempty"`   // how many holders of the last day let their leases run out
	LapsedAt Time   `json:"lapsed_at,omitzero"` // when another holder got the key after the last of these leases ran out

	// Unrenewed is how many holders of the last day had ended their renewal themselves before their leases ran out, and
	// UnrenewedAt is when the last of these leases ran out. Meant says whether the present or last holder is one of these
	// holders.
	Unrenewed   int  `json:"unrenewed,omitempty"`
	UnrenewedAt Time `json:"unrenewed_at,omitzero"`
	Meant       bool `json:"meant,omitempty"`

	// Since is the time of the oldest event that was read, if that is less than a day ago: then the numbers cover only
	// the time since Since. Older events were not read, or the journal has none.
	Since Time `json:"since,omitzero"`
}

const (
	refusedBack = time.Hour
	lapsedBack  = 24 * time.Hour
)

// latelyIn returns the RecentEvents of the events of a key, or nil if they show no refusal and no lease that ran out. The
// parameter fence is the fence of the present holding, and since is the time of the oldest entry that was read.
func latelyIn(events []Event, fence int64, now, since time.Time) *RecentEvents {
	var l RecentEvents
	for _, e := range events {
		age := now.Sub(e.At.Time)
		switch {
		case e.Kind == event.Acquired.String() && e.Prior == driver.EndedLapsed.String() && age <= lapsedBack:
			l.Lapsed++
			l.LapsedAt.Time = latest(l.LapsedAt.Time, e.At.Time)
			continue
		case e.Kind == event.Lost.String() && strings.Contains(e.Error, core.ErrNotRenewed.Error()) && age <= lapsedBack:
			l.Unrenewed++
			l.UnrenewedAt.Time = latest(l.UnrenewedAt.Time, e.At.Time)
			l.Meant = l.Meant || e.Fence == fence
			continue
		case age > refusedBack:
			continue
		case e.Kind == event.GaveUp.String():
			l.GaveUp++
		case e.Kind == event.Contended.String():
			l.Busy++
		default:
			continue
		}
		if e.At.After(l.LastAt.Time) {
			l.LastAt, l.LastBy = e.At, e.Source
		}
	}
	if l == (RecentEvents{}) {
		return nil
	}
	if now.Sub(since) < lapsedBack {
		l.Since.Time = since
	}
	return &l
}

// past reads the journal's events of a key, its permits and its slots: the events of the last day, and older ones if a
// caller waits. It reads at most the latest 1,000 entries of the journal, few at a time, because Redis serves no other
// client meanwhile. since is the time of the oldest entry that it read.
func (d *Desk) past(ctx context.Context, key string, now time.Time, waits bool) (events []Event, since time.Time, err error) {
	to, once, q := "+", repeats{}, EventsQuery{Key: key}
	for range holdsRead / holdsPage {
		page, err := d.cfg.Journal.page(ctx, true, "-", to, holdsPage)
		if err != nil {
			return nil, since, err
		}
		for _, m := range page {
			e, ok := eventOf(m)
			if ok {
				since = e.At.Time
			}
			if ok && once.first(e.nonce) && q.Wants(e) {
				events = append(events, e)
			}
		}
		if len(page) < holdsPage || !waits && now.Sub(since) > lapsedBack {
			break
		}
		to = "(" + page[len(page)-1].ID
	}
	return events, since, nil
}

// journal sets the fields of l that come from the journal.
func (l *Lock) journal(ctx context.Context, d *Desk) {
	waits := len(l.Line) > 0
	if d.cfg.Journal == nil || !waits && !l.Locked() && l.Permits == nil {
		return
	}
	now := l.Now.Time
	if now.IsZero() {
		now = time.Now()
	}
	events, since, err := d.past(ctx, l.Key, now, waits)
	switch {
	case err == nil:
	case waits:
		l.problem("How long holders took lately could not be read: %s.", err)
		return
	case Denied(err):
		return
	default:
		l.problem("What the journal has of the key could not be read: %s.", err)
		return
	}
	l.Lately = latelyIn(slices.Clone(events), l.Fence, now, since)
	if waits {
		l.Holds = holdsIn(events)
	}
}

// refusals says which callers recently failed to get the key.
func (s *story) refusals() string {
	l := s.Lately
	if l == nil || l.GaveUp+l.Busy == 0 {
		return ""
	}
	text := s.window(refusedBack, "hour")
	switch {
	case l.Busy == 0:
		text += fmt.Sprintf("%s gave up waiting for the key.", calls(l.GaveUp))
	case l.GaveUp == 0:
		text += fmt.Sprintf("%s found the key busy.", calls(l.Busy))
	default:
		text += fmt.Sprintf("%s found the key busy, and %d gave up waiting.", calls(l.Busy), l.GaveUp)
	}
	return text + fmt.Sprintf(" The last one was in the process %s, at %s.", visibleOr(l.LastBy, "without a name"), s.when(l.LastAt.Time))
}

// window begins a sentence with the period that the numbers of s.Lately cover: the last hour or day, or less if the
// journal does not go back that far.
func (s *story) window(back time.Duration, name string) string {
	if since := s.Lately.Since.Time; !since.IsZero() && s.now.Sub(since) < back {
		return fmt.Sprintf("Since %s (%s), as far as the latest %d entries of the journal go back, ", s.clock(since), s.ago(since), holdsRead)
	}
	return fmt.Sprintf("In the last %s ", name)
}

// lapses says what the lapsed leases of earlier holdings suggest about a holder that does not renew.
func (s *story) lapses() string {
	l := s.Lately
	switch {
	case l == nil:
		return ""
	case l.Unrenewed > 0:
		return fmt.Sprintf("%s%s of this key had ended the renewal themselves when their leases ran out, the last one at %s.", s.window(lapsedBack, "day"), holders(l.Unrenewed), s.when(l.UnrenewedAt.Time))
	case l.Lapsed == 0:
		return ""
	}
	text := fmt.Sprintf("%s%s let the lease of this key run out; after the last of them the key was granted again at %s.", s.window(lapsedBack, "day"), holders(l.Lapsed), s.when(l.LapsedAt.Time))
	if l.Lapsed >= lapsesUsual && s.Job == "" && !s.hasRenewed() && (s.State == joblock.StateHeld || s.State == joblock.StateOrphaned) {
		text += " Perhaps their program never renews: then a lease without a renewal does not say that the holder is dead."
	}
	return text
}

// lapsesUsual is the number of lapsed leases from which they may be how a program uses the key.
const lapsesUsual = 2

func calls(n int) string {
	if n == 1 {
		return "1 call"
	}
	return fmt.Sprintf("%d calls", n)
}

func holders(n int) string {
	if n == 1 {
		return "1 holder"
	}
	return fmt.Sprintf("%d holders", n)
}
