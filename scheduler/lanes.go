package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// laneTries is how many lanes beyond AtOnce a node tries. A lane without an execution may be locked for a moment: by the
// node whose execution has just ended, or by the node that has waited for that.
const laneTries = 3

// crowded is the pause before a node looks again at an execution that it must not take over yet, because as many run as AtOnce
// allows. The node that ends one of these looks at once.
const crowded = 5 * time.Second

// AtOnce executes up to n ticks of the job at the same time, on any nodes: 1 to 20. A tick that comes while n executions
// run is treated by the overlap policy. Triggers and starts count as well. A backfill still executes one tick at a time.
// Task refuses AtOnce, and so does OverlapCancel with an n above 1. The default is AtOnce(1).
//
// The functions run under locks of their own, not under the job's lock. With an n above 1, Execution.Node is cut to about
// 100 bytes while the execution runs.
func AtOnce(n int) Option { return func(o *options) { o.AtOnce = n } }

func (s *Scheduler) laneKey(j *job, lane int) string { return keyspace.CronLane(j.key, lane) }

// laneOptions returns the options of the lock of a lane. It has no memo.
func (s *Scheduler) laneOptions() []joblock.TryOption {
	return []joblock.TryOption{door.OwnKey[joblock.Option](), joblock.Holder(s.cfg.Node), joblock.MaxRenew(driver.MaxPeriod)}
}

// considerLanes is consider for a job whose lock is free and whose ticks are executed in lanes. If keep is true, the node takes
// the lock even if nothing is due.
func (s *Scheduler) considerLanes(work context.Context, j *job, l *ledger.Ledger, m ledger.Moment, keep bool) {
	others := s.lanesElsewhere(j, l)
	changed, _ := l.Update(&j.Job, m, l.Full(&j.Job)) // on a copy: only to see whether anything is due
	due := keep || changed || s.hasRoom(j) && (l.BrokenOff() || l.Ready(&j.Job, m))
	if !due && len(others) == 0 {
		s.setTrouble(j, nil)
		s.recheck(j, s.nextCheck(j, l))
		return
	}
	s.start(j, func() time.Time { return s.tendLanes(work, j, l, others, due) })
}

// lanesElsewhere returns the lanes with an execution that this node neither runs nor waits for.
func (s *Scheduler) lanesElsewhere(j *job, l *ledger.Ledger) (lanes []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range l.Lanes {
		if !s.lanes[s.laneKey(j, x.Lane)] {
			lanes = append(lanes, x.Lane)
		}
	}
	return lanes
}

// hasRoom reports whether fewer functions of the job run on this node than AtOnce allows. A function that goes on after its
// lock is lost counts, although the ledger does not have it.
func (s *Scheduler) hasRoom(j *job) bool { return s.callsHere(j) < max(j.AtOnce, 1) }

// callsHere returns how many functions of the job run on this node, with those of the jobs that j has replaced.
func (s *Scheduler) callsHere(j *job) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.held {
		if other.name == j.name {
			n++
		}
	}
	return n
}

// runs reports whether x runs under the lock of its lane, of which v is the view. While a node that waited for the lock holds
// it, x was broken off.
func runs(x *ledger.Execution, v memo.View) bool {
	return x.State == ledger.Running && v.Locked() && v.Fence == x.Fence
}

// laneCalls returns how many executions run in lanes, at least those on this node. The caller holds the job's lock.
func (s *Scheduler) laneCalls(ctx context.Context, j *job, l *ledger.Ledger) (n int, err error) {
	here := s.callsHere(j)
	if len(l.Lanes) <= max(j.AtOnce, 1) {
		return here, nil // the others leave room, however many run
	}
	var keys []string
	for _, x := range l.Lanes {
		keys = append(keys, s.laneKey(j, x.Lane))
	}
	views, err := memo.Read(ctx, s.locks, keys...)
	if err != nil {
		return 0, err
	}
	for i, v := range views {
		if runs(&l.Lanes[i], v) {
			n++
		}
	}
	return max(n, here), nil
}

