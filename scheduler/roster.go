package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/inside"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

const (
	rosterEvery = 5 * time.Minute  // the pause between two checks of the node's records, while nothing changes
	rosterPause = 5 * time.Second  // the shortest pause
	nodeTTL     = 90 * time.Second // how long a node that has died is still shown
	leaveTime   = time.Second      // how long a node that is stopped tries to remove itself
)

// Node is a node that is up: Run is running there.
type Node struct {
	Name    string    `json:"name"`    // Config.Node
	Program string    `json:"program"` // the path of the main module
	Build   string    `json:"build"`   // the version of the main module or its revision; "" if the build recorded neither
	Started time.Time `json:"started"` // the begin of Run, by the store's clock
	Jobs    int       `json:"jobs"`    // how many jobs the node has
}

// Nodes returns the nodes of the scope that are up, sorted by name. A node that was stopped is gone at once, a node that
// has died after 90 s. Errors: joblock.ErrUnavailable, joblock.ErrClosed, the cause of ctx, and an error without a sentinel
// if a record cannot be decoded.
func (s *Scheduler) Nodes(ctx context.Context) ([]Node, error) {
	if err := s.check("nodes"); err != nil {
		return nil, err
	}
	up, err := s.readNodes(ctx)
	nodes := make([]Node, len(up))
	for i, n := range up {
		nodes[i] = Node{n.Name, n.Program, n.Build, time.UnixMilli(n.Start).UTC(), n.Count}
	}
	return nodes, err
}

// upNode is a node that is up.
type upNode struct {
	roster.Node
	id  string
	has func(job string) bool
}

func init() {
	inside.Represented = func(ctx context.Context, s any) ([]string, error) { return s.(*Scheduler).represented(ctx) }
	inside.TaskEnds = func(end func(context.Context, string) (inside.TaskEnd, error)) any {
		return Option(func(o *options) { o.taskEnd = end })
	}
	inside.Logger = func(s any) *slog.Logger { return s.(*Scheduler).cfg.Logger }
}

