package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
)

// The subjects of the section on memos.
const (
	withoutMemo = "without a memo"
	withMemo    = "a memo of 64 KiB"
)

// A wait that is given up takes so long, and so many goroutines wait at the same time.
const (
	briefWait    = 5 * time.Millisecond
	briefWaiters = 8
)

// A memoCase is something to do n times with a lock, or with all locks that are held. All
// have memos, or none has.
type memoCase struct {
	name string
	do   func(ctx context.Context, k *lockKit, lock *joblock.Lock, n int) error
}

var memoCases = []memoCase{
	{"renewal", func(ctx context.Context, _ *lockKit, lock *joblock.Lock, n int) error {
		for range n {
			if err := lock.Renew(ctx); err != nil {
				return err
			}
		}
		return nil
	}},
	{"wait that is given up", func(ctx context.Context, k *lockKit, lock *joblock.Lock, n int) error {
		return parallel(ctx, briefWaiters, n, func(ctx context.Context, _, _ int) error {
			_, err := k.locks.Acquire(ctx, lock.Key(), joblock.MaxWait(briefWait))
			// On a busy machine the time may be over before the first answer.
			if errors.Is(err, joblock.ErrTimeout) || errors.Is(err, joblock.ErrUnavailable) {
				return nil
			}
			return fmt.Errorf("a wait for a held lock: %w", err)
		})
	}},
	{"acquire and release among two", func(ctx context.Context, k *lockKit, lock *joblock.Lock, n int) error {
		if err := lock.Release(ctx); err != nil {
			return err
		}
		return parallel(ctx, 2, n, func(ctx context.Context, _, _ int) error {
			again, err := k.locks.Acquire(ctx, lock.Key())
			if err != nil {
				return err
			}
			return again.Release(ctx)
		})
	}},
	{"a lock in a list", func(ctx context.Context, k *lockKit, _ *joblock.Lock, _ int) error {
		listed := 0
		for _, err := range k.locks.List(ctx, joblock.ListOptions{}) {
			if err != nil {
				return err
			}
			listed++
		}
		if listed != k.held {
			return fmt.Errorf("%d locks in the list, want %d", listed, k.held)
		}
		return nil
	}},
}

func (b *Bench) memos(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "memos",
		Title: "Locks with memos",
		Note: fmt.Sprintf("joblock only. What calls cost that have nothing to do with the key's memo: %d of each, and a list of as many locks. "+
			"The server's count is of its scripts, and of SCAN.", b.Scale.Memos),
		Base: withoutMemo,
		Columns: []report.Column{
			{Title: columnMicros, Digits: 1, Ratio: true},
			{Title: columnOwn, Digits: 1, Ratio: true},
			{Title: columnServer, Digits: 1, Ratio: true},
			{Title: columnScripts, Digits: 1, Ratio: true},
			{Title: "bytes received/op", Ratio: true},
		},
	}
	for _, c := range memoCases {
		b.say("%s, %s", s.Name, c.name)
		err := eachRound(ctx, b, b.Scale.Rounds, []string{withoutMemo, withMemo}, func(_ int, subject string) error {
			return b.memoRound(ctx, s, c, subject)
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return s, nil
}

func (b *Bench) memoRound(ctx context.Context, s *report.Section, c memoCase, subject string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := b.newLockKit()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	n := b.Scale.Memos
	locks := make([]*joblock.Lock, n)
	for i, key := range keysOf("memo", n) {
		if locks[i], err = k.locks.TryAcquire(ctx, key); err != nil {
			return err
		}
		k.held++
		if subject == withMemo {
			if err := memo.Write(ctx, locks[i], make([]byte, memo.MaxBytes)); err != nil {
				return err
			}
		}
	}
	// Connections are opened as they are needed, and scripts loaded.
	warmUp, err := k.locks.TryAcquire(ctx, "warm-up")
	if err != nil {
		return err
	}
	k.held++
	if err := c.do(ctx, k, warmUp, warmUpPairs); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	runtime.GC() // else the garbage of the memos is collected while the clock runs
	before, err := used(ctx, b.Server)
	if err != nil {
		return err
	}
	received, start := k.wire.Received(), time.Now()
	if err := c.do(ctx, k, locks[0], n); err != nil {
		return err
	}
	elapsed := time.Since(start)
	after, err := used(ctx, b.Server)
	if err != nil {
		return err
	}
	cpu, per := after.since(before, "evalsha", "scan"), 1/float64(n)
	s.Add(c.name, subject, micros(elapsed)*per, micros(cpu.own)*per, micros(cpu.server)*per, micros(cpu.calls.Time)*per,
		float64(k.wire.Received()-received)*per)
	return nil
}
