package rate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/rate"
)

func TestAllowRefusesWhatTheRateDoesNotAllow(t *testing.T) {
	virtual(t, func(k *kit) {
		l := rate.Limit{Key: "key", N: 3, Per: time.Minute}
		for range 3 {
			if err := rate.Allow(k.Context(), k.locks, l); err != nil {
				k.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		err := rate.Allow(k.Context(), k.locks, l)
		var e *joblock.Error
		if !errors.Is(err, joblock.ErrHeld) || !errors.As(err, &e) || e.Key != "key" || e.Remaining != 41*time.Second {
			k.Fatalf("the error is %v, want ErrHeld with the 41 s until the opening", err)
		}
		time.Sleep(e.Remaining)
		if err := rate.Allow(k.Context(), k.locks, l); err != nil {
			k.Errorf("when the time has passed: %v", err)
		}
		if st, err := rate.StatusOf(k.Context(), k.locks, "key"); err != nil || st.Starts != 3 || st.Used != 3 || st.Waiting != 0 || st.Next != time.Microsecond {
			k.Errorf("the status is %+v, %v", st, err)
		}
	})
}

// The field's words: Inngest's throttle, a BullMQ limiter with groups and Sidekiq's window limiter all promise n in a
// period. Each key has its own.
func TestEachKeyHasItsOwnRate(t *testing.T) {
	virtual(t, func(k *kit) {
		for _, key := range []string{"tenant:a", "tenant:b"} {
			if err := rate.Allow(k.Context(), k.locks, rate.Limit{Key: key, N: 1, Per: time.Hour}); err != nil {
				k.Errorf("%s: %v", key, err)
			}
		}
	})
}

// Many calls come at random times and wait. No window of Per has more than N starts, and the rate is used.
func TestNeverMoreThanNInAnyWindow(t *testing.T) {
	for name, l := range map[string]rate.Limit{
		"in bursts":        {Key: "key", N: 7, Per: 10 * time.Second},
		"smoothly":         {Key: "key", N: 10, Per: 10 * time.Second, Burst: 1},
		"in small bursts":  {Key: "key", N: 12, Per: 10 * time.Second, Burst: 4},
		"n above the most": {Key: "key", N: 2000, Per: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(k *kit) {
				dice := rand.New(rand.NewPCG(1, 1))
				n := 10 * l.N
				if n > 1000 {
					n = 3 * l.N
				}
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						if err := rate.Wait(k.Context(), k.locks, l); err != nil {
							k.Error(err)
						}
						k.started()
					})
					if dice.IntN(3) == 0 {
						time.Sleep(time.Duration(dice.Int64N(int64(l.Per) / int64(l.N))))
					}
				}
				wg.Wait()
				if most := k.most(l.Per); most > l.N {
					k.Errorf("%d starts in %s, want at most %d", most, l.Per, l.N)
				}
				span := k.starts[len(k.starts)-1].Sub(k.starts[0])
				burst := min(l.N, 1000)
				if l.Burst > 0 {
					burst = l.Burst
				}
				if ideal := time.Duration(n-burst) * l.Per / time.Duration(l.N); span > ideal*100/95+l.Per/5 { // the first starts are not at once
					k.Errorf("%d starts took %s, want at most a 95th of %s", n, span, ideal)
				}
			})
		})
	}
}

func TestWaitInOrder(t *testing.T) {
	virtual(t, func(k *kit) {
		l := rate.Limit{Key: "key", N: 2, Per: time.Minute}
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := rate.Wait(k.Context(), k.locks, l); err != nil {
					k.Error(err)
				}
				k.mu.Lock()
				defer k.mu.Unlock()
				order = append(order, i)
			})
			time.Sleep(time.Second)
		}
		if wg.Wait(); !slices.IsSorted(order) {
			k.Errorf("the order is %v", order)
		}
	})
}