// represented is inside.Represented.
func (s *Scheduler) represented(ctx context.Context) ([]string, error) {
	up, err := s.readNodes(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	own := s.nodeID
	if s.record == nil {
		own = ""
	}
	s.mu.Unlock()
	return slices.DeleteFunc(s.names(), func(name string) bool {
		i := slices.IndexFunc(up, func(n upNode) bool { return n.has(name) })
		return own == "" || i >= 0 && up[i].id != own
	}), nil
}

// readNodes returns the nodes that are up, sorted by name and ID.
func (s *Scheduler) readNodes(ctx context.Context) ([]upNode, error) {
	views, err := memo.Read(ctx, s.locks, keyspace.CronNodes(s.scope))
	if err != nil {
		return nil, err
	}
	list, err := roster.DecodeNodes(views[0].Memo)
	if err != nil {
		return nil, err
	}
	var up []upNode
	for part := range slices.Chunk(list.IDs, batch) {
		keys := make([]string, len(part))
		for i, id := range part {
			keys[i] = keyspace.CronNode(s.scope, id)
		}
		if views, err = memo.Read(ctx, s.locks, keys...); err != nil {
			return nil, err
		}
		for i, v := range views {
			if v.State != joblock.StateHeld || len(v.Memo) == 0 {
				continue
			}
			n, err := roster.DecodeNode(v.Memo)
			if err != nil {
				return nil, err
			}
			up = append(up, upNode{n, part[i], n.Has()})
		}
	}
	slices.SortFunc(up, func(a, b upNode) int { return strings.Compare(a.Name+"\n"+a.id, b.Name+"\n"+b.id) })
	return up, nil
}

// keepRoster keeps the records up to date that show this node and its jobs to others, until ctx ends. The schedule does
// not depend on these records. During an outage of the store keepRoster tries again.
func (s *Scheduler) keepRoster(ctx context.Context) {
	var own *joblock.Lock // of this node's record
	defer func() {
		if own == nil {
			return
		}
		s.mu.Lock()
		s.record, s.quiet = nil, time.Time{}
		s.mu.Unlock()
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		_ = own.Release(leave) // the record ends with its lease
	}()
	for !s.clock.synced() {
		if sleep.For(ctx, spread) != nil {
			return
		}
	}
	start, trouble := s.clock.now(), ""
	for {
		if own != nil && own.Err() != nil {
			s.relist() // the store may have lost all that it had
		}
		err := errors.Join(s.enlistScope(ctx), s.enlist(ctx, s.names()))
		shown, notShown := s.showNode(ctx, own, start)
		own, err = shown, errors.Join(err, notShown)
		pause := rosterEvery
		if text := fmt.Sprint(err); err != nil {
			if pause = rosterPause; text != trouble && ctx.Err() == nil {
				s.cfg.Logger.Warn("scheduler: other processes do not see this node or some of its jobs", "scope", s.cfg.Scope, "err", err)
			}
			trouble = text
		} else {
			trouble = ""
		}
		if sleep.For(ctx, rosterPause) != nil {
			return
		}
		var lost <-chan struct{} // nil: there is no record to lose
		if own != nil {
			lost = own.Done()
		}
		timer := time.NewTimer(pause - rosterPause + dice.N(spread))
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-lost:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// relist makes this node look at all its jobs: whether their names are on their pages, and whether their ledgers are there.
func (s *Scheduler) relist() {
	s.doubt()
	s.recheckAll()
	s.wake()
}

// jobsChanged makes keepRoster act soon.
func (s *Scheduler) jobsChanged() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// newNodeID returns an ID for the record of a node.
func newNodeID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// showNode writes this node's record, and puts the node into the list of nodes if the list lacks the node. The lock in
// the parameter own is that of the record, or nil. The result is the lock from now on.
func (s *Scheduler) showNode(ctx context.Context, own *joblock.Lock, start time.Time) (*joblock.Lock, error) {
	n := roster.Node{Version: 1, Name: s.cfg.Node, Program: s.program, Build: build(), Start: start.UnixMilli()}
	n.SetJobs(s.names())
	s.mu.Lock()
	id, apart := s.nodeID, s.apart
	s.mu.Unlock()
	n.SetApart(apart)
	ttl := min(nodeTTL, door.Of(s.locks).Settings().MaxTTL)
	if own == nil || own.Err() != nil {
		lock, err := s.locks.TryAcquire(ctx, keyspace.CronNode(s.scope, id), door.OwnKey[joblock.Option](), joblock.Holder(s.cfg.Node),
			joblock.TTL(ttl), joblock.Retain(time.Minute), joblock.MaxRenew(driver.MaxPeriod))
		if errors.Is(err, joblock.ErrHeld) { // by this node, which could not renew in time
			s.mu.Lock()
			s.nodeID = newNodeID()
			s.mu.Unlock()
		}
		if err != nil {
			return nil, err
		}
		own = lock
	}
	if text := n.Encode(); !bytes.Equal(memo.Of(own), text) {
		if err := memo.Write(ctx, own, text); err != nil {
			return own, err
		}
	}
	s.setRecord(own, ttl)
	has := func(text []byte) (list roster.Nodes, listed bool, err error) {
		list, err = roster.DecodeNodes(text)
		return list, slices.Contains(list.IDs, id), err
	}
	views, err := memo.Read(ctx, s.locks, keyspace.CronNodes(s.scope))
	if err != nil {
		return own, err
	}
	if _, listed, err := has(views[0].Memo); listed || err != nil {
		return own, err
	}
	return own, s.rewrite(ctx, keyspace.CronNodes(s.scope), func(text []byte) ([]byte, error) {
		list, listed, err := has(text)
		if listed || err != nil {
			return nil, err
		}
		up, err := s.readNodes(ctx)
		list.IDs = []string{id}
		for _, other := range up {
			list.IDs = append(list.IDs, other.id)
		}
		return list.Encode(), err
	})
}

// enlist puts names of jobs onto their pages, unless the pages have these names or this node has put them there lately.
func (s *Scheduler) enlist(ctx context.Context, names []string) error {
	select {
	case s.enlisting <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.enlisting }()
	day := dayOf(s.clock.now())
	byPage := make(map[int][]string)
	s.listing.Lock()
	doubts := s.doubts
	for _, name := range names {
		if last, ok := s.listed[name]; !ok || day >= last+roster.Fresh {
			byPage[roster.Page(name)] = append(byPage[roster.Page(name)], name)
		}
	}
	s.listing.Unlock()
	var errs []error
	for page, names := range byPage {
		if _, err := s.enlistOn(ctx, keyspace.CronNames(s.scope, page), names, day); err != nil {
			errs = append(errs, err)
			continue
		}
		s.listing.Lock()
		for _, name := range names {
			if s.doubts == doubts { // else the next call looks again
				s.listed[name] = day
			}
		}
		s.listing.Unlock()
	}
	return errors.Join(errs...)
}

// doubt makes keepRoster look again whether the names are on their pages: all names if none is given.
func (s *Scheduler) doubt(names ...string) {
	s.listing.Lock()
	defer s.listing.Unlock()
	s.doubts++
	if len(names) == 0 {
		clear(s.listed)
	}
	for _, name := range names {
		delete(s.listed, name)
	}
}

// enlistNew puts the name of a job onto its page, before the job gets its ledger. The caller has the job's lock. After a
// failure the job is executed all the same, and keepRoster tries again.
//
// A name that has been on the page for days is that of a job whose ledger is gone, unless Forget has emptied the ledger.
func (s *Scheduler) enlistNew(ctx context.Context, j *job, l *ledger.Ledger) {
	day := dayOf(s.clock.now())
	was, err := s.enlistOn(ctx, keyspace.CronNames(s.scope, roster.Page(j.name)), []string{j.name}, day)
	s.listing.Lock()
	added, again := s.found[j.name] // keepRoster may have written the name at this node's start
	delete(s.found, j.name)
	s.listing.Unlock()
	if last, ok := was.Jobs[j.name]; ok && l.New() && (day > last+1 || again && day > added+1) {
		s.cfg.Logger.Warn("scheduler: the ledger of the job is gone; ticks from before the start of this node are lost", "job", j.name, "key", j.key)
	}
	if err != nil {
		s.cfg.Logger.Warn("scheduler: a new job is not in the list of jobs yet", "job", j.name, "err", err)
		s.doubt(j.name)
		s.jobsChanged()
	}
}

// enlistOn puts names onto the page with this key, unless the page has them. The result is the page as it was before.
func (s *Scheduler) enlistOn(ctx context.Context, key string, names []string, day int64) (was roster.Names, err error) {
	missing := func(text []byte) (on roster.Names, missing []string, err error) {
		on, err = roster.DecodeNames(text)
		return on, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return on.Has(name, day) }), err
	}
	views, err := memo.Read(ctx, s.locks, key)
	if err != nil {
		return was, err
	}
	was, left, err := missing(views[0].Memo)
	if err != nil || len(left) == 0 {
		return was, err
	}
	s.listing.Lock()
	for _, name := range left {
		if added, ok := was.Jobs[name]; ok {
			s.found[name] = added
		}
	}
	s.listing.Unlock()
	return was, s.rewrite(ctx, key, func(text []byte) ([]byte, error) {
		on, left, err := missing(text)
		if err != nil || len(left) == 0 {
			return nil, err
		}
		on.Add(left, day)
		return on.Encode(), nil
	})
}

// rewrite replaces the memo of one of the scope's records under the record's lock. If change returns nil, the memo stays.
func (s *Scheduler) rewrite(ctx context.Context, key string, change func(text []byte) ([]byte, error)) error {
	lock, err := s.locks.Acquire(ctx, key, s.waitOptions()...)
	if err != nil {
		return err
	}
	defer s.release(ctx, lock)
	text, err := change(memo.Of(lock))
	if err != nil || text == nil {
		return err
	}
	return memo.Write(ctx, lock, text)
}

// readNames returns the names of all jobs of the scope, sorted.
func (s *Scheduler) readNames(ctx context.Context) (names []string, err error) {
	keys := make([]string, roster.Pages)
	for page := range keys {
		keys[page] = keyspace.CronNames(s.scope, page)
	}
	views, err := memo.Read(ctx, s.locks, keys...)
	if err != nil {
		return nil, err
	}
	for _, v := range views {
		page, err := roster.DecodeNames(v.Memo)
		if err != nil {
			return nil, err
		}
		for name := range page.Jobs {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// dayOf returns the number of days since 1970.
func dayOf(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }
