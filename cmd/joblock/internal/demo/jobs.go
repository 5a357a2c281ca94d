package demo

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// The types of the demo's tasks. The payload is the account or the shop.
const (
	exportTask  = "export"
	webhookTask = "webhook"
	stuckTask   = "invoices"
)

// jobs starts a web process, which enqueues tasks with locks, and a worker with a keeper. stop ends both.
func (c *company) jobs() (stop func() error, err error) {
	stop = func() error { return nil }
	web, err := c.locker("web-1:80")
	if err != nil {
		return stop, err
	}
	client, err := handoff.NewClient(web, c.client, c.inspector, &handoff.Config{Logger: quiet})
	if err != nil {
		return stop, err
	}
	locks, err := c.locker("worker-1:7")
	if err != nil {
		return stop, err
	}
	w, err := worker.New(locks, c.inspector, &worker.Config{Logger: quiet, Overrun: time.Second})
	if err != nil {
		return stop, err
	}
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc(exportTask, c.export)
	mux.HandleFunc(webhookTask, c.webhook)
	mux.HandleFunc(stuckTask, func(ctx context.Context, _ *asynq.Task) error { return c.takes(ctx, 10*time.Minute) })
	server := asynq.NewServer(c.redis(), w.Configure(asynq.Config{
		Concurrency:              8,
		Queues:                   map[string]int{"default": 2, "webhooks": 1},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 20 * time.Second },
		TaskCheckInterval:        200 * time.Millisecond,
		DelayedTaskCheckInterval: time.Second,
		ShutdownTimeout:          time.Second,
		Logger:                   silent{},
	}))
	if err := server.Start(mux); err != nil {
		return stop, err
	}
	c.happening.Go(func() { _ = w.RunKeeper(c.ctx) })
	c.enqueues(client)
	return func() error {
		server.Shutdown()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return errors.Join(w.Close(ctx), client.Close(ctx))
	}, nil
}

// enqueues makes the web process enqueue tasks, for some keys faster than the worker executes them.
func (c *company) enqueues(client *handoff.Client) {
	account, shop := 0, 0
	c.happens(func(ctx context.Context) time.Duration {
		account = account%5 + 1
		name := "acct-" + strconv.Itoa(account)
		key := handoff.Unique{Key: joblock.Key("export", name)}
		_, _ = client.Enqueue(ctx, key, asynq.NewTask(exportTask, []byte(name)), asynq.MaxRetry(2)) // refused while a job has the key
		return 7 * time.Second
	})
	c.happens(func(ctx context.Context) time.Duration {
		shop = shop%3 + 1
		name := "shop-" + strconv.Itoa(shop)
		line := handoff.Sequence{Key: joblock.Key("webhooks", name), MaxWaiting: 20}
		_, _ = client.Enqueue(ctx, line, asynq.NewTask(webhookTask, []byte(name)), asynq.Queue("webhooks"))
		return 2 * time.Second
	})
	c.happens(func(ctx context.Context) time.Duration {
		_, _ = client.Enqueue(ctx, handoff.Unique{Key: "stuck:invoices"}, asynq.NewTask(stuckTask, nil), asynq.Timeout(time.Hour))
		return time.Minute
	})
}

func (c *company) export(ctx context.Context, task *asynq.Task) error {
	if err := c.takes(ctx, 12*time.Second); err != nil {
		return err
	}
	retried, _ := asynq.GetRetryCount(ctx)
	switch account := string(task.Payload()); {
	case account == "acct-3" && retried == 0:
		return errors.New("the bank does not answer")
	case account == "acct-5":
		return errors.New("account acct-5 has no currency")
	}
	return nil
}

func (c *company) webhook(ctx context.Context, task *asynq.Task) error {
	if string(task.Payload()) == "shop-2" {
		return c.takes(ctx, 10*time.Second)
	}
	return c.takes(ctx, 3*time.Second)
}

// takes pretends to work for d, at the pace of the company.
func (c *company) takes(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d / c.pace):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// silent is a logger of asynq that discards everything.
type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}
