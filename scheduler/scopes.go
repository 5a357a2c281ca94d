package scheduler

import (
	"context"
	"maps"
	"slices"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// Scopes returns the scopes that any node has had in the last year, sorted: each is a Config.Scope of some Scheduler
// whose Run has run with the same store and prefix. Scopes reads one record. The jobs of a scope may all be forgotten. Errors:
// joblock.ErrInvalid for a nil Locker, joblock.ErrUnavailable, joblock.ErrClosed, the cause of ctx, and an error without a
// sentinel if the record cannot be decoded.
func Scopes(ctx context.Context, locks *joblock.Locker) ([]string, error) {
	views, err := memo.Read(ctx, locks, keyspace.CronScopes)
	if err != nil {
		return nil, err
	}
	list, err := roster.DecodeNames(views[0].Memo)
	return slices.Sorted(maps.Keys(list.Jobs)), err
}

// enlistScope puts the scope onto the page of scopes, unless the page has the scope.
func (s *Scheduler) enlistScope(ctx context.Context) error {
	_, err := s.enlistOn(ctx, keyspace.CronScopes, []string{s.cfg.Scope}, dayOf(s.clock.now()))
	return err
}
