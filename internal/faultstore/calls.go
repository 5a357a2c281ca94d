package faultstore

import (
	"context"

	"github.com/joblock/toolkit/joblock"
)

// Acquire is the call of joblock.Store.
func (s *Store) Acquire(ctx context.Context, req joblock.AcquireRequest) (joblock.Reply, error) {
	return do(ctx, s, Acquire, 1, func(ctx context.Context) (joblock.Reply, error) { return s.inner.Acquire(ctx, req) })
}

// Resume is the call of joblock.Store.
func (s *Store) Resume(ctx context.Context, req joblock.ResumeRequest) (joblock.Reply, error) {
	return do(ctx, s, Resume, 1, func(ctx context.Context) (joblock.Reply, error) { return s.inner.Resume(ctx, req) })
}

// Park is the call of joblock.Store.
func (s *Store) Park(ctx context.Context, req joblock.ParkRequest) (joblock.Reply, error) {
	return do(ctx, s, Park, 1, func(ctx context.Context) (joblock.Reply, error) { return s.inner.Park(ctx, req) })
}

// Renew is the call of joblock.Store.
func (s *Store) Renew(ctx context.Context, reqs []joblock.RenewRequest) ([]joblock.Reply, error) {
	return do(ctx, s, Renew, len(reqs), func(ctx context.Context) ([]joblock.Reply, error) { return s.inner.Renew(ctx, reqs) })
}

// Release is the call of joblock.Store.
func (s *Store) Release(ctx context.Context, reqs []joblock.ReleaseRequest) ([]joblock.Reply, error) {
	return do(ctx, s, Release, len(reqs), func(ctx context.Context) ([]joblock.Reply, error) { return s.inner.Release(ctx, reqs) })
}

// Reserve is the call of joblock.Store.
func (s *Store) Reserve(ctx context.Context, reqs []joblock.ReserveRequest) ([]joblock.Reply, error) {
	return do(ctx, s, Reserve, len(reqs), func(ctx context.Context) ([]joblock.Reply, error) { return s.inner.Reserve(ctx, reqs) })
}

// Due is the call of joblock.Store.
func (s *Store) Due(ctx context.Context, req joblock.DueRequest) ([]joblock.JobLock, error) {
	return do(ctx, s, Due, 1, func(ctx context.Context) ([]joblock.JobLock, error) { return s.inner.Due(ctx, req) })
}

// Forget is the call of joblock.Store.
func (s *Store) Forget(ctx context.Context, entries []joblock.JobLock) error {
	_, err := do(ctx, s, Forget, len(entries), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.inner.Forget(ctx, entries)
	})
	return err
}

// SealKeys is the call of joblock.Store.
func (s *Store) SealKeys(ctx context.Context, req joblock.SealKeysRequest) ([]joblock.SealKey, error) {
	return do(ctx, s, SealKeys, 1, func(ctx context.Context) ([]joblock.SealKey, error) { return s.inner.SealKeys(ctx, req) })
}

// Inspect is the call of joblock.Store.
func (s *Store) Inspect(ctx context.Context, req joblock.InspectRequest) ([]joblock.Record, error) {
	return do(ctx, s, Inspect, len(req.Keys), func(ctx context.Context) ([]joblock.Record, error) { return s.inner.Inspect(ctx, req) })
}

// Listen implements joblock.Store. A rule for Push, of whatever mode, loses what is
// pushed to the listener.
func (s *Store) Listen(ctx context.Context, inbox string, deliver func(nonce string)) (func(), error) {
	return do(ctx, s, Listen, 1, func(ctx context.Context) (func(), error) {
		return s.inner.Listen(ctx, inbox, func(nonce string) {
			if _, lost := s.enter(Push, 1); !lost {
				deliver(nonce)
			}
		})
	})
}

// Watch is the call of joblock.Store.
func (s *Store) Watch(ctx context.Context, deliver func(joblock.Forced)) (func(), error) {
	return do(ctx, s, Watch, 1, func(ctx context.Context) (func(), error) { return s.inner.Watch(ctx, deliver) })
}

// List is the call of joblock.Store.
func (s *Store) List(ctx context.Context, req joblock.ListRequest) (joblock.ListPage, error) {
	return do(ctx, s, List, 1, func(ctx context.Context) (joblock.ListPage, error) { return s.inner.List(ctx, req) })
}
