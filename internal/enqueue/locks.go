package enqueue

import (
	"context"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/limit"
)

// What this package uses of the engine of package joblock beyond its public calls.

type (
	// Call names an enqueue that may be repeated, even by another process; see Request.
	Call = core.Call

	place = core.Place // of a job that waits in line
	take  = core.Take  // of a key for a job
	taken = core.Taken // the result of a take
)

func ringOf(locks *joblock.Locker) *seal.Ring { return (*core.Locker)(locks).Ring() }

func checkOpen(locks *joblock.Locker, op string) error { return (*core.Locker)(locks).Check(op) }

// owns reports whether locks made lock.
func owns(locks *joblock.Locker, lock *joblock.Lock) bool {
	return (*core.Locker)(locks).Owns((*core.Lock)(lock))
}

func trace(ctx context.Context, locks *joblock.Locker, call event.Call) (context.Context, event.Span) {
	return (*core.Locker)(locks).Trace(ctx, call)
}

func traceHeaders(ctx context.Context, locks *joblock.Locker) map[string]string {
	return (*core.Locker)(locks).TraceHeaders(ctx)
}

// park parks all, each with the options of the same index. It returns a token or an error for each.
func park(ctx context.Context, locks *joblock.Locker, all core.Locks, opts []core.Park) ([]core.Token, []error) {
	return (*core.Locker)(locks).Park(ctx, all, func(i int) core.Park { return opts[i] })
}

// takeAll takes the key of each take if it is free, and otherwise a place in the key's line.
func takeAll(ctx context.Context, locks *joblock.Locker, takes []take) []taken {
	return (*core.Locker)(locks).Take(ctx, opEnqueue, takes)
}

// limitNow returns the value that an operator has set for the limit with this name, or code.
func limitNow(ctx context.Context, locks *joblock.Locker, name string, code int) int {
	return (*core.Locker)(locks).Controls().Limit(ctx, name, code, limit.Max)
}

// tokenOf returns the token of a take that has succeeded.
func tokenOf(t taken) joblock.Token { return joblock.Token(t.Token) }

// passOn gives each of slots that is free to the first job in line, and calls granted for each such job.
func passOn(ctx context.Context, locks *joblock.Locker, slots []string, granted func(slot, job string)) error {
	return (*core.Locker)(locks).PassOn(ctx, opEnqueue, slots, granted)
}

// onSlot returns the token of the owner of token for another slot of its key.
func onSlot(token joblock.Token, slot string) joblock.Token {
	return joblock.Token(core.Token(token).OfSlot(slot))
}

// forKey returns the token of the owner of token for key, without a fence.
func forKey(token joblock.Token, key string) (joblock.Token, error) {
	id := core.Token(token)
	return joblock.NewToken(key, id.Owner(), id.TTL())
}

func fenceOf(token joblock.Token) int64 { return core.Token(token).Fence() }
