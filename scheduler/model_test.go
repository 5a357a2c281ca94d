package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// Random histories of one job with random policies: executions of all lengths, outages of
// all nodes, pauses, triggers. What the nodes do is what the oracle says, which knows the
// package's documentation and has neither ledgers nor locks nor nodes.
func TestRandomHistories(t *testing.T) {
	const histories = 120
	used := 0
	var seen outcome
	for seed := range uint64(histories) {
		h := newHistory(seed)
		o := h.oracle()
		if o.tie {
			continue // two things at one time: both orders are right
		}
		if !testkit.Whole && used >= 8 && o.refused == 0 {
			continue // the share is the first eight, and all with the rarest incident
		}
		used++
		seen.add(o)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { virtual(t, func(c *cluster) { c.follow(h, o) }) }) {
			break
		}
	}
	t.Logf("%d of %d histories have no ties: %+v, %d of backfills, %d backfills were refused", used, histories, seen.counts, seen.filled, seen.refused)
	c := seen.counts
	if used < testkit.Size(8, histories/4) || slices.Min([]int64{c.Done, c.Missed, c.Overlapped, c.Paused, c.TakenOver}) == 0 || seen.filled == 0 || seen.refused == 0 {
		t.Error("this proves little")
	}
}

// history is a job and what happens to it.
type history struct {
	text     string // the options
	opts     []scheduler.Option
	rules    rules
	period   time.Duration
	lengths  []time.Duration // of the executions, by the minute of their tick
	incident []incident
	until    time.Duration
}

// rules are the options, as the oracle has them.
type rules struct {
	catchUp  int
	window   time.Duration
	atOnce   int
	queue    int
	newest   bool
	deadline time.Duration
}

// incident is something that happens to the cluster or the job at a time.
type incident struct {
	at       time.Duration
	what     string        // down, up, pause, resume, trigger, backfill, stop
	from, to time.Duration // of a backfill
}

func newHistory(seed uint64) *history {
	dice := rand.New(rand.NewPCG(seed, 1))
	h := &history{until: 4*hour + 70*sec, rules: rules{catchUp: 1, atOnce: 1, window: forever}}
	h.period = []time.Duration{2 * min, 5 * min, 8 * min, 20 * min}[dice.IntN(4)]
	say := func(opt scheduler.Option, format string, args ...any) {
		h.opts = append(h.opts, opt)
		h.text += " " + fmt.Sprintf(format, args...)
	}
	switch n := 1 + dice.IntN(5); dice.IntN(3) {
	case 0:
		h.rules.catchUp = 0
		say(scheduler.CatchUpNone(), "CatchUpNone")
	case 1:
		h.rules.catchUp, h.rules.window = n, time.Duration(n)*17*min
		say(scheduler.CatchUpAll(h.rules.window, n), "CatchUpAll(%s, %d)", h.rules.window, n)
	}
	switch n := 1 + dice.IntN(4); dice.IntN(3) {
	case 0:
		h.rules.queue = n
		say(scheduler.OverlapQueue(n), "OverlapQueue(%d)", n)
	case 1:
		h.rules.newest = true
		say(scheduler.OverlapNewest(), "OverlapNewest")
	}
	if n := 2 + dice.IntN(2); dice.IntN(3) == 0 {
		h.rules.atOnce = n
		say(scheduler.MaxConcurrent(n), "MaxConcurrent(%d)", n)
	}
	if dice.IntN(2) == 0 {
		h.rules.deadline = time.Duration(1+dice.IntN(40)) * 37 * sec
		say(scheduler.StartDeadline(h.rules.deadline), "StartDeadline(%s)", h.rules.deadline)
	}
	for range h.until / min {
		l := time.Duration(6+dice.IntN(20)) * sec
		if dice.IntN(3) == 0 {
			l += time.Duration(dice.Int64N(int64(3 * h.period))).Round(sec)
		}
		h.lengths = append(h.lengths, l)
	}
	up, paused := true, false
	for at := time.Duration(0); ; {
		at += time.Duration(6*sec + time.Duration(dice.Int64N(int64(40*min)))).Round(sec)
		if at > h.until-10*min {
			break
		}
		what := "trigger"
		var from, to time.Duration
		switch n := dice.IntN(10); {
		case n == 8:
			what, to = "backfill", (at - time.Duration(dice.Int64N(int64(hour)))).Truncate(h.period)
			from = to - time.Duration(dice.IntN(12))*h.period
		case n == 9:
			what = "stop"
		case n < 4 && up:
			what, up = "down", false
		case n < 6 && !up:
			what, up = "up", true
		case n < 6 && paused:
			what, paused = "resume", false
		case n < 6:
			what, paused = "pause", true
		}
		h.incident = append(h.incident, incident{at, what, from, to})
	}
	if !up {
		h.incident = append(h.incident, incident{at: h.until - 9*min, what: "up"})
	}
	return h
}

