package examples_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// docs/debounce.md
func Example_debounce() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx, id, account := context.Background(), "doc-7", "acct-7"
	task := asynq.NewTask("index", []byte(id))

	// [debounce
	// index runs when the document has not been saved for 5 seconds, but at the latest a minute after the first save.
	index := handoff.Debounce{Key: joblock.Key("index", id), Wait: 5 * time.Second, MaxWait: time.Minute}
	done, err := p.Jobs.Enqueue(ctx, index, task)
	// debounce]
	again := must(p.Jobs.Enqueue(ctx, index, task))
	fmt.Println(err, again.Replaced.ID == done.Task.ID, again.Task.State)

	// [leading
	preview := handoff.Debounce{Key: joblock.Key("preview", id), Wait: 5 * time.Second, Leading: true}
	// leading]
	fmt.Println(must(p.Jobs.Enqueue(ctx, preview, task)).Task.State)

	// [throttle
	mail := handoff.Unique{Key: joblock.Key("mail", account), OnConflict: handoff.Skip, Cooldown: 5 * time.Minute}     // the first will do
	sync := handoff.Unique{Key: joblock.Key("sync", account), OnConflict: handoff.KeepLast, Cooldown: 5 * time.Minute} // and the latest, after the cooldown
	call := handoff.Unique{Key: joblock.Key("call", account), UntilStarted: true, Cooldown: time.Minute}               // counted from the start
	// throttle]
	for _, u := range []handoff.Unique{mail, sync, call} {
		must(p.Jobs.Enqueue(ctx, u, task))
	}

	// [move
	done, err = p.Jobs.Job(ctx, joblock.Key("index", id)) // the job that waits; joblock.ErrNotFound if there is none
	if err == nil {
		err = p.Jobs.Reschedule(ctx, done, time.Now().Add(time.Hour)) // a time in the past means at once
	}
	if err == nil {
		err = p.Jobs.Withdraw(ctx, done)
	}
	// move]
	_, gone := p.Jobs.Job(ctx, joblock.Key("index", id))
	fmt.Println(err, errors.Is(gone, joblock.ErrNotFound))
	// Output:
	// <nil> true scheduled
	// pending
	// <nil> true
}