// tendLanes looks after the executions of other nodes, and begins what is due. The result is the time of the next read
// of the ledger.
func (s *Scheduler) tendLanes(ctx context.Context, j *job, l *ledger.Ledger, others []int, due bool) time.Time {
	at := s.nextCheck(j, l)
	var dead []int
	var foreign error
	settled := func() {
		if foreign == nil {
			s.setTrouble(j, nil)
			return
		}
		s.reportTrouble(j, "take an execution over", foreign)
	}
	if len(others) > 0 {
		var keys []string
		for _, lane := range others {
			keys = append(keys, s.laneKey(j, lane))
		}
		views, err := memo.Read(ctx, s.locks, keys...)
		if err != nil {
			if ctx.Err() == nil {
				s.reportTrouble(j, "read the locks of executions", err)
			}
			return soon(s.clock.now().Add(unanswered))
		}
		// The next look at all lanes is at the end of the lease that ends last: for most lanes a node stands by. A lane
		// whose execution has just begun is looked at before, because no node stands by.
		var look, young time.Duration
		calls := len(l.Lanes) - len(others)
		for i, v := range views {
			if runs(l.Lane(others[i]), v) {
				calls++
			}
			look = max(look, v.Reserved)
			switch {
			case v.State == joblock.StateForeign: // the execution waits until somebody has removed the value
				foreign = fmt.Errorf("scheduler: the value at the key %s of an execution is no lock", keys[i])
				look = max(look, unreadable)
			case v.State == joblock.StateFree:
				dead = append(dead, others[i])
			case v.Age < settling:
				young = max(young, settling-v.Age)
			case v.Waiters == 0:
				s.standByLane(ctx, j, others[i])
			}
		}
		calls = max(calls, s.callsHere(j))
		dead = slices.DeleteFunc(dead, func(lane int) bool {
			if l.MayTakeOver(&j.Job, lane, calls) {
				return false
			}
			look = max(look, crowded)
			return true
		})
		if next := within(4*spread, s.clock.now().Add(cmp.Or(young, look))); next.Before(at) {
			at = next
		}
	}
	if !due && len(dead) == 0 {
		settled()
		return at
	}
	select {
	case s.slots <- struct{}{}:
	default: // this node is full; another may begin what is due
		return soon(s.clock.now().Add(settling))
	}
	next, err := s.claimLanes(ctx, j, dead)
	switch {
	case errors.Is(err, joblock.ErrHeld): // another node changes the ledger
		return within(4*spread, s.clock.now())
	case err != nil:
		if ctx.Err() == nil {
			s.reportTrouble(j, "begin executions", err)
		}
		if errors.Is(err, joblock.ErrInvalid) { // no lane can be used
			return s.clock.now().Add(unreadable)
		}
		return soon(s.clock.now().Add(settling))
	}
	settled()
	if next.Before(at) {
		at = next
	}
	return at
}

// begunLane is an execution that has begun in a lane, and the lock of the lane.
type begunLane struct {
	lock *joblock.Lock
	x    ledger.Execution
}

// claimLanes takes the job's lock for a moment, takes over the executions of the dead lanes, and begins what is due. The
// caller has taken a slot: claimLanes passes it on or frees it. The result is the time of the next read of the ledger.
func (s *Scheduler) claimLanes(ctx context.Context, j *job, dead []int) (time.Time, error) {
	slots := 1
	defer func() {
		for range slots {
			<-s.slots
		}
	}()
	lock, err := s.locks.TryAcquire(ctx, j.key, s.lockOptions()...)
	if err != nil {
		return time.Time{}, err
	}
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		s.release(ctx, lock)
		return time.Time{}, err
	}
	if l.BrokenOff() { // by a node without AtOnce, during a deploy
		return s.runTerm(ctx, j, lock), nil
	}
	begun, err := s.beginLanes(ctx, j, lock, l, dead, &slots)
	s.release(ctx, lock)
	if err != nil {
		return time.Time{}, err
	}
	for _, b := range begun {
		slots--
		s.started.Go(func() {
			defer func() { <-s.slots }()
			s.runLane(ctx, j, b.lock, l, b.x)
		})
	}
	if len(s.lanesElsewhere(j, l)) > 0 { // perhaps of a node that has begun since the caller has read the ledger: nobody stands by yet
		return soon(s.clock.now().Add(settling)), nil
	}
	return s.nextCheck(j, l), nil
}