// length returns how long each execution of a tick takes.
func (h *history) length(tick time.Duration) time.Duration {
	return h.lengths[int(tick/min+1000)%len(h.lengths)]
}

// String tells the history.
func (h *history) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "@every %s%s:", h.period, h.text)
	for _, i := range h.incident {
		fmt.Fprintf(&b, " %s at %s", i.what, i.at)
		if i.what == "backfill" {
			fmt.Fprintf(&b, " from %s to %s", i.from, i.to)
		}
	}
	return b.String()
}

// outcome is what became of a job.
type outcome struct {
	begun   []begun
	counts  admin.Counts
	waiting int
	filled  int // executions of backfills
	refused int // backfills, because one had not ended
	tie     bool
}

// begun is an execution that has begun.
type begun struct {
	at, tick time.Duration
	cause    scheduler.Cause
	ends     time.Duration // only in the oracle
}

func (o *outcome) add(other *outcome) {
	c, d := &o.counts, other.counts
	c.Done, c.TakenOver = c.Done+d.Done, c.TakenOver+d.TakenOver
	o.filled, o.refused = o.filled+other.filled, o.refused+other.refused
	c.Missed, c.Overlapped, c.Paused = c.Missed+d.Missed, c.Overlapped+d.Overlapped, c.Paused+d.Paused
}

// follow lets three nodes live through a history.
func (c *cluster) follow(h *history, want *outcome) {
	t := c.T
	var r runs
	start := time.Now()
	var up []*node
	refused := 0
	begin := func() {
		// With MaxConcurrent, several nodes may execute the job, and no node ends last.
		for range map[bool]int{true: 3, false: 1}[h.rules.atOnce == 1] {
			n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = 3 * sec })
			n.add("job", fmt.Sprintf("@every %s", h.period), func(ctx context.Context) error {
				tick, _ := scheduler.TickFrom(ctx)
				return r.fn(n, h.length(tick.At.Sub(start)))(ctx)
			}, h.opts...)
			up = append(up, n.start())
		}
	}
	begin()
	ops := c.admin()
	for _, i := range h.incident {
		until(start, i.at)
		switch i.what {
		case "down":
			// The node that executes the job ends last, because another node would take the tick over.
			calls := r.all()
			executes := func(n *node) bool { return len(calls) > 0 && calls[len(calls)-1].on == n.name }
			others := slices.DeleteFunc(slices.Clone(up), executes)
			for _, n := range others {
				n.end()
			}
			for _, n := range up {
				if executes(n) {
					n.end()
				}
			}
			up = nil
		case "up":
			begin()
		case "pause":
			wantNil(t, "Pause", ops.Pause(c.Context(), "job", ""))
		case "resume":
			wantNil(t, "Resume", ops.Resume(c.Context(), "job", ""))
		case "trigger":
			wantNil(t, "Trigger", ops.Trigger(c.Context(), "job"))
		case "backfill":
			_, err := ops.Backfill(c.Context(), "job", start.Add(i.from), start.Add(i.to))
			if errors.Is(err, admin.ErrBackfilling) {
				refused++
			} else {
				wantNil(t, "Backfill", err)
			}
		case "stop":
			wantNil(t, "StopBackfill", ops.StopBackfill(c.Context(), "job"))
		}
	}
	until(start, h.until)
	e, err := ops.Entry(c.Context(), "job")
	wantNil(t, "Entry", err)
	synctest.Wait()
	var got []begun
	rest := slices.Clone(want.begun)
	for _, call := range r.all() {
		b := begun{at: call.begun.Sub(start), tick: call.tick.At.Sub(start), cause: call.tick.Cause}
		got = append(got, b)
		i := slices.IndexFunc(rest, b.like)
		if i < 0 || i >= h.rules.atOnce { // executions that begin at one time are in any order
			t.Fatalf("%s\nbegun:  %v\noracle: %v", h, got, want.begun[:least(len(got), len(want.begun))])
		}
		rest = slices.Delete(rest, i, i+1)
	}
	if len(got) != len(want.begun) || e.Counts != want.counts || e.Waiting != want.waiting || refused != want.refused {
		t.Fatalf("%s\nbegun %d, wait %d, %+v, %d refused\noracle %d, wait %d, %+v, %d refused", h, len(got), e.Waiting, e.Counts, refused, len(want.begun), want.waiting, want.counts, want.refused)
	}
}

