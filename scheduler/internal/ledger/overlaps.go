package ledger

import (
	"errors"
	"fmt"
	"time"
)

// A job is stuck if stuckTicks of its ticks in a row were skipped as overlapped, over at least this time.
const (
	stuckTicks = 3
	stuckFor   = 10 * time.Minute
)

// add adds ticks that were skipped, the oldest first.
func (o *Overlaps) add(ticks ...time.Time) {
	if o.Ticks == 0 {
		o.First = ticks[0].UnixMilli()
	}
	o.Ticks += int64(len(ticks))
}

// Several reports whether enough ticks were skipped that the job may be stuck.
func (o Overlaps) Several() bool { return o.Ticks >= stuckTicks }

// Stuck reports whether the job is stuck.
func (o Overlaps) Stuck(now time.Time) bool {
	return o.Several() && now.Sub(time.UnixMilli(o.First)) >= stuckFor
}

// reportStuck returns the News that the job is stuck, once until an execution ends. wasRunning is as in Update: if the
// execution has ended, the ticks that came during it no longer count.
func (l *Ledger) reportStuck(m Moment, wasRunning bool) []News {
	o := &l.Overlaps
	if last := l.Latest; wasRunning && len(l.Running) == 0 && last != nil && last.Ended() && last.State != Overlapped {
		*o = Overlaps{}
	}
	if o.Reported || !o.Stuck(m.Now) {
		return nil
	}
	o.Reported = true
	why := "scheduler: an execution that does not end"
	x := l.Latest
	if len(l.Running) > 0 {
		x = &l.Running[0]
	}
	switch {
	case x == nil:
	case x.State == Overlapped && x.Err != "":
		why = x.Err
	case !x.Ended():
		why = fmt.Sprintf("scheduler: the execution of %s on node %s has not ended", x.Tick().At.Format(time.RFC3339), x.Node)
	}
	return []News{{Kind: NewsStuck, Tick: tickAt(l.LastTick()), Node: m.Node, Count: int(o.Ticks), Err: errors.New(why)}}
}
