package joblock_test

import (
	"context"
	"testing"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// What was not made by its constructor is refused, and does not panic.
func TestZeroValuesAreRefused(t *testing.T) {
	ctx := t.Context()
	for name, store := range map[string]driver.Store{
		"nil":         nil,
		"nil pointer": (*failingClose)(nil),
	} {
		locks, err := joblock.New(store, nil)
		wantErr(t, err, joblock.ErrInvalid)
		if locks != nil {
			t.Errorf("%s: got a Locker", name)
		}
	}

	for _, l := range []*joblock.Locker{nil, {}} {
		_, tryErr := l.TryAcquire(ctx, "key")
		_, waitErr := l.Acquire(ctx, "key")
		_, allErr := l.AcquireAll(ctx, []string{"key"})
		_, resumeErr := l.Resume(ctx, joblock.Token{})
		_, statusErr := l.Status(ctx, "key")
		_, flightErr := singleflight.Do(ctx, l, "key", joblock.DefaultTTL, func(context.Context) (int, error) { return 0, nil })
		var listErr error
		for _, listErr = range l.List(ctx, joblock.ListOptions{}) {
		}
		for what, err := range map[string]error{
			"TryAcquire": tryErr, "Acquire": waitErr, "AcquireAll": allErr, "Resume": resumeErr, "Status": statusErr,
			"singleflight.Do": flightErr, "List": listErr, "Close": l.Close(ctx),
			"Do":           l.Do(ctx, "key", func(context.Context) error { return nil }),
			"Release":      releaseOf(ctx, l, "key", "owner"),
			"ForceRelease": l.ForceRelease(ctx, "key"),
		} {
			if joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrInvalid) {
				t.Errorf("%s of %v Locker: %v, want ErrInvalid", what, l, err)
			}
		}
		if (*core.Locker)(l).Settings().Holder != "" {
			t.Error("a Locker that is none has a label")
		}
		if (*core.Locker)(l).Owns(&core.Lock{}) || (*core.Locker)(l).Owns(nil) {
			t.Error("a Locker that is none owns a lock")
		}
	}

	for _, k := range []*joblock.Lock{nil, {}} {
		_, parkErr := k.Park(ctx)
		_, textErr := k.MarshalText()
		_, binErr := k.MarshalBinary()
		for what, err := range map[string]error{
			"Err": k.Err(), "Renew": k.Renew(ctx), "memo.Write": memo.Write(ctx, k, nil), "Release": k.Release(ctx),
			"Park": parkErr, "Reclaim": k.Reclaim(ctx), "MarshalText": textErr, "MarshalBinary": binErr,
		} {
			if joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", what, err)
			}
		}
		lctx, stop := k.Context(ctx)
		wantErr(t, context.Cause(lctx), joblock.ErrInvalid)
		stop()
		<-k.Done()
		k.StopRenewing()
		if k.Key() != "" || k.Owner() != "" || k.Fence() != 0 || k.TTL() != 0 || memo.Of(k) != nil || !k.Token().IsZero() ||
			k.Recovered() || k.Prior() != driver.EndedNone || !k.ExpiresAt().IsZero() || k.String() == "" {
			t.Error("a lock that is none has something to say")
		}
	}
}
