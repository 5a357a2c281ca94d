package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// newStore stands for redisstore.New(rdb, nil). Its clock stands still: a machine that does too prints the same.
func newStore() driver.Store {
	now := time.Now()
	return memstore.New(&memstore.Config{Silent: true, Now: func() time.Time { return now }})
}

func ExampleNew() {
	ctx := context.Background()
	locks, err := joblock.New(newStore(), &joblock.Config{Holder: "web-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	lock, err := locks.TryAcquire(ctx, "export:acct-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)

	_, err = locks.TryAcquire(ctx, "export:acct-7")
	var busy *joblock.Error
	if errors.Is(err, joblock.ErrHeld) && errors.As(err, &busy) {
		fmt.Println(busy.Code, "by", busy.Holder, "for", busy.Remaining.Round(time.Second))
	}
	// Output: LOCK_ACQUISITION_FAILED by web-1 for 30s
}

func ExampleLocker_Do() {
	ctx := context.Background()
	locks, err := joblock.New(newStore(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	err = locks.Do(ctx, "rollup", func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		fmt.Println("holding", lock.Key())
		return ctx.Err() // cancelled, with cause ErrLost, if the lock is lost
	}, joblock.MaxWait(5*time.Second))
	fmt.Println(err)
	// Output:
	// holding rollup
	// <nil>
}

// A request hands its lock to a job. The token travels in the job's payload.
func ExampleLock_Park() {
	ctx := context.Background()
	locks, err := joblock.New(newStore(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	// The request.
	lock, err := locks.TryAcquire(ctx, "export:acct-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx) // frees nothing once the lock is handed over
	token, err := lock.Park(ctx, joblock.ForJob("exports/42"))
	if err != nil {
		fmt.Println(err)
		return
	}
	payload, _ := token.MarshalText()

	_, err = locks.TryAcquire(ctx, "export:acct-7")
	fmt.Println("while it is queued:", joblock.CodeOf(err))

	// The job, in another process.
	token, err = joblock.ParseToken(string(payload))
	if err != nil {
		fmt.Println(err)
		return
	}
	resumed, err := locks.Resume(ctx, token, joblock.ForJob("exports/42"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a larger fence:", resumed.Fence() > lock.Fence())
	fmt.Println("released:", resumed.Release(ctx) == nil)
	// Output:
	// while it is queued: LOCK_ACQUISITION_FAILED
	// a larger fence: true
	// released: true
}

func ExampleLocker_AcquireAll() {
	ctx := context.Background()
	locks, err := joblock.New(newStore(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	both, err := locks.AcquireAll(ctx, []string{"account:9", "account:7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, lock := range both {
		fmt.Println(lock.Key())
	}
	fmt.Println(both.Release(ctx))
	// Output:
	// account:9
	// account:7
	// <nil>
}

func ExampleKey() {
	fmt.Println(joblock.Key("export", "acct-7"))
	fmt.Println(joblock.Key("a:b", "c"), joblock.Key("a", "b:c"))
	// Output:
	// export:acct-7
	// a%3Ab:c a:b%3Ac
}

func ExampleSecret_Key() {
	secret := joblock.Secret("not this one, at least 16 bytes")
	key := secret.Key("mail", "user", "eve@example.org")
	fmt.Println(key[:6], len(key))
	// Output: mail:: 70
}