// beginLanes changes the ledger under the job's lock and writes it. The parameter slots is how many slots this node has
// taken for the job; beginLanes takes more. On an error nothing has begun, and all lanes are free.
func (s *Scheduler) beginLanes(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger, dead []int, slots *int) (begun []begunLane, err error) {
	if ctx.Err() != nil || s.isGone(j) {
		return nil, context.Cause(ctx)
	}
	m, err := s.momentOf(j, l)
	if err != nil {
		return nil, err
	}
	if l.Spec == "" { // a new job, or one that was forgotten
		s.enlistNew(ctx, j, l)
	}
	defer func() {
		if err != nil {
			for _, b := range begun {
				s.freeLane(ctx, b.lock)
			}
			begun = nil
		}
	}()
	calls := s.callsHere(j)
	if len(dead) > 0 {
		if calls, err = s.laneCalls(ctx, j, l); err != nil {
			return nil, err
		}
		dead = slices.DeleteFunc(dead, func(lane int) bool { return !l.MayTakeOver(&j.Job, lane, calls) })
	}
	// A tick that comes while executions are broken off has not met n running executions.
	changed, news := l.Update(&j.Job, m, l.Full(&j.Job) && (len(dead) == 0 || j.Overlap.Waits()))
	room := func() bool {
		if len(begun) < *slots {
			return true
		}
		select {
		case s.slots <- struct{}{}:
			*slots++
			return true
		default:
			return false
		}
	}
	for _, lane := range dead {
		if !l.MayTakeOver(&j.Job, lane, calls+len(begun)) || !room() {
			continue
		}
		laneLock, err := s.takeLane(ctx, j, lane)
		if err != nil {
			return begun, err
		}
		if laneLock == nil {
			continue // another node takes the execution over
		}
		x, lost := l.TakeOverLane(&j.Job, m, lane, laneLock.Fence())
		changed, news = true, append(news, lost...)
		if x == nil {
			s.freeLane(ctx, laneLock)
			continue
		}
		begun = append(begun, begunLane{laneLock, *x})
	}
	// A loss may pause the job: then nothing else begins.
	failing := slices.ContainsFunc(news, isLoss) && j.pauseAfter > 0 && l.Streak >= j.pauseAfter
	var unusable error
	lane, last := 1, max(j.AtOnce, 1)+laneTries
	begins := func() bool {
		return !failing && l.Ready(&j.Job, m) && s.callsHere(j)+len(begun) < max(j.AtOnce, 1)
	}
	for ; begins() && lane <= last && room(); lane++ {
		if l.Lane(lane) != nil {
			continue
		}
		laneLock, err := s.takeLane(ctx, j, lane)
		if errors.Is(err, joblock.ErrInvalid) { // the value at the lane's key is no lock
			unusable = err
			continue
		}
		if err != nil {
			return begun, err
		}
		if laneLock == nil {
			continue
		}
		x, more := l.BeginLane(&j.Job, m, lane, laneLock.Fence())
		changed, news = true, append(news, more...)
		if x == nil {
			s.freeLane(ctx, laneLock)
			continue
		}
		begun = append(begun, begunLane{laneLock, *x})
	}
	if len(begun) > 0 || !begins() {
		unusable = nil
	}
	if !changed {
		return nil, unusable
	}
	// The end of Run must not end the context of this write: see executeDue.
	if err := memo.Write(context.WithoutCancel(ctx), lock, l.Encode()); err != nil {
		return begun, err
	}
	s.reportNews(j, news)
	if slices.ContainsFunc(news, func(n ledger.News) bool { return n.Kind == ledger.NewsSpec }) {
		s.tellSpec(ctx, j)
	}
	if failing {
		if err := s.pauseFailing(ctx, j, lock, l, errBrokenOff); err != nil {
			s.reportTrouble(j, "begin the count of failures anew", err)
		}
	}
	return begun, unusable
}

