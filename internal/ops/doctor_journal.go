package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/scheduler"
)

const (
	// repeatedBack is how far back Doctor reads the journal, and repeatedRead the maximum number of events that it reads.
	repeatedBack = time.Hour
	repeatedRead = 2000

	// repeatedFrom is how many events of one kind and key make a Finding, and repeatedShown is the maximum number of such
	// Findings.
	repeatedFrom  = 3
	repeatedShown = 5
)

// repeatMeans explains, by kind, what it means if an event recurs. Doctor reports no events of other kinds.
var repeatMeans = map[string]string{
	event.GaveUp.String():            "callers give up on a key that is held for longer than they wait",
	event.Lost.String():              "holders lose the lock before their work is over",
	event.RenewedLate.String():       "leases are renewed so late that locks may be lost: the process or the store is slow",
	event.RenewalUnanswered.String(): "the store often does not answer that process, so locks may be lost",
	event.CleanupFailed.String():     "locks are left behind until their leases end",
	event.FellBack.String():          "functions run without a lock that other processes know",
	event.Overran.String():           "functions run for longer than they are meant to",
	event.Forced.String():            "the key is freed by force again and again",
	kindLapsed:                       "holders die, hang or are cut off while they have the lock, or their program never renews its lease",
}

func init() {
	for kind, means := range map[scheduler.Kind]string{
		scheduler.Failed:     "runs of the job fail again and again, even if the latest one was well",
		scheduler.Broken:     "runs of the job are broken off, because their lock is lost",
		scheduler.Lost:       "runs of the job are broken off, and no node executes them again",
		scheduler.Overrun:    "functions of the job ignore the end of their context, so ticks are skipped",
		scheduler.Missed:     "the schedulers do not come round to the ticks in time",
		scheduler.Stuck:      "an execution or a task does not end, again and again",
		scheduler.Overlapped: "runs of the job take longer than the time between two ticks",
		scheduler.Contested:  "two versions of a program define the job",
	} {
		repeatMeans[eventlog.CronKind(string(kind))] = means
	}
}

// repeated is an event that has occurred several times.
type repeated struct {
	Event // the latest
	n     int
}

// journal looks for problems that recurred in the last hour, even if they have stopped. The other checks see only present
// problems.
func (c *checkup) journal(ctx context.Context) error {
	if !c.HasJournal() {
		return nil
	}
	now := cmp.Or(c.keeper.Now.Time, time.Now())
	kinds := make([]string, 0, len(repeatMeans))
	for kind := range repeatMeans {
		if kind == kindLapsed {
			kind = event.Acquired.String() // the next holder's event shows the lapsed lease: a dead holder writes no event
		}
		kinds = append(kinds, kind)
	}
	type about struct{ kind, key string }
	at := make(map[about]int)
	var all []repeated
	read, others, may := 0, 0, viewerOf(ctx).Key
	for e, err := range c.Events(ctx, EventsQuery{Kinds: kinds, Since: now.Add(-repeatedBack)}) {
		if err != nil {
			return c.unread(ctx, "journal", "", err)
		}
		if may != nil && (e.Key == "" || !may(e.Key)) {
			if others++; others == 10*repeatedRead {
				break
			}
			continue
		}
		if e.Kind == event.Acquired.String() {
			if e.Kind = kindLapsed; e.Prior != driver.EndedLapsed.String() {
				continue
			}
		}
		key := cmp.Or(groupOf(e.Key), e.Key, e.Source)
		if e.Name != "" {
			key = e.Scope + ": " + e.Name
		}
		i, ok := at[about{e.Kind, key}]
		if !ok {
			i = len(all)
			at[about{e.Kind, key}] = i
			all = append(all, repeated{Event: e})
		}
		all[i].n++
		if read++; read == repeatedRead {
			break
		}
	}
	if read == 0 {
		one, err := c.cfg.Journal.page(ctx, false, "-", "+", 1)
		if err != nil {
			return c.unread(ctx, "journal", "", err)
		}
		if len(one) == 0 {
			return nil // no process writes a journal, so the absence of events proves nothing
		}
	}
	all = slices.DeleteFunc(all, func(r repeated) bool { return r.n < repeatedFrom })
	slices.SortStableFunc(all, func(a, b repeated) int { return cmp.Compare(b.n, a.n) })
	for i, r := range all {
		if i == repeatedShown {
			c.add(Note, "journal", "", fmt.Sprintf("%d more kinds of events have come again and again in the last hour", len(all)-i), "see the others", "joblock events --since 1h")
			break
		}
		c.repeated(now, r)
	}
	c.well("journal", "", fmt.Sprintf("in the last hour nothing that is wrong has happened %d times", repeatedFrom))
	return nil
}

func (c *checkup) repeated(now time.Time, r repeated) {
	node, show := cmp.Or(groupOf(r.Key), r.Key), "joblock events --since 1h"
	switch {
	case r.Name != "":
		node, show = r.Scope+": "+r.Name, fmt.Sprintf("joblock events --since 1h --scope %s --cron %s", Shell(r.Scope), Shell(r.Name))
	case node != "":
		show = "joblock events --since 1h -- " + Shell(node)
	default:
		node = r.Source
	}
	found := fmt.Sprintf("%d times %q in the last hour, the last at %s (%s ago): %s",
		r.n, r.Kind, moment(r.At.Time), length(now.Sub(r.At.Time)), strings.TrimSuffix(r.Text, "."))
	c.add(Note, "journal", node, found, repeatMeans[r.Kind], show+" lists them")
}