// near is how far times may be apart that mean the same moment.
const near = 5 * sec

// like reports whether two executions are the same. A trigger's time is when it was asked for.
func (b begun) like(other begun) bool {
	return b.cause == other.cause && (b.at-other.at).Abs() < near && (b.tick-other.tick).Abs() < near
}

// oracle says what happens to a job. It goes through the events in the order of time.
func (h *history) oracle() *outcome {
	o := &outcome{}
	r := h.rules
	var (
		waiting   []time.Duration // ticks
		trigger   time.Duration   // that waits; 0: none
		taken     bool            // a node has seen the trigger
		unclaimed []time.Duration // ticks since an execution began, or since the nodes went down
		skipped   int64           // of the same time, because the job was paused
		paused    bool
		up        = true
		running   []begun                        // executions that have begun and not ended: they run, or were broken off
		cause     scheduler.Cause                // of the execution that has begun last
		newer     = make(map[time.Duration]bool) // ticks that wait because they are the newest
		resumed   time.Duration                  // when the last pause ended
		last      time.Duration                  // the time of the event before
	)
	// The latest backfill, as nodes have seen it, and the request.
	var fill, order struct {
		number   int
		from, to time.Duration
		stop     bool
		ended    bool
		next     time.Duration
	}
	fill.ended = true
	lanes := r.atOnce > 1
	full := func() bool { return len(running) >= r.atOnce }
	fills := func() bool {
		return slices.ContainsFunc(running, func(b begun) bool { return b.cause == scheduler.CauseBackfill })
	}
	left := func(tick time.Duration) bool { // to the backfill
		return !fill.ended && !fill.stop && tick >= fill.next && tick <= fill.to
	}
	takeUp := func() {
		if order.number > fill.number {
			fill = order
			waiting = slices.DeleteFunc(waiting, left)
		}
		fill.stop = order.stop
	}
	late := func(tick, now time.Duration) bool { return r.deadline > 0 && now-tick > r.deadline }
	begin := func(now time.Duration) {
		for up && !full() {
			var b begun
			switch {
			case trigger != 0:
				b, trigger, taken = begun{at: now, tick: trigger, cause: scheduler.CauseTrigger}, 0, false
			case len(waiting) > 0 && !paused:
				b, waiting = begun{at: now, tick: waiting[0], cause: scheduler.CauseTick}, waiting[1:]
			case !fill.ended && !fills() && (fill.stop || fill.next > fill.to):
				fill.ended = true
				return
			case !fill.ended && !fills():
				b = begun{at: now, tick: fill.next, cause: scheduler.CauseBackfill}
				fill.next += h.period
				o.filled++
			default:
				return
			}
			b.ends, cause = now+h.length(b.tick), b.cause
			running = append(running, b)
			o.begun = append(o.begun, b)
		}
	}
	expire := func(now time.Duration) {
		before := len(waiting)
		waiting = slices.DeleteFunc(waiting, func(tick time.Duration) bool { return late(tick, now) })
		o.counts.Missed += int64(before - len(waiting))
	}
	// claim decides about the ticks that no node has claimed, at the end of an execution or of an outage.
	claim := func(now time.Duration, overlapped bool) {
		o.counts.Paused, skipped = o.counts.Paused+skipped, 0
		taken = trigger != 0
		takeUp()
		expire(now)
		unclaimed = slices.DeleteFunc(unclaimed, left)
		newest := r.newest || r.queue == 0 && (fills() || !lanes && cause == scheduler.CauseBackfill)
		if overlapped && r.queue == 0 && !newest {
			o.counts.Overlapped += int64(len(unclaimed))
			unclaimed = nil
			return
		}
		for len(unclaimed) > 0 && late(unclaimed[0], now) {
			o.counts.Missed++
			unclaimed = unclaimed[1:]
		}
		room := slices.Max([]int{r.catchUp, 1}) + r.queue
		switch n := len(unclaimed); {
		case n == 0:
		case overlapped && newest:
			o.counts.Overlapped += int64(n - 1)
			before := len(waiting)
			waiting = slices.DeleteFunc(waiting, func(tick time.Duration) bool { return newer[tick] })
			o.counts.Overlapped += int64(before - len(waiting))
			newer[unclaimed[n-1]] = true
			waiting = append(waiting, unclaimed[n-1])
			room++
		case overlapped:
			for _, tick := range unclaimed {
				if len(waiting) < r.queue {
					waiting = append(waiting, tick)
				} else {
					o.counts.Overlapped++
				}
			}
		default:
			keep := 0
			for keep < least(n, r.catchUp) && now-unclaimed[n-1-keep] <= r.window {
				keep++
			}
			if keep == 0 && now-unclaimed[n-1] < min {
				keep = 1
			}
			o.counts.Missed += int64(n - keep)
			waiting = append(waiting, unclaimed[n-keep:]...)
		}
		if !(overlapped && newest) && slices.ContainsFunc(waiting, func(tick time.Duration) bool { return newer[tick] }) {
			room++
		}
		if n := len(waiting) - room; n > 0 && len(unclaimed) > 0 {
			o.counts.Missed += int64(n)
			waiting = waiting[n:]
		}
		unclaimed = nil
	}
	next, incidents := h.period, h.incident
	for {
		at, what := next, "tick"
		if len(incidents) > 0 && incidents[0].at <= at {
			at, what = incidents[0].at, incidents[0].what
		}
		slices.SortStableFunc(running, func(a, b begun) int { return int(a.ends - b.ends) })
		if len(running) > 0 && up && running[0].ends <= at {
			at, what = running[0].ends, "end"
		}
		if at > h.until {
			o.tie = o.tie || at-h.until < near
			break
		}
		o.tie = o.tie || at-last < near && last > 0
		for _, tick := range slices.Concat(waiting, unclaimed) { // a limit that is reached right now
			o.tie = o.tie || r.deadline > 0 && (at-tick-r.deadline).Abs() < near || (at-tick-r.window).Abs() < near || (at-tick-min).Abs() < near
		}
		last = at
		switch what {
		case "tick":
			next += h.period
			if paused {
				skipped++
			} else {
				unclaimed = append(unclaimed, at)
			}
			if up {
				claim(at, full())
			}
		case "end":
			running = running[1:]
			o.counts.Done++
			claim(at, !lanes)
		case "down":
			if full() && !lanes {
				claim(at, true)
			}
			up = false
		case "up":
			up = true
			claim(at, full() && (r.queue > 0 || r.newest || !lanes && fills()))
			for i, b := range running { // taken over
				b.at, b.ends = at, at+h.length(b.tick)
				running[i] = b
				o.begun = append(o.begun, b)
				o.counts.TakenOver++
			}
		case "pause":
			// A pause goes on from the pause before if no node has come by in between.
			o.tie = o.tie || len(unclaimed) > 0 && unclaimed[len(unclaimed)-1] > resumed && resumed > 0
			paused = true
		case "resume":
			paused, resumed = false, at
		case "trigger":
			trigger = at
		case "backfill":
			if order.number > fill.number || !fill.ended {
				o.refused++
				break
			}
			order.number, order.from, order.to = order.number+1, incidents[0].from, incidents[0].to
			order.next, order.stop, order.ended = order.from, false, false
		case "stop":
			order.stop = order.number > fill.number || !fill.ended
		}
		if what != "tick" && what != "end" {
			incidents = incidents[1:]
		}
		if up { // a node reads the ledger, and may change it
			taken = trigger != 0
			takeUp()
			expire(at)
		}
		begin(at)
	}
	if o.waiting = len(waiting); trigger != 0 && taken {
		o.waiting++
	}
	return o
}

// least is min, which is a minute here.
func least(a, b int) int { return slices.Min([]int{a, b}) }
