package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/handoff"
)

// An enqueueWay is how jobs are enqueued.
type enqueueWay string

const (
	alone  enqueueWay = "asynq, one by one"
	unique enqueueWay = "EnqueueUnique, one by one"
	many   enqueueWay = "EnqueueMany, all at once"
)

// columnEnqueued is a title that Aims names.
const columnEnqueued = "enqueued/s"

func (b *Bench) enqueue(ctx context.Context) (*report.Section, error) {
	c := enqueueCase(b.Scale)
	s := &report.Section{
		Name:  "enqueue",
		Title: "Enqueuing: " + c,
		Note: "With nobody to process. A loop of asynq's own Enqueue, a loop of handoff's EnqueueUnique, and handoff's EnqueueMany, in calls of " +
			fmt.Sprintf("at most %d tasks. ", handoff.MaxItems) + "With handoff, every task has the lock on a key of its own. " +
			"Commands, round trips and processor times are those of one task.",
		Base: string(alone),
		Columns: []report.Column{
			{Title: columnEnqueued, Ratio: true},
			{Title: "commands", Digits: 2},
			{Title: "round trips", Digits: 2},
			{Title: "own CPU µs", Digits: 1, Ratio: true},
			{Title: "server CPU µs", Digits: 1, Ratio: true},
		},
	}
	b.say("%s, %s", s.Name, c)
	err := eachRound(ctx, b, b.Scale.Rounds, []enqueueWay{alone, unique, many}, func(_ int, way enqueueWay) (err error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		k, err := b.newJobKit()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.close()) }()
		if err := k.enqueue(ctx, way, keysOf("warm-up", warmUpPairs)); err != nil {
			return err
		}
		keys := keysOf("task", b.Scale.Enqueue)
		before, err := used(ctx, b.Server)
		if err != nil {
			return err
		}
		count, start := k.wire.Count(), time.Now()
		if err := k.enqueue(ctx, way, keys); err != nil {
			return err
		}
		perSecond, sent := rate(len(keys), start), k.wire.Count().Sub(count)
		after, err := used(ctx, b.Server)
		if err != nil {
			return err
		}
		cpu, n := after.since(before), float64(len(keys))
		s.Add(c, string(way), perSecond, float64(sent.Commands)/n, float64(sent.Turns)/n, micros(cpu.own)/n, micros(cpu.server)/n)
		return nil
	})
	return s, err
}

func enqueueCase(s Scale) string { return fmt.Sprintf("%d tasks", s.Enqueue) }

// keysOf returns n keys.
func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s:%d", prefix, i)
	}
	return keys
}

// enqueue enqueues a job for each key, with the lock on that key if way has locks.
func (k *jobKit) enqueue(ctx context.Context, way enqueueWay, keys []string) error {
	task := asynq.NewTask(jobType, nil)
	if way == many {
		for part := range slices.Chunk(keys, handoff.MaxItems) {
			if err := k.enqueueMany(ctx, task, part); err != nil {
				return err
			}
		}
		return nil
	}
	for _, key := range keys {
		var err error
		if way == unique {
			_, err = k.jobs.EnqueueUnique(ctx, handoff.Unique{Key: key}, task)
		} else {
			_, err = k.client.EnqueueContext(ctx, task)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enqueueMany enqueues a job for each key, all in one call.
func (k *jobKit) enqueueMany(ctx context.Context, task *asynq.Task, keys []string) error {
	items := make([]handoff.Item, len(keys))
	for i, key := range keys {
		items[i] = handoff.Item{Task: task, Unique: handoff.Unique{Key: key}}
	}
	return k.enqueueItems(ctx, items)
}

// enqueueLines enqueues so many jobs in the sequence of each key, as a round-robin over the keys.
func (k *jobKit) enqueueLines(ctx context.Context, keys []string, each int, opts ...asynq.Option) error {
	var items []handoff.Item
	for range each {
		for _, key := range keys {
			task := asynq.NewTask(jobType, []byte(key), opts...)
			items = append(items, handoff.Item{Task: task, Sequence: handoff.Sequence{Key: key}})
		}
	}
	return k.enqueueItems(ctx, items)
}

func (k *jobKit) enqueueItems(ctx context.Context, items []handoff.Item) error {
	for part := range slices.Chunk(items, handoff.MaxItems) {
		results, err := k.jobs.EnqueueMany(ctx, part)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