func TestBothOrNone(t *testing.T) {
	virtual(t, func(k *kit) {
		tenant, provider := rate.Limit{Key: "tenant", N: 2, Per: time.Hour}, rate.Limit{Key: "provider", N: 1, Per: time.Minute}
		if err := rate.Allow(k.Context(), k.locks, tenant, provider); err != nil {
			k.Fatal(err)
		}
		for range 3 {
			if err := rate.Allow(k.Context(), k.locks, tenant, provider); !errors.Is(err, joblock.ErrHeld) {
				k.Fatalf("the provider's rate is used up: %v", err)
			}
		}
		time.Sleep(2 * time.Minute)
		if err := rate.Allow(k.Context(), k.locks, tenant, provider); err != nil {
			k.Errorf("refusals have used up the tenant's rate: %v", err)
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	virtual(t, func(k *kit) {
		l := rate.Limit{Key: "key", N: 1, Per: time.Hour}
		if err := rate.Wait(k.Context(), k.locks, l); err != nil {
			k.Fatal(err)
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(k.Context(), time.Minute, cause)
		defer cancel()
		if err := rate.Wait(ctx, k.locks, l); !errors.Is(err, cause) {
			k.Errorf("the error is %v, want the cause of the context", err)
		}
		if st, err := rate.StatusOf(k.Context(), k.locks, "key"); err != nil || st.Waiting != 0 {
			k.Errorf("the caller that gave up has a place: %+v, %v", st, err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.events) == 0 || k.events[0].Kind != event.RateLimited || k.events[0].Key != "key" || k.events[0].Job != "" {
			k.Errorf("the events are %+v", k.events)
		}
	})
}

// asynq#609 and others: the provider says Retry-After.
func TestPushBack(t *testing.T) {
	virtual(t, func(k *kit) {
		l := rate.Limit{Key: "key", N: 100, Per: time.Minute}
		start := time.Now()
		if err := rate.PushBack(k.Context(), k.locks, "key", 30*time.Second); err != nil {
			k.Fatal(err)
		}
		if st, _ := rate.StatusOf(k.Context(), k.locks, "key"); st.PushedBack.Sub(start) != 30*time.Second {
			k.Errorf("the status is %+v", st)
		}
		if err := rate.Wait(k.Context(), k.locks, l); err != nil || time.Since(start) != 30*time.Second {
			k.Errorf("started after %s: %v, want 30 s", time.Since(start), err)
		}
		_ = rate.PushBack(k.Context(), k.locks, "key", time.Hour)
		_ = rate.PushBack(k.Context(), k.locks, "key", 0)
		if err := rate.Allow(k.Context(), k.locks, l); err != nil {
			k.Errorf("after the end of the push-back: %v", err)
		}
	})
}

func TestNothingStartsWithoutAnAnswer(t *testing.T) {
	virtual(t, func(k *kit) {
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Admit)
		if err := rate.Allow(k.Context(), k.locks, rate.Limit{Key: "key", N: 1, Per: time.Second}); !errors.Is(err, joblock.ErrUnavailable) {
			k.Errorf("the error is %v, want ErrUnavailable", err)
		}
	})
}

// An answer that takes longer than the margin is asked for again, so that the start is not late.
func TestSlowAnswersAreAskedForAgain(t *testing.T) {
	virtual(t, func(k *kit) {
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 100 * time.Millisecond, Times: 1}, faultstore.Admit)
		l := rate.Limit{Key: "key", N: 1, Per: time.Second}
		if err := rate.Allow(k.Context(), k.locks, l); err != nil {
			k.Fatal(err)
		}
		if n := k.store.Calls(faultstore.Admit); n != 2 {
			k.Errorf("%d calls, want 2", n)
		}
		if st, _ := rate.StatusOf(k.Context(), k.locks, "key"); st.Used != 1 || st.Next != 1020*time.Millisecond {
			k.Errorf("the status is %+v, want the start of just now", st)
		}
	})
}

func TestBadLimits(t *testing.T) {
	good := rate.Limit{Key: "key", N: 6, Per: time.Minute}
	with := func(f func(l *rate.Limit)) []rate.Limit {
		l := good
		f(&l)
		return []rate.Limit{l}
	}
	virtual(t, func(k *kit) {
		for want, limits := range map[string][]rate.Limit{
			"no rate limit":                     nil,
			"17 rate limits":                    make([]rate.Limit, 17),
			"N is 0":                            with(func(l *rate.Limit) { l.N = 0 }),
			"N is 1000001":                      with(func(l *rate.Limit) { l.N = 1_000_001 }),
			"Per is 100ms":                      with(func(l *rate.Limit) { l.Per = 100 * time.Millisecond }),
			"Per is 768h0m0s":                   with(func(l *rate.Limit) { l.Per = 32 * 24 * time.Hour }),
			"Burst is -1":                       with(func(l *rate.Limit) { l.Burst = -1 }),
			"Burst is 7, must be from 1":        with(func(l *rate.Limit) { l.Burst = 7 }),
			"must divide N, which is 6: 3 does": with(func(l *rate.Limit) { l.Burst = 4 }),
			"Name has 129 bytes":                with(func(l *rate.Limit) { l.Name = strings.Repeat("x", 129) }),
			"key is empty":                      with(func(l *rate.Limit) { l.Key = "" }),
			"such keys are the toolkit's own":   with(func(l *rate.Limit) { l.Key = "a%#1" }),
			"part 2 of the key is empty":        with(func(l *rate.Limit) { l.Key = joblock.Key("tenant", "") }),
			"two rate limits have this key":     {good, good},
		} {
			err := rate.Allow(k.Context(), k.locks, limits...)
			if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), want) {
				k.Errorf("%s: the error is %v", want, err)
			}
		}
		if err := rate.Allow(k.Context(), nil, good); !errors.Is(err, joblock.ErrInvalid) {
			k.Errorf("without a Locker: %v", err)
		}
		if err := rate.PushBack(k.Context(), k.locks, "key", -1); !errors.Is(err, joblock.ErrInvalid) {
			k.Errorf("a negative push-back: %v", err)
		}
	})
}
