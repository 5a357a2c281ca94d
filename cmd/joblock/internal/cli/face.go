package cli

import (
	"context"
	"os"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// face is what the commands do with locks. It has two implementations: a session uses Redis, an api uses a lock server.
type face interface {
	// acquire takes a lock. If the answer is lost, the lock is released, or expires with its lease.
	acquire(ctx context.Context, want want) (held, error)

	// The calls by token. See package ops for what each promises.
	take(ctx context.Context, token joblock.Token, want want) (ops.Grant, error)
	findPermit(ctx context.Context, token joblock.Token, n int) (g ops.Grant, found bool, err error)
	giveUp(ctx context.Context, token joblock.Token, want want) error
	renew(ctx context.Context, token joblock.Token, ttl, reserve time.Duration) (time.Duration, error)
	park(ctx context.Context, token joblock.Token, job string, reserve time.Duration) (joblock.Token, error)
	resume(ctx context.Context, token joblock.Token, name string, want takeover) (ops.Grant, error)
	release(ctx context.Context, token joblock.Token, reason string) error

	// close waits for at most patience for calls under way.
	close(patience time.Duration)
}

// held is a lock that a command holds.
type held interface {
	Token() joblock.Token
	Fence() int64
	Prior() driver.Ended
	ExpiresAt() time.Time  // until then the lock can be relied on
	Done() <-chan struct{} // closed when the lock is lost
	Err() error            // why it is lost
	Release(ctx context.Context, opts ...joblock.LockReleaseOption) error
}

// want describes the lock that a command wants.
type want struct {
	key    string
	ttl    time.Duration
	limit  int // 0, or the number of permits
	wait   *time.Duration
	renews bool // whether the lock is renewed as long as this process lives
}

// takeover says how a command takes a parked lock over.
type takeover struct {
	job, holder  string
	ttl, reserve time.Duration
}

// bound returns the option that bounds the wait.
func (w *want) bound() []joblock.AcquireOption {
	if w.wait == nil {
		return nil
	}
	return []joblock.AcquireOption{joblock.MaxWait(*w.wait)}
}

// waitOf returns the longest wait, or nil for an unlimited one.
func waitOf(no bool, w waitFlag) *time.Duration {
	switch {
	case no:
		return new(time.Duration)
	case w.set:
		return &w.d
	}
	return nil
}

// locks opens the locks, in Redis or at a server, with the label of their holder.
func (s *server) locks(cfg joblock.Config) (face, error) {
	a, err := s.api(os.Getenv)
	if a != nil || err != nil {
		return a.with(cfg), err
	}
	session, err := s.open(os.Getenv, cfg)
	if err != nil {
		return nil, err
	}
	return session, nil
}

func (s *session) acquire(ctx context.Context, want want) (held, error) {
	opts := append(want.bound(), joblock.TTL(want.ttl))
	if !want.renews {
		opts = append(opts, joblock.NoRenew())
	}
	take := s.Locker.Acquire
	if want.limit > 0 {
		take = limit.New(s.Locker, want.limit).Acquire
	}
	lock, err := take(ctx, want.key, opts...)
	if err != nil {
		return nil, err // a nil *joblock.Lock would be a non-nil held
	}
	return lock, nil
}

func (s *session) take(ctx context.Context, token joblock.Token, want want) (ops.Grant, error) {
	if want.limit == 0 {
		return ops.Acquire(ctx, s.Locker, token, want.bound()...)
	}
	return ops.AcquirePermit(ctx, s.Locker, token, want.limit, want.bound()...)
}

func (s *session) findPermit(ctx context.Context, token joblock.Token, n int) (ops.Grant, bool, error) {
	return ops.FindPermit(ctx, s.Locker, token, n)
}

func (s *session) giveUp(ctx context.Context, token joblock.Token, want want) error {
	if want.limit > 0 {
		g, found, err := ops.FindPermit(ctx, s.Locker, token, want.limit)
		if !found {
			return err
		}
		token = g.Token
	}
	return ops.Release(ctx, s.Locker, token, givenUp)
}

// givenUp is the reason for releasing a lock whose acquire got no answer.
const givenUp = "the acquire was given up"

func (s *session) renew(ctx context.Context, token joblock.Token, ttl, reserve time.Duration) (time.Duration, error) {
	return ops.Renew(ctx, s.Locker, token, ttl, reserve)
}

func (s *session) park(ctx context.Context, token joblock.Token, job string, reserve time.Duration) (joblock.Token, error) {
	return ops.Park(ctx, s.Locker, token, job, reserve)
}

func (s *session) resume(ctx context.Context, token joblock.Token, name string, want takeover) (ops.Grant, error) {
	opts := []joblock.ResumeOption{joblock.Holder(want.holder), joblock.ForJob(want.job), joblock.Reserve(want.reserve)}
	if want.ttl != 0 {
		opts = append(opts, joblock.TTL(want.ttl))
	}
	return ops.Resume(ctx, s.Locker, token, name, opts...)
}

func (s *session) release(ctx context.Context, token joblock.Token, reason string) error {
	return ops.Release(ctx, s.Locker, token, reason)
}
