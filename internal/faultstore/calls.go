package faultstore

import (
	"context"

	"github.com/joblock/toolkit/joblock/driver"
)

// The methods of driver.Store. Each call obeys the rule in force for the call's name.

func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return do(ctx, s, Acquire, 1, func(ctx context.Context) (driver.Reply, error) { return s.inner.Acquire(ctx, req) })
}

func (s *Store) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	return do(ctx, s, Take, len(reqs), func(ctx context.Context) ([]driver.Reply, error) { return s.inner.Take(ctx, reqs) })
}

func (s *Store) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	return do(ctx, s, Resume, len(reqs), func(ctx context.Context) ([]driver.Reply, error) { return s.inner.Resume(ctx, reqs) })
}

func (s *Store) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	return do(ctx, s, Park, len(reqs), func(ctx context.Context) ([]driver.Reply, error) { return s.inner.Park(ctx, reqs) })
}

func (s *Store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return do(ctx, s, Renew, len(reqs), func(ctx context.Context) ([]driver.Reply, error) { return s.inner.Renew(ctx, reqs) })
}

func (s *Store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return do(ctx, s, Release, len(reqs), func(ctx context.Context) ([]driver.Reply, error) { return s.inner.Release(ctx, reqs) })
}

func (s *Store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	return do(ctx, s, Reserve, len(reqs), func(ctx context.Context) ([]driver.Reply, error) { return s.inner.Reserve(ctx, reqs) })
}

// Parts obeys no rule, because Parts of a Store sends nothing.
func (s *Store) Parts() int { return s.inner.Parts() }

func (s *Store) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	return do(ctx, s, Due, 1, func(ctx context.Context) (driver.DueReply, error) { return s.inner.Due(ctx, req) })
}

func (s *Store) Settle(ctx context.Context, entries []driver.Settlement) error {
	_, err := do(ctx, s, Settle, len(entries), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.inner.Settle(ctx, entries)
	})
	return err
}

func (s *Store) Entries(ctx context.Context, req driver.EntriesRequest) (driver.EntriesPage, error) {
	return do(ctx, s, Entries, 1, func(ctx context.Context) (driver.EntriesPage, error) { return s.inner.Entries(ctx, req) })
}

func (s *Store) SealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	return do(ctx, s, SealKeys, 1, func(ctx context.Context) ([]driver.SealKey, error) { return s.inner.SealKeys(ctx, req) })
}

func (s *Store) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	return do(ctx, s, Inspect, len(req.Keys), func(ctx context.Context) ([]driver.Record, error) { return s.inner.Inspect(ctx, req) })
}

func (s *Store) Line(ctx context.Context, req driver.LineRequest) (driver.LinePage, error) {
	return do(ctx, s, Line, 1, func(ctx context.Context) (driver.LinePage, error) { return s.inner.Line(ctx, req) })
}

func (s *Store) Admit(ctx context.Context, reqs []driver.AdmitRequest) ([]driver.AdmitReply, error) {
	return do(ctx, s, Admit, len(reqs), func(ctx context.Context) ([]driver.AdmitReply, error) { return s.inner.Admit(ctx, reqs) })
}

// Subscribe counts as Watch, and its pushes as Forced, if inbox is driver.ForcedInbox. For all other inboxes Subscribe
// counts as Listen, and its pushes as Push.
func (s *Store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	call, pushes := Listen, Push
	if inbox == driver.ForcedInbox {
		call, pushes = Watch, Forced
	}
	return do(ctx, s, call, 1, func(ctx context.Context) (func(), error) {
		return s.inner.Subscribe(ctx, inbox, push(s, pushes, deliver))
	})
}

func (s *Store) Notify(ctx context.Context, key string) error {
	_, err := do(ctx, s, Notify, 1, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.inner.Notify(ctx, key) })
	return err
}

func (s *Store) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	return do(ctx, s, List, 1, func(ctx context.Context) (driver.ListPage, error) { return s.inner.List(ctx, req) })
}