// takeLane takes the lock of a lane. The lock is nil if it is held.
func (s *Scheduler) takeLane(ctx context.Context, j *job, lane int) (*joblock.Lock, error) {
	lock, err := s.locks.TryAcquire(ctx, s.laneKey(j, lane), s.laneOptions()...)
	if errors.Is(err, joblock.ErrHeld) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.lanes[lock.Key()] = true
	s.mu.Unlock()
	return lock, nil
}

// freeLane releases the lock of a lane.
func (s *Scheduler) freeLane(ctx context.Context, lock *joblock.Lock) {
	s.release(context.WithoutCancel(ctx), lock)
	s.mu.Lock()
	delete(s.lanes, lock.Key())
	s.mu.Unlock()
}

// runLane carries out an execution that has begun in a lane, writes the result into the ledger and frees the lane.
func (s *Scheduler) runLane(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger, x ledger.Execution) {
	if !s.admit(j, lock) { // Remove has returned since the write of the ledger
		_ = s.settleLane(ctx, j, lock, &x, ledger.NotBegun, 0, nil) // on an error the lane has no holder: the execution is taken over
		s.freeLane(ctx, lock)
		s.lookAgain(j)
		return
	}
	e := s.reportBegin(j, &x)
	begun := s.clock.local()
	state, attempts, err := s.callUnder(ctx, lock, j, callOf(s.inForce(j, l).Spec, l, &x), func(cause error) { s.overrunLane(ctx, j, &x, cause) })
	e.Late, e.Attempts, e.Took, e.Err = 0, attempts, s.clock.local().Sub(begun), err
	lost := s.settleLane(ctx, j, lock, &x, state, attempts, err)
	e.Kind = Kind(state)
	if lost != nil {
		e.Kind, e.Err = EventBroken, errors.Join(lost, err)
	}
	s.report(e)
	s.freeLane(ctx, lock)
	s.lookAgain(j)
}

// overrunLane reports that the function of the execution x ignores the end of its context, or with a nil cause that it has
// returned. The ledger gets that too, if it can be written at once.
func (s *Scheduler) overrunLane(ctx context.Context, j *job, x *ledger.Execution, cause error) {
	if cause != nil {
		s.reportOverrun(j, *x, cause)
	}
	err := s.changeLedger(ctx, j, func(lock *joblock.Lock, l *ledger.Ledger) error {
		if running := l.Lane(x.Lane); running == nil || running.Fence != x.Fence {
			return nil // another node has taken the execution over
		} else {
			running.SetOverrun(s.clock.now(), cause)
		}
		return memo.Write(context.WithoutCancel(ctx), lock, l.Encode())
	})
	if err != nil && ctx.Err() == nil {
		s.reportTrouble(j, "write the ledger during an execution", err)
	}
}

// settleLane writes the result of an execution in a lane. settleLane retries as long as the lane's lock lasts.
func (s *Scheduler) settleLane(ctx context.Context, j *job, lane *joblock.Lock, x *ledger.Execution, state ledger.State, attempts int, failure error) error {
	ctx, stop := lane.Context(context.WithoutCancel(ctx))
	defer stop()
	written := false // perhaps, by an attempt without an answer
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := s.changeLedger(ctx, j, func(lock *joblock.Lock, l *ledger.Ledger) error {
			if !l.EndLane(&j.Job, x.Lane, x.Fence, state, s.clock.now(), attempts, failure) {
				if written {
					return nil
				}
				return fmt.Errorf("scheduler: another node has taken the execution over: %w", joblock.ErrLost)
			}
			written = true
			if err := s.persist(ctx, j, lock, l); err != nil {
				return err
			}
			return s.pauseFailing(ctx, j, lock, l, failure)
		})
		switch {
		case err == nil:
			return nil
		case lane.Err() != nil, errors.Is(err, joblock.ErrClosed), errors.Is(err, joblock.ErrLost) && !written:
			return err
		}
		s.reportTrouble(j, "write the ledger after an execution", err)
		if sleep.For(ctx, pause) != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// changeLedger calls f with the job's lock and ledger.
func (s *Scheduler) changeLedger(ctx context.Context, j *job, f func(*joblock.Lock, *ledger.Ledger) error) error {
	lock, err := s.locks.Acquire(ctx, j.key, s.waitOptions()...)
	if err != nil {
		return err
	}
	defer s.release(context.WithoutCancel(ctx), lock)
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		return err
	}
	return f(lock, l)
}

