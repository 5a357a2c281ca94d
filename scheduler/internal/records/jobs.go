package records

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// forgotten is how long the store remembers the latest tick of a job that Forget has removed: longer than a node with an
// older list of jobs may need to notice, so that no node executes that tick again.
const forgotten = time.Hour

// Scopes returns the names of the scopes that any node has had in the last year, sorted.
func Scopes(ctx context.Context, locks *joblock.Locker) ([]string, error) {
	views, err := memo.Read(ctx, locks, keyspace.CronScopes)
	if err != nil {
		return nil, err
	}
	list, err := roster.DecodeNames(views[0].Memo)
	return slices.Sorted(maps.Keys(list.Jobs)), err
}

// Jobs returns the names of all jobs of the scope, sorted.
func (s *Scope) Jobs(ctx context.Context) (names []string, err error) {
	keys := make([]string, roster.Pages)
	for page := range keys {
		keys[page] = keyspace.CronNames(s.part, page)
	}
	views, err := memo.Read(ctx, s.Locks, keys...)
	if err != nil {
		return nil, err
	}
	for _, v := range views {
		page, err := roster.DecodeNames(v.Memo)
		if err != nil {
			return nil, err
		}
		names = slices.AppendSeq(names, maps.Keys(page.Jobs))
	}
	slices.Sort(names)
	return names, nil
}

// EnlistScope adds the scope to the page of scopes, unless it is there.
func (s *Scope) EnlistScope(ctx context.Context, day int64) error {
	_, err := s.enlist(ctx, keyspace.CronScopes, []string{s.Name}, day, func(string, int64) {})
	return err
}

// Enlist adds names of jobs, all of one page, to that page, unless they are there. before has the days on which the
// names were added earlier. Before a name is added again, Enlist calls again with that day.
func (s *Scope) Enlist(ctx context.Context, names []string, day int64, again func(name string, added int64)) (before map[string]int64, err error) {
	return s.enlist(ctx, keyspace.CronNames(s.part, roster.Page(names[0])), names, day, again)
}

func (s *Scope) enlist(ctx context.Context, key string, names []string, day int64, again func(string, int64)) (map[string]int64, error) {
	missing := func(text []byte) (on roster.Names, missing []string, err error) {
		on, err = roster.DecodeNames(text)
		return on, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return on.Has(name, day) }), err
	}
	views, err := memo.Read(ctx, s.Locks, key)
	if err != nil {
		return nil, err
	}
	was, left, err := missing(views[0].Memo)
	if err != nil || len(left) == 0 {
		return was.Jobs, err
	}
	for _, name := range left {
		if added, ok := was.Jobs[name]; ok {
			again(name, added)
		}
	}
	return was.Jobs, s.rewrite(ctx, key, func(text []byte, _ int64) ([]byte, error) {
		on, left, err := missing(text)
		if err != nil || len(left) == 0 {
			return nil, err
		}
		on.Add(left, day)
		return on.Encode(), nil
	})
}

// Forget removes the record of a job: the orders, the ledger, and then the name from the list of jobs. See package
// admin for errors.
func (s *Scope) Forget(ctx context.Context, op, name string) error {
	up, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(up, func(n Node) bool { return n.Has(name) }); i >= 0 {
		return &Error{fmt.Sprintf("%s %q: node %q has the job", op, name, up[i].Name), joblock.ErrHeld}
	}
	lock, err := s.Try(ctx, name, 0, joblock.Retain(forgotten))
	if errors.Is(err, joblock.ErrHeld) {
		return Busy(op, name)
	}
	if err != nil {
		return err
	}
	defer s.Release(ctx, lock)
	l, err := ledger.Decode(memo.Of(lock))
	if err != nil {
		l = new(ledger.Ledger) // an unreadable ledger is forgotten as well
	}
	found := err != nil || l.Spec != ""
	hasLedger := found
	if err := s.checkLanes(ctx, op, name, l); err != nil {
		return err
	}
	written, err := s.ChangeOrders(ctx, func(all *ledger.Orders, _ int64) (bool, error) {
		_, ok := all.Jobs[name]
		delete(all.Jobs, name)
		return ok, nil
	})
	if err != nil {
		return err
	}
	// The ledger is emptied after the orders: a remaining trigger or backfill would be new to an empty ledger.
	if hasLedger {
		if err := memo.Write(ctx, lock, l.Forgotten().Encode()); err != nil {
			return err
		}
	}
	found = found || written != nil
	err = s.rewrite(ctx, keyspace.CronNames(s.part, roster.Page(name)), func(text []byte, _ int64) ([]byte, error) {
		on, err := roster.DecodeNames(text)
		if _, ok := on.Jobs[name]; !ok || err != nil {
			return nil, err
		}
		found = true
		delete(on.Jobs, name)
		return on.Encode(), nil
	})
	if err == nil && !found {
		return NotFound(op, name)
	}
	return err
}

// checkLanes returns an error if an execution of the job runs in a lane.
func (s *Scope) checkLanes(ctx context.Context, op, name string, l *ledger.Ledger) error {
	var lanes []int
	for _, x := range l.Running {
		if x.Lane > 0 {
			lanes = append(lanes, x.Lane)
		}
	}
	if len(lanes) == 0 {
		return nil
	}
	locks, err := s.ReadLanes(ctx, name, lanes)
	for _, k := range locks {
		if !k.Free && !k.Foreign {
			return Busy(op, name)
		}
	}
	return err
}
