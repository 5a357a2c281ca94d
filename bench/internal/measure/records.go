package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// What a record is of, in the section on records.
const (
	heldRecord     = "held"
	forgottenSoon  = "released, nobody else can ask"
	remembered     = "released, after Park and Resume"
	forgotten      = "the same, once its time is over"
	heldMemo       = "held, with a memo of 64 KiB"
	rememberedMemo = "released, with a memo of 64 KiB"
)

// recordCase is the only case.
const recordCase = "a key"

// columnBytes is a title that Aims names.
const columnBytes = "bytes"

func (b *Bench) records(ctx context.Context) (s *report.Section, err error) {
	s = &report.Section{
		Name:  "records",
		Title: "Memory of a record",
		Note: "joblock only. What the server says of one key (MEMORY USAGE), the key's name of 16 bytes included, and for how long the key stays. " +
			"By default a record stays for five minutes after the release, and for seconds if nobody else can ask for it.",
		Columns: []report.Column{{Title: columnBytes}, {Title: "stays for s"}},
	}
	b.say("%s", s.Name)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.Server.Flush(ctx); err != nil {
		return nil, err
	}
	k, err := b.newLockKit()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	var brief []string
	var longest time.Duration
	for round := range b.Scale.Rounds {
		for i, subject := range []string{heldRecord, forgottenSoon, remembered, heldMemo, rememberedMemo} {
			key := fmt.Sprintf("key:%d:%02d", i, round)
			if err := k.leave(ctx, subject, key); err != nil {
				return nil, fmt.Errorf("%s: %w", subject, err)
			}
			of, err := b.Server.Key(ctx, redisstore.DefaultPrefix+key)
			if err != nil {
				return nil, err
			}
			if subject == forgottenSoon {
				brief, longest = append(brief, key), max(longest, of.Remember)
			}
			s.Add(recordCase, subject, float64(of.Bytes), of.Remember.Seconds())
		}
	}
	pause(ctx, longest+time.Millisecond)
	for _, key := range brief {
		of, err := b.Server.Key(ctx, redisstore.DefaultPrefix+key)
		if err != nil {
			return nil, err
		}
		s.Add(recordCase, forgotten, float64(of.Bytes), of.Remember.Seconds())
	}
	return s, nil
}

// leave takes the lock on key and leaves a record of the kind that subject names.
func (k *lockKit) leave(ctx context.Context, subject, key string) error {
	lock, err := k.locks.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	switch subject {
	case heldMemo, rememberedMemo:
		if err := memo.Write(ctx, lock, make([]byte, memo.MaxBytes)); err != nil {
			return err
		}
	case remembered:
		token, err := lock.Park(ctx)
		if err != nil {
			return err
		}
		if lock, err = k.locks.Resume(ctx, token); err != nil {
			return err
		}
	}
	switch subject {
	case heldRecord, heldMemo:
		return nil
	default:
		return lock.Release(ctx)
	}
}