// standByLane waits for the lock of a lane that another node executes, and takes over an execution that was broken off.
// If this node waits for enough locks, standByLane does nothing.
func (s *Scheduler) standByLane(ctx context.Context, j *job, lane int) {
	select {
	case s.standbys <- struct{}{}:
	default:
		return
	}
	key := s.laneKey(j, lane)
	s.mu.Lock()
	s.lanes[key] = true
	s.mu.Unlock()
	var opts []joblock.AcquireOption
	for _, opt := range s.laneOptions() {
		opts = append(opts, opt)
	}
	s.started.Go(func() {
		lock, err := s.locks.Acquire(ctx, key, opts...)
		<-s.standbys
		if err == nil {
			s.inheritLane(ctx, j, lane, lock)
			return
		}
		if ctx.Err() == nil {
			s.reportTrouble(j, "wait for the lock of an execution", err)
			_ = sleep.For(ctx, unanswered)
		}
		s.mu.Lock()
		delete(s.lanes, key)
		s.mu.Unlock()
		s.lookAgain(j) // to wait again: the next tick may be days away
	})
}

// inheritLane takes over the execution of a lane, whose lock this node has got, if the execution was broken off. Then
// inheritLane frees the lane.
func (s *Scheduler) inheritLane(ctx context.Context, j *job, lane int, lock *joblock.Lock) {
	var begun *ledger.Execution
	var after *ledger.Ledger
	took := false
	views, err := s.readJobs(ctx, []string{j.name})
	if err == nil {
		after, err = ledger.Decode(views[1].Memo)
	}
	if err == nil && after.Lane(lane) != nil && !s.isGone(j) { // usually the execution has ended well
		select {
		case s.slots <- struct{}{}:
			took = true
			err = s.changeLedger(ctx, j, func(jobLock *joblock.Lock, l *ledger.Ledger) error {
				m, err := s.momentOf(j, l)
				if err != nil || l.Lane(lane) == nil {
					return err
				}
				if calls, err := s.laneCalls(ctx, j, l); err != nil || !l.MayTakeOver(&j.Job, lane, calls) {
					return err
				}
				x, lost := l.TakeOverLane(&j.Job, m, lane, lock.Fence())
				if err := memo.Write(context.WithoutCancel(ctx), jobLock, l.Encode()); err != nil {
					return err
				}
				s.reportNews(j, lost)
				if x != nil {
					copied := *x
					begun, after = &copied, l
					return nil
				}
				return s.pauseFailing(ctx, j, jobLock, l, errBrokenOff)
			})
		default: // this node is full
		}
	}
	if err != nil && ctx.Err() == nil {
		s.reportTrouble(j, "take an execution over", err)
	}
	if begun != nil {
		s.runLane(ctx, j, lock, after, *begun)
	} else {
		s.freeLane(ctx, lock)
		s.lookAgain(j)
	}
	if took {
		<-s.slots
	}
}

// checkLanes returns an error if an execution of the job runs in a lane.
func (s *Scheduler) checkLanes(ctx context.Context, op, name string, l *ledger.Ledger) error {
	if len(l.Lanes) == 0 {
		return nil
	}
	var keys []string
	for _, x := range l.Lanes {
		keys = append(keys, keyspace.CronLane(s.keyOf(name), x.Lane))
	}
	views, err := memo.Read(ctx, s.locks, keys...)
	if err != nil {
		return err
	}
	for _, v := range views {
		if v.State != joblock.StateFree && v.State != joblock.StateForeign {
			return &ownError{fmt.Sprintf("%s %q: the job is being executed", op, name), joblock.ErrHeld}
		}
	}
	return nil
}

// lookAgain makes j due: an execution has ended, so another one may begin.
func (s *Scheduler) lookAgain(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.gone {
		j = s.jobs[j.name]
	}
	if j != nil {
		s.lookSoon(j)
		s.wake()
	}
}
