package worker_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/worker"
)

func TestNew(t *testing.T) {
	locks, err := joblock.New(memstore.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locks.Close(t.Context()) }()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	const most = driver.MaxPeriod / 2

	tests := []struct {
		name      string
		locks     *joblock.Locker
		inspector *asynq.Inspector
		cfg       *worker.Config
		ok        bool
	}{
		{"defaults", locks, inspector, nil, true},
		{"zero Config", locks, inspector, &worker.Config{}, true},
		{"nil Locker", nil, inspector, nil, false},
		{"nil Inspector", locks, nil, nil, false},
		{"least", locks, inspector, &worker.Config{Reserve: time.Second, Snooze: time.Second, Overrun: time.Millisecond, OnLockLost: failing.decide}, true},
		{"most", locks, inspector, &worker.Config{Reserve: most, Snooze: most, Overrun: most}, true},
		{"shortest Every", locks, inspector, &worker.Config{Reserve: time.Second, Keeper: worker.KeeperConfig{Interval: 100 * time.Millisecond}}, true},
		{"longest Every", locks, inspector, &worker.Config{Reserve: time.Minute, Keeper: worker.KeeperConfig{Interval: 30 * time.Second}}, true},
		{"many Keepers", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: 256}}, true},
		{"too many Keepers", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: 257}}, false},
		{"negative Keepers", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: -1}}, false},
		{"smallest Share", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 0.001}}, true},
		{"all of asynq's Redis", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 1}}, true},
		{"small Share", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 0.0009}}, false},
		{"negative Share", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: -0.1}}, false},
		{"more than all of asynq's Redis", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 1.01}}, false},
		{"no number as Share", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: math.NaN()}}, false},
		{"negative Every", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{Interval: -1}}, false},
		{"short Every", locks, inspector, &worker.Config{Keeper: worker.KeeperConfig{Interval: 99 * time.Millisecond}}, false},
		{"long Every", locks, inspector, &worker.Config{Reserve: time.Minute, Keeper: worker.KeeperConfig{Interval: 30*time.Second + 1}}, false},
		{"more Inspectors", locks, inspector, &worker.Config{Inspectors: []*asynq.Inspector{inspector}}, true},
		{"a nil Inspector among them", locks, inspector, &worker.Config{Inspectors: []*asynq.Inspector{inspector, nil}}, false},
		{"negative Reserve", locks, inspector, &worker.Config{Reserve: -1}, false},
		{"short Reserve", locks, inspector, &worker.Config{Reserve: time.Second - 1}, false},
		{"long Reserve", locks, inspector, &worker.Config{Reserve: most + 1}, false},
		{"shortest MaxHold", locks, inspector, &worker.Config{MaxHold: time.Second}, true},
		{"longest MaxHold", locks, inspector, &worker.Config{MaxHold: driver.MaxPeriod}, true},
		{"negative MaxHold", locks, inspector, &worker.Config{MaxHold: -time.Second}, false},
		{"short MaxHold", locks, inspector, &worker.Config{MaxHold: time.Second - 1}, false},
		{"long MaxHold", locks, inspector, &worker.Config{MaxHold: driver.MaxPeriod + 1}, false},
		{"negative Snooze", locks, inspector, &worker.Config{Snooze: -time.Second}, false},
		{"short Snooze", locks, inspector, &worker.Config{Snooze: time.Millisecond}, false},
		{"long Snooze", locks, inspector, &worker.Config{Snooze: most + 1}, false},
		{"negative Overrun", locks, inspector, &worker.Config{Overrun: -time.Second}, false},
		{"short Overrun", locks, inspector, &worker.Config{Overrun: time.Microsecond}, false},
		{"long Overrun", locks, inspector, &worker.Config{Overrun: most + 1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, err := worker.New(tt.locks, tt.inspector, tt.cfg)
			if tt.ok != (err == nil) || tt.ok != (w != nil) {
				t.Errorf("New gave %v, %v", w, err)
			}
			if err != nil && !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("New gave %v, want ErrInvalid", err)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "worker: ") {
				t.Errorf("the error does not say whose it is: %s", err)
			}
		})
	}
}

// Delays beyond what a reservation can cover are cut, not refused.
func TestHugeRetryDelay(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 1)
		r.serve(service{
			worker: worker.Config{Reserve: driver.MaxPeriod / 2},
			asynq:  asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return driver.MaxPeriod * 2 }},
		}, p.handler(fail))
		r.untilTask("a", "retry")
		r.wantState("key-a", joblock.StateParked, "a")
	})
}
