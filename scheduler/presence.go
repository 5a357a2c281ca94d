package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/policy"
	"github.com/joblock/toolkit/scheduler/internal/records"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

const (
	presenceEvery = 5 * time.Minute // the pause between two checks of the node's records, while nothing changes
	presencePause = 5 * time.Second // the shortest pause
	leaveTime     = time.Second     // how long a node that is stopped tries to remove itself
)

// presence keeps up to date the records that show a node and its jobs to other processes. The schedule does not depend
// on these records.
type presence struct {
	*node
	changed chan struct{} // makes keep act

	mu        sync.Mutex        // guards the fields below
	nodeID    string            // of this node's record, from the start of Run on
	record    *joblock.Lock     // of this node's record; nil: this node has had none in this Run
	until     time.Time         // before this time, no decision in place of a node that is not up
	conflicts []roster.Conflict // what this node's record shows
	listed    map[string]int64  // the day on which this node last made sure that the job's name is on its page
	found     map[string]int64  // the day that the page had for the name of a job before this node wrote it again
	doubts    int               // how often names were removed from listed
}

// begin gives the node a new ID.
func (p *presence) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodeID = fmt.Sprintf("%016x", rand.Uint64())
}

// id returns the ID of this node's record.
func (p *presence) id() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodeID
}

// up reports whether other processes can see that this node is up.
func (p *presence) up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record != nil && p.record.Err() == nil
}

// quiet reports whether this node must not decide in place of a node that is not up.
func (p *presence) quiet(now time.Time) bool {
	if !p.up() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until)
}

// showConflicts sets what this node's record shows of specs that are not in force.
func (p *presence) showConflicts(list []roster.Conflict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(list, p.conflicts) {
		p.conflicts = list
		p.touch()
	}
}

// touch makes keep act soon.
func (p *presence) touch() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// keep keeps the records up to date until ctx ends. It retries during an outage of the store.
func (p *presence) keep(ctx context.Context) {
	var own *joblock.Lock // of this node's record
	defer func() { p.leave(ctx, own) }()
	for !p.clock.synced() {
		if sleep.For(ctx, policy.Spread) != nil {
			return
		}
	}
	start, trouble := p.clock.now(), once{}
	for {
		if own != nil && own.Err() != nil { // the store may have lost all data
			p.doubt()
			p.table.recheckAll()
		}
		err := errors.Join(p.recs.EnlistScope(ctx, records.Day(p.clock.now())), p.enlist(ctx))
		shown, notShown := p.show(ctx, own, start)
		own, err = shown, errors.Join(err, notShown)
		if trouble.isNew(err) && ctx.Err() == nil {
			p.cfg.Logger.Warn("scheduler: other processes do not see this node or some of its jobs", "scope", p.cfg.Scope, "err", err)
		}
		pause := presenceEvery
		if err != nil {
			pause = presencePause
		}
		if sleep.For(ctx, presencePause) != nil {
			return
		}
		var lost <-chan struct{} // nil: there is no record to lose
		if own != nil {
			lost = own.Done()
		}
		timer := time.NewTimer(pause - presencePause + jitter.N(policy.Spread))
		select {
		case <-ctx.Done():
		case <-p.changed:
		case <-lost:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// leave removes this node's record, whose lock is own. If that fails, the record ends with its lease.
func (p *presence) leave(ctx context.Context, own *joblock.Lock) {
	if own == nil {
		return
	}
	p.mu.Lock()
	p.record, p.until = nil, time.Time{}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	_ = own.Release(ctx)
}

// show writes this node's record, and puts the node into the list of nodes. own is the lock of the record, or nil. show
// returns the lock of the record that it has written.
func (p *presence) show(ctx context.Context, own *joblock.Lock, start time.Time) (*joblock.Lock, error) {
	n := roster.Node{Version: 1, Name: p.cfg.Node, Program: p.program, Build: build(), Start: start.UnixMilli()}
	n.SetJobs(p.table.names())
	p.mu.Lock()
	id := p.nodeID
	n.SetConflicts(p.conflicts)
	p.mu.Unlock()
	own, err := p.recs.WriteNode(ctx, own, id, &n)
	if errors.Is(err, joblock.ErrHeld) { // by this node, which could not renew in time
		p.begin()
	}
	if err != nil {
		return own, err
	}
	p.shown(own)
	return own, p.recs.ListNode(ctx, id)
}

// shown notes that this node's record is written. lock is the lock of the record.
func (p *presence) shown(lock *joblock.Lock) {
	p.mu.Lock()
	same := p.record == lock
	if p.record != nil && !same {
		// The store may have lost the records of other nodes as well. Within a TTL each of them has noticed that.
		p.until = p.clock.now().Add(p.recs.NodeTTL())
	}
	p.record = lock
	p.mu.Unlock()
	if same {
		return
	}
	p.table.do(func() {
		for _, j := range p.table.jobs {
			if !j.conflict.IsZero() {
				p.table.lookSoon(j) // see Moment.Unseen
			}
		}
	})
}

// enlist puts the names of this node's jobs onto their pages, unless they are there or this node has put them there
// recently.
func (p *presence) enlist(ctx context.Context) error {
	day := records.Day(p.clock.now())
	byPage := make(map[int][]string)
	names := p.table.names()
	p.mu.Lock()
	doubts := p.doubts
	for _, name := range names {
		if last, ok := p.listed[name]; !ok || day >= last+roster.Fresh {
			byPage[roster.Page(name)] = append(byPage[roster.Page(name)], name)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, names := range byPage {
		if _, err := p.recs.Enlist(ctx, names, day, p.find); err != nil {
			errs = append(errs, err)
			continue
		}
		p.mu.Lock()
		for _, name := range names {
			if p.doubts == doubts { // else the next call looks again
				p.listed[name] = day
			}
		}
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}

// find notes the day on which the name of a job was put onto its page before.
func (p *presence) find(name string, added int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found[name] = added
}

// doubt makes keep look again whether the names are on their pages: all names if none is given.
func (p *presence) doubt(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubts++
	if len(names) == 0 {
		clear(p.listed)
	}
	for _, name := range names {
		delete(p.listed, name)
	}
}

// enlistNew puts the name of a job onto its page, before the job gets its ledger. The caller has the job's lock. After
// a failure the job is executed anyway, and keep retries.
//
// If the name has been on the page for days, the ledger of the job is gone, unless admin has forgotten the job.
func (p *presence) enlistNew(ctx context.Context, j *job, l *ledger.Ledger) {
	day := records.Day(p.clock.now())
	before, err := p.recs.Enlist(ctx, []string{j.name}, day, p.find)
	p.mu.Lock()
	added, again := p.found[j.name] // keep may have written the name at this node's start
	delete(p.found, j.name)
	p.mu.Unlock()
	if last, ok := before[j.name]; ok && l.New() && (day > last+1 || again && day > added+1) {
		p.cfg.Logger.Warn("scheduler: the ledger of the job is gone; ticks from before the start of this node are lost", "job", j.name, "key", j.key)
	}
	if err != nil {
		p.cfg.Logger.Warn("scheduler: a new job is not in the list of jobs yet", "job", j.name, "err", err)
		p.doubt(j.name)
		p.touch()
	}
}
