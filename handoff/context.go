package handoff

import (
	"context"
	"slices"
	"sync"

	"github.com/joblock/toolkit/joblock"
)

// held is what one Guard holds for one request.
type held struct {
	locks joblock.Locks
	outer *held // of the Guard around it, nil for the outermost

	mu   sync.Mutex // guards what follows
	kept []*joblock.Lock
	over bool // Keep fails from now on: MaxHold is up, or the handler has returned
}

type (
	heldKey  struct{}
	guardKey struct{} // of the innermost *Guard that serves the request
)

func heldFrom(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// Keep lets the handler keep lock: the Guard or Middleware does not release it after the response, and Claim.MaxHold no
// longer counts for it. The caller must release it, through this handle or from anywhere by joblock.Locker.Release with
// its token. Until then this process renews it, for at most the Locker's Config.MaxRenew. If the process crashes, the
// lock expires one TTL later. Without Config.MaxRenew a lock that is kept and forgotten is held as long as the process
// runs.
//
// Keep returns false, and changes nothing, if lock is not one of the request's, if Claim.MaxHold is up, or if the
// handler has returned. A lock that was handed over to a job need not be kept.
func Keep(ctx context.Context, lock *joblock.Lock) bool {
	for h := heldFrom(ctx); h != nil; h = h.outer {
		if lock != nil && slices.Contains(h.locks, lock) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if !h.over {
				h.kept = append(h.kept, lock)
			}
			return slices.Contains(h.kept, lock)
		}
	}
	return false
}

// end makes Keep fail from now on, and returns the locks that are not kept.
func (h *held) end() joblock.Locks {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return slices.DeleteFunc(slices.Clone(h.locks), func(lock *joblock.Lock) bool { return slices.Contains(h.kept, lock) })
}
