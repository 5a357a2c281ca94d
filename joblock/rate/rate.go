// Package rate limits how often something starts in the whole cluster: for each key, at most n times in any period, by
// the store's clock.
//
//	search := rate.Limit{Key: joblock.Key("search", tenant), N: 100, Per: time.Minute}
//	if err := rate.Allow(ctx, locks, search); err != nil { … } // 429: errors.Is(err, joblock.ErrHeld)
//	if err := rate.Wait(ctx, locks, search); err != nil { … }  // waits for its turn
//
// For jobs use worker.Worker.RateLimit instead of Wait: a job that waits there occupies no worker. Jobs and calls with
// the same key share one rate and one line.
//
// # What is promised
//
// The store admits at most N starts in any span of Per. The window slides, so there is no boundary around which twice
// as many could start. The opening of a start is the time from which the rate allows it. While work waits, there are at
// least 0.95 N starts in a span of Per, if each start begins within a fiftieth of Per after its opening.
//
//	when a start counts         A start counts when the store admits it, just before it begins. The store counts over Per plus
//	                            a margin, so a start may begin up to the margin after its admission. The margin is a 50th of
//	                            Per, at most a second.
//	a late answer               If the answer comes more than the margin after the request, the start is requested again.
//	                            After three such answers in a row it begins anyway.
//	a late start                If a start begins more than the margin after its admission, as on an overloaded machine, a
//	                            span of Per that it falls in may have more than N starts.
//	a process that dies         A process that dies between the admission and the start has used up one start.
//	a store that loses data     The store forgets the starts: up to N more may begin.
//	no answer from the store    Nothing starts: the error is joblock.ErrUnavailable.
//	callers that disagree       Each start is judged by its own caller's N and Per, over the starts of all callers.
//
// Waiting jobs and calls are served in the order in which they came. A waiter that does not respond when its turn comes
// keeps its opening from the others for five seconds.
//
// # What it costs
//
// A call costs one command for each limit, and one more each time it has to wait. A key takes about 100 bytes for each
// start of the last Per, up to N or Burst, and for each waiter. A key that is not used expires.
package rate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/rates"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// Limit allows N starts in any span of Per, for one key. All state is in the store: Limits with the same Key share it.
// Give a key the same N and Per everywhere.
type Limit struct {
	// Key names what is limited, such as a tenant or a provider. Build Key with joblock.Key. The rate is independent of
	// a lock on the same key.
	Key string

	// N is how many may start in Per: from 1 to 1,000,000.
	N int

	// Per is the period: from a second to 31 days.
	Per time.Duration

	// Burst is how many may start at once: a divisor of N, up to 1,000. With a Burst of 1, starts are spread evenly:
	// one in each Nth of Per. Default: N, or for an N above 1,000 its largest divisor up to 1,000.
	Burst int

	// Name lets an operator change N without a deploy: see "joblock limits". Up to 128 bytes. If an operator has
	// changed N, Burst is lowered to a divisor of the new N. Default: operators cannot change N.
	Name string
}

// maxNap is how long Wait sleeps at most before it asks again, because waiters ahead of it may have left the line.
const maxNap = 5 * time.Second

// Allow counts a start at all limits, or at none. It does not wait. The error matches joblock.ErrHeld if one of the
// limits is used up, or if other callers wait for it; the *joblock.Error has the Key of that limit, and Remaining is the time
// until the next opening. handoff.Refuse answers such an error with 429 and Retry-After. Other errors:
// joblock.ErrInvalid for bad limits, joblock.ErrUnavailable, joblock.ErrClosed, and the cause of ctx.
func Allow(ctx context.Context, locks *joblock.Locker, limits ...Limit) error {
	const op = "allow"
	all, err := check(locks, op, limits)
	if err != nil {
		return err
	}
	got, err := rates.Ask(ctx, (*core.Locker)(locks), op, rates.Caller(""), all, true, 0)
	if err != nil || got.OK {
		return err
	}
	return &joblock.Error{
		Code: joblock.CodeOf(joblock.ErrHeld), Op: op, Key: got.Limit.Key, Remaining: got.Wait,
		Detail: fmt.Sprintf("the rate of %d per %s is used up", got.Limit.N, got.Limit.Per),
	}
}

// Wait waits in line, in this process, until a start is counted at all limits. If ctx ends first, Wait gives up its
// place and returns the cause of ctx. Other errors are those of Allow, without joblock.ErrHeld.
func Wait(ctx context.Context, locks *joblock.Locker, limits ...Limit) error {
	const op = "wait for rate"
	all, err := check(locks, op, limits)
	if err != nil {
		return err
	}
	in, id := (*core.Locker)(locks), rates.Caller(strconv.FormatUint(rand.Uint64(), 36))
	for {
		got, err := rates.Ask(ctx, in, op, id, all, false, 0)
		if err == nil && got.OK {
			return nil
		}
		if err == nil {
			err = sleep.For(ctx, min(got.Wait, maxNap))
		}
		if err != nil {
			keys := make([]string, len(all))
			for i := range all {
				keys[i] = all[i].Key
			}
			_ = rates.Leave(context.WithoutCancel(ctx), in, op, id, keys...) // else the place keeps an opening for five seconds
			return err
		}
	}
}

func check(locks *joblock.Locker, op string, limits []Limit) ([]rates.Limit, error) {
	all := make([]rates.Limit, len(limits))
	for i, l := range limits {
		all[i] = rates.Limit(l)
	}
	return all, rates.Check((*core.Locker)(locks), op, all)
}

// PushBack lets nothing start with key until d from now. d is at most 366 days. Call PushBack when, for example, a
// provider has answered with Retry-After. A longer push-back that is already in force stays. With d 0 the push-back
// ends at once. Starts that were admitted before are not affected. The errors are those of Allow, without
// joblock.ErrHeld.
func PushBack(ctx context.Context, locks *joblock.Locker, key string, d time.Duration) error {
	return rates.PushBack(ctx, (*core.Locker)(locks), "push back", "", key, d)
}

// RetryAfter returns an error that a handler inside of worker.Worker.RateLimit returns when a provider has refused a
// call for now. The Worker then pushes key back, as PushBack does, and snoozes the task for the time after: at least a
// second, at most 366 days. No retry is charged, and the job is the first to start afterwards. If the provider never
// stops refusing, the job never ends: give the task a Deadline. From any other handler the error is an ordinary error.
func RetryAfter(key string, after time.Duration) error { return &rates.Refusal{Key: key, After: after} }

// Status is the public state of the rate of a key.
type Status struct {
	Key        string        `json:"key"`
	Starts     int           `json:"starts"`               // starts that the store allows in any Period: Burst
	Period     time.Duration `json:"period"`               // (Per + margin) * Burst / N; 0 if the key is not in use
	Used       int           `json:"used"`                 // starts in the last Period
	Waiting    int           `json:"waiting,omitempty"`    // jobs and calls in line
	Next       time.Duration `json:"next,omitempty"`       // until a newcomer could start
	PushedBack time.Time     `json:"pushed_back,omitzero"` // until when nothing starts, or zero
}

// StatusOf reads the rate of key, as it was last used. The errors are those of Allow, without joblock.ErrHeld.
func StatusOf(ctx context.Context, locks *joblock.Locker, key string) (Status, error) {
	r, err := rates.Look(ctx, (*core.Locker)(locks), "rate status", "", key)
	if err != nil {
		return Status{}, err
	}
	return Status{
		Key: key, Starts: r.Starts, Period: r.Period, Used: r.Used, Waiting: r.Waiting + r.Claims, Next: r.Wait, PushedBack: r.Until,
	}, nil
}
