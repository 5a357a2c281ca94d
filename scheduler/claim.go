package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/policy"
)

// laneTries is how many lanes beyond MaxConcurrent a node tries. A lane without an execution may be locked for a
// moment, by the node whose execution has just ended, or by the node that waited for the lane's lock.
const laneTries = 3

// errBrokenOff is the error of an execution that was broken off and that no node repeats.
var errBrokenOff = errors.New("the execution was broken off")

// claims takes the locks of jobs, and begins what is due.
type claims struct {
	*node
	specs    *specs
	presence *presence
}

// claim takes the job's lock, and begins what is due. The lanes in dead have executions that were broken off. The caller
// has taken a slot. at is the time of the next read of the ledger; ok is false if the job could not be claimed.
func (c *claims) claim(ctx context.Context, j *job, dead []int) (at time.Time, ok bool) {
	t := &term{claims: c, j: j, slots: 1}
	defer t.end()
	lock, err := c.recs.Try(ctx, j.name, 0)
	if err == nil {
		return t.run(ctx, lock, dead)
	}
	if errors.Is(err, joblock.ErrHeld) && j.Most() > 1 { // another node changes the ledger
		return within(4*policy.Spread, c.clock.now()), false
	}
	if !errors.Is(err, joblock.ErrHeld) && ctx.Err() == nil {
		c.trouble(j, "take the lock", err)
	}
	return soon(c.clock.now().Add(policy.Settling)), false
}

// inherit takes over the execution of a lane whose lock this node has waited for. It returns the time of the next read
// of the ledger.
func (c *claims) inherit(ctx context.Context, j *job, lane int, lock *joblock.Lock) time.Time {
	t := &term{claims: c, j: j, seats: map[int]*joblock.Lock{lane: lock}}
	defer t.end()
	again := soon(c.clock.now().Add(policy.Settling))
	if lane > 0 && !c.isLeft(ctx, j, lane) {
		return again
	}
	if !c.takeSlot() {
		return again
	}
	t.slots = 1
	var dead []int
	if lane == 0 {
		delete(t.seats, 0)
		c.reread(ctx)
	} else {
		dead = []int{lane}
		var err error
		if lock, err = c.recs.Wait(ctx, j.name, 0); err != nil {
			if ctx.Err() == nil {
				c.trouble(j, "take an execution over", err)
			}
			return again
		}
	}
	at, _ := t.run(ctx, lock, dead)
	return at
}

// isLeft reports whether an execution was left behind in a lane whose lock this node has got. Usually the execution has
// ended well.
func (c *claims) isLeft(ctx context.Context, j *job, lane int) bool {
	views, err := c.recs.Read(ctx, j.name)
	if err == nil {
		var l *ledger.Ledger
		if l, err = ledger.Decode(views[1].Memo); err == nil {
			return l.Lane(lane) != nil && !c.table.isGone(j)
		}
	}
	if ctx.Err() == nil {
		c.trouble(j, "take an execution over", err)
	}
	return false
}

// term is the time during which this node has a job's own lock.
type term struct {
	*claims
	j     *job
	book  *book
	slots int                   // that this node has taken for executions that have not begun
	seats map[int]*joblock.Lock // the locks of lanes, other than 0, in which no execution has begun
	begun []*execution          // in lanes other than 0, not started yet
}

// run begins what is due, and carries out the executions of lane 0 until nothing is due. Then it releases the lock.
// Results are those of claims.claim.
func (t *term) run(ctx context.Context, lock *joblock.Lock, dead []int) (at time.Time, ok bool) {
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		t.recs.Release(ctx, lock)
		t.unreadable(t.j, err)
		return t.clock.now().Add(policy.Unreadable), false
	}
	t.book = t.open(t.j, lock, l)
	alone, err := t.work(ctx, dead)
	t.recs.Release(ctx, lock)
	for _, e := range t.begun {
		t.slots--
		t.started.Go(func() { e.runInLane(ctx) })
	}
	if err != nil {
		if ctx.Err() == nil {
			t.trouble(t.j, "write the ledger", err)
		}
		if errors.Is(err, joblock.ErrInvalid) && t.j.Most() > 1 { // no lane can be used
			return t.clock.now().Add(policy.Unreadable), false
		}
		return soon(t.clock.now().Add(policy.Settling)), false
	}
	switch {
	case alone && t.j.Most() > 1: // the other ticks are for lanes
		return soon(t.clock.now()), true
	case len(policy.Others(l, t.table.mine(t.j))) > 0: // of a node that has begun since this node has read the ledger: no node stands by
		return soon(t.clock.now().Add(policy.Settling)), true
	}
	return timeOf(policy.Next(t.specs.inForce(t.j, l), l, t.clock.now())), true
}

// work is the part of run under the job's lock. alone is true if an execution has run in lane 0.
func (t *term) work(ctx context.Context, dead []int) (alone bool, err error) {
	for ctx.Err() == nil && !t.table.isGone(t.j) {
		own, again, err := t.begin(ctx, dead)
		switch {
		case err != nil, own == nil && !again:
			return alone, err
		case own != nil:
			alone = true
			if err := own.run(ctx); err != nil {
				return alone, err
			}
			if l := t.book.l; len(l.Due) == 0 && !l.Backfilling() || t.j.Most() > 1 {
				return alone, nil
			}
			t.reread(ctx) // the job may have been paused
		}
		dead = nil
	}
	return alone, nil
}

