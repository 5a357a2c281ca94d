package asynqtick_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

type noConfigs struct{ err error }

func (p noConfigs) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) { return nil, p.err }

func TestManagersThatCannotStart(t *testing.T) {
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(t.Context())
	cfg := &scheduler.Config{Scope: "shop"}
	redis := asynq.RedisClientOpt{Addr: "127.0.0.1:1"}
	away := errors.New("away")
	for name, tc := range map[string]struct {
		locks *joblock.Locker
		cfg   *scheduler.Config
		opts  asynq.PeriodicTaskManagerOpts
	}{
		"no Locker":     {nil, cfg, asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: noConfigs{}, RedisConnOpt: redis}},
		"no scope":      {locks, nil, asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: noConfigs{}, RedisConnOpt: redis}},
		"no provider":   {locks, cfg, asynq.PeriodicTaskManagerOpts{RedisConnOpt: redis}},
		"no connection": {locks, cfg, asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: noConfigs{}}},
	} {
		if m, err := asynqtick.NewPeriodicTaskManager(tc.locks, tc.cfg, tc.opts); m != nil || !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: %v, %v, want joblock.ErrInvalid", name, m, err)
		}
	}
	m, err := asynqtick.NewPeriodicTaskManager(locks, cfg, asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: noConfigs{away}, RedisConnOpt: redis})
	if err != nil {
		t.Fatal(err)
	}
	m.Shutdown() // not started
	if err := m.Start(); !errors.Is(err, away) {
		t.Errorf("Start returned %v, want the provider's error", err)
	}
	if err := m.Run(); !errors.Is(err, away) {
		t.Errorf("Run returned %v, want the provider's error", err)
	}
}

func TestTasksThatAreNotJobs(t *testing.T) {
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(t.Context())
	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Zone: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no task":      asynqtick.New(s, nil).Add("a", "@daily", nil, nil),
		"no Redis":     asynqtick.New(s, nil).Add("a", "@daily", asynq.NewTask("a", nil), nil),
		"no Scheduler": asynqtick.New(nil, nil).Add("a", "@daily", asynq.NewTask("a", nil), nil),
	} {
		if !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: %v, want joblock.ErrInvalid", name, err)
		}
	}
	if err := asynqtick.New(s, nil).Remove("a"); !errors.Is(err, joblock.ErrNotFound) {
		t.Errorf("Remove: %v, want joblock.ErrNotFound", err)
	}
}
