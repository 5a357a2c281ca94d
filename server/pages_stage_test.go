package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
)

// A stage is a store in which there is something of everything, and a browser before it.
type stage struct {
	*browser
	held, job, limit string
	tokens           []string
	tasks            *tasks
}

// tasks is a database of asynq. Pages read it while an action changes it.
type tasks struct {
	mu  sync.Mutex // guards what follows
	all map[string]*asynq.TaskInfo
}

func (f *tasks) put(job string, info asynq.TaskInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[job] = &info
}

func (f *tasks) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

func (f *tasks) Queues() ([]string, error) { return []string{"default"}, nil }

func (f *tasks) GetQueueInfo(string) (*asynq.QueueInfo, error) {
	return &asynq.QueueInfo{Queue: "default"}, nil
}

func (f *tasks) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if info := f.all[queue+"/"+id]; info != nil {
		is := *info
		return &is, nil
	}
	return nil, asynq.ErrTaskNotFound
}

func (f *tasks) RunTask(queue, id string) error { return f.change(queue, id, asynq.TaskStatePending) }

func (f *tasks) DeleteTask(queue, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, queue+"/"+id)
	return nil
}

func (f *tasks) ArchiveTask(queue, id string) error {
	return f.change(queue, id, asynq.TaskStateArchived)
}

func (f *tasks) CancelProcessing(id string) error { return nil }

func (f *tasks) change(queue, id string, to asynq.TaskState) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[queue+"/"+id].State = to
	return nil
}

const (
	heldKey  = "export:acct/7"
	jobKey   = "export:acct-8"
	freeKey  = "unused"
	cronName = "nightly/report"
)

// staged runs f on a stage, in virtual time.
func staged(t *testing.T, cfg PagesConfig, change func(*Config), f func(s *stage)) {
	bubble(t, func(t *testing.T) {
		_, record := audited(t)
		s := &stage{held: heldKey, job: "default/export-41", limit: "geo", tasks: &tasks{all: map[string]*asynq.TaskInfo{}}}
		changes := []func(*Config){record, func(cfg *Config) { cfg.CronScopes = []string{"shop"} }}
		if change != nil {
			changes = append(changes, change)
		}
		a := newReplica(t, store(), changes...)
		desk := a.s.cfg.desk()
		desk.Databases = []ops.Database{{Name: "jobs", Asynq: s.tasks}}
		var err error
		a.s.desk, err = ops.New(desk)
		testkit.WantNil(t, "ops.New", err)
		s.browser = a.browser(cfg)
		s.fill()
		s.lockedIn(f)
	})
}

func (s *stage) fill() {
	ctx := s.Context()
	lock := func(key string, opts ...joblock.AcquireOption) *joblock.Lock {
		l, err := s.locks.TryAcquire(ctx, key, opts...)
		testkit.WantNil(s, "TryAcquire "+key, err)
		token, err := l.Token().MarshalText()
		testkit.WantNil(s, "MarshalText", err)
		s.tokens = append(s.tokens, string(token))
		return l
	}
	lock(heldKey, joblock.Holder("web1:71"))
	go func() { _, _ = s.locks.Acquire(ctx, heldKey, joblock.Holder("web2:72")) }()
	parked := lock(jobKey, joblock.Holder("web3:73"))
	_, err := parked.Park(ctx, joblock.ForJob(s.job), joblock.Reserve(time.Hour))
	testkit.WantNil(s, "Park", err)
	s.tasks.put(s.job, asynq.TaskInfo{ID: "export-41", Queue: "default", Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1, LastErr: "no disk", NextProcessAt: time.Now().Add(time.Minute), Headers: s.carry(s.job, jobKey)})
	_, err = ops.AcquireLease(ctx, s.locks, ops.LeaseRequest{Key: s.limit, TTL: time.Hour, Limit: 3, Holder: "geocoder"})
	testkit.WantNil(s, "AcquireLease", err)
}

// carry returns the headers of a task of type export that carries locks on keys.
func (s *stage) carry(job string, keys ...string) map[string]string {
	s.Helper()
	var tokens []joblock.Token
	for _, key := range keys {
		token, err := joblock.NewToken(key, "owner", time.Minute)
		testkit.WantNil(s, "NewToken", err)
		tokens = append(tokens, token)
	}
	text, err := envelope.Envelope{Tokens: tokens, Retries: -1}.Seal(s.Context(), (*core.Locker)(s.locks).Ring(), job, "export")
	testkit.WantNil(s, "Seal", err)
	return map[string]string{envelope.Header: text}
}

// lockedIn runs f while a node has a cron job.
func (s *stage) lockedIn(f func(*stage)) {
	node, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: "node-1", Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(s, "scheduler.New", err)
	testkit.WantNil(s, "Func", node.Func(cronName, "CRON_TZ=Europe/Berlin 30 2 * * *", func(context.Context) error { return errors.New("no disk") }))
	ctx, cancel := context.WithCancel(s.Context())
	over := make(chan error)
	go func() { over <- node.Run(ctx) }()
	time.Sleep(time.Minute)
	f(s)
	cancel()
	<-over
}

func (s *stage) lockPage(key string) string { return "lock?" + url.Values{"key": {key}}.Encode() }

func (s *stage) fence(key string) string { return fmt.Sprint(s.status(key).Fence) }