// begin brings the ledger up to date, begins what may begin, and writes the ledger. own is the execution that has begun
// in lane 0; executions in other lanes go to t.begun. again is true if begin has paused the job because it has failed
// too often: the caller then calls begin again, because a trigger may begin during a pause. On error nothing has begun.
func (t *term) begin(ctx context.Context, dead []int) (own *execution, again bool, err error) {
	j, l := t.j, t.book.l
	m, err := t.specs.moment(j, l)
	if err != nil {
		return nil, false, err
	}
	if l.Spec == "" { // a new job, or one that was forgotten
		t.presence.enlistNew(ctx, j, l)
	}
	here := t.table.here(j)
	runs, err := t.runs(ctx, l, here, dead)
	if err != nil {
		return nil, false, err
	}
	plan := policy.Decide(&j.Job, l, m, policy.Sight{Here: here, Runs: runs, Dead: dead})
	if plan.Do == policy.Wait {
		return nil, false, nil
	}
	b := beginning{changed: plan.Changed, news: plan.News}
	for _, lane := range plan.TakeOver {
		if !l.MayTakeOver(&j.Job, lane, runs+len(b.begun)) || !t.ensureSlot(len(b.begun)) {
			continue
		}
		seat, err := t.takeSeat(ctx, lane)
		if err != nil {
			return nil, false, err
		}
		if seat != nil { // else another node takes the execution over
			x, lost := l.TakeOver(&j.Job, m, lane, seat.Fence())
			b.add(x, lost)
		}
	}
	// A loss may pause the job: then nothing begins before the pause is written.
	failing := slices.ContainsFunc(b.news, isLoss) && j.pauseAfter > 0 && l.Streak >= j.pauseAfter
	begins := func() bool {
		return !failing && !b.alone() && policy.Begins(&j.Job, l, m, here+len(b.begun))
	}
	lane, last := 0, 0
	if j.Most() > 1 {
		lane, last = 1, j.Most()+laneTries
	}
	var unusable error
	for ; begins() && lane <= last && t.ensureSlot(len(b.begun)); lane++ {
		if l.Lane(lane) != nil {
			continue
		}
		seat, err := t.takeSeat(ctx, lane)
		switch {
		case errors.Is(err, joblock.ErrInvalid): // the value at the lane's key is no lock
			unusable = err
		case err != nil:
			return nil, false, err
		case seat != nil:
			x, news := l.Begin(&j.Job, m, lane, seat.Fence())
			b.add(x, news)
		}
	}
	if len(b.begun) > 0 || !begins() {
		unusable = nil
	}
	if !b.changed {
		return nil, false, unusable
	}
	// The end of Run does not cancel this write: a cancelled write may have reached the store, and another node would
	// take over an execution that did not begin.
	if err := t.book.change(ctx, func(*ledger.Ledger) (bool, []ledger.News) { return true, b.news }); err != nil {
		return nil, false, err
	}
	t.book.report(ctx)
	for _, x := range b.begun {
		e := &execution{claims: t.claims, j: j, x: x, ticks: t.specs.inForce(j, l).Spec, last: l.LastTick()}
		if x.Lane == 0 {
			e.lock, e.book, own = t.book.lock, t.book, e
			continue
		}
		e.lock = t.seats[x.Lane]
		delete(t.seats, x.Lane)
		t.begun = append(t.begun, e)
	}
	if failing {
		return own, true, t.book.pauseFailing(ctx, errBrokenOff)
	}
	return own, false, unusable
}

// beginning is what begin has done to a ledger and not written.
type beginning struct {
	changed bool
	news    []ledger.News
	begun   []ledger.Execution
}

// add adds a change. The execution x is nil if none has begun.
func (b *beginning) add(x *ledger.Execution, news []ledger.News) {
	b.changed, b.news = true, append(b.news, news...)
	if x != nil {
		b.begun = append(b.begun, *x)
	}
}

// alone reports whether an execution has begun in lane 0.
func (b *beginning) alone() bool {
	return slices.ContainsFunc(b.begun, func(x ledger.Execution) bool { return x.Lane == 0 })
}

func isLoss(n ledger.News) bool { return n.Kind == ledger.NewsLost }

// ensureSlot reports whether this node has a slot for one more execution than begun. It takes one if necessary.
func (t *term) ensureSlot(begun int) bool {
	if begun < t.slots {
		return true
	}
	if !t.takeSlot() {
		return false
	}
	t.slots++
	return true
}

// takeSeat returns the lock of a lane, which it takes unless this node has it. The lock is nil if another node has it.
func (t *term) takeSeat(ctx context.Context, lane int) (*joblock.Lock, error) {
	if lane == 0 {
		return t.book.lock, nil
	}
	if lock := t.seats[lane]; lock != nil {
		return lock, nil
	}
	lock, err := t.recs.Try(ctx, t.j.name, lane)
	if errors.Is(err, joblock.ErrHeld) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t.table.setLane(t.j, lane, true)
	if t.seats == nil {
		t.seats = make(map[int]*joblock.Lock)
	}
	t.seats[lane] = lock
	return lock, nil
}

// runs returns how many executions run. It counts the executions of other nodes only if a takeover depends on them,
// because they may leave no room for it.
func (t *term) runs(ctx context.Context, l *ledger.Ledger, here int, dead []int) (n int, err error) {
	if len(dead) == 0 || len(l.Running) <= t.j.Most() {
		return here, nil
	}
	locks, err := t.recs.ReadLanes(ctx, t.j.name, policy.Others(l, nil))
	for _, k := range locks {
		if k.Executes(l.Lane(k.Lane)) {
			n++
		}
	}
	return max(n, here), err
}

// end frees what was taken and not used. The caller may have released the job's lock.
func (t *term) end() {
	for lane, lock := range t.seats {
		t.leave(t.j, lane, lock)
	}
	for range t.slots {
		t.freeSlot()
	}
}

// leave releases the lock of a lane.
func (c *claims) leave(j *job, lane int, lock *joblock.Lock) {
	c.recs.Release(context.Background(), lock)
	c.table.setLane(j, lane, false)
}
