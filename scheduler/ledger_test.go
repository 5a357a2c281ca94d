package scheduler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// write sets the memo of a key.
func (c *cluster) write(n *node, key, text string) {
	c.Helper()
	lock, err := n.locks.TryAcquire(c.Context(), key, core.OwnKey, joblock.Retain(driver.MaxPeriod))
	wantNil(c, "TryAcquire", err)
	wantNil(c, "memo.Write", memo.Write(c.Context(), lock, []byte(text)))
	wantNil(c, "Release", lock.Release(c.Context()))
}

func (c *cluster) memo(n *node, key string) string {
	c.Helper()
	views, err := memo.Read(c.Context(), n.locks, key)
	wantNil(c, "Read", err)
	return string(views[0].Memo)
}

// A node leaves a ledger alone that it cannot read, and logs it. Other jobs go on.
func TestLedgersThatCannotBeRead(t *testing.T) {
	for name, memo := range map[string]string{
		"later version": `{"v":2,"spec":"CRON_TZ=UTC 0 3 * * *","last":0}`,
		"no version":    `{"spec":"x"}`,
		"other memo":    "page 7",
		"other JSON":    `["v",1]`,
		"other types":   `{"v":1,"last":"today"}`,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r, other runs
				start := time.Now()
				n := c.node(0)
				c.write(n, "%cron:cron:job", memo)
				n.add("job", "@every 1m", r.fn(n, sec))
				n.add("other", "@every 1m", other.fn(n, sec))
				n.start()
				until(start, 3*min+10*sec)
				r.wantTicks(t, start)
				other.wantTicks(t, start, min, 2*min, 3*min)
				if got := c.memo(n, "%cron:cron:job"); got != memo {
					t.Errorf("the memo is %q now", got)
				}
				if n := strings.Count(c.logs.String(), "this node cannot execute the job"); n < 3 || n > 5 {
					t.Errorf("logged %d times in three minutes", n)
				}
			})
		})
	}
}

// spoiltStore can return a memo that is no ledger with the grants of a job's lock. Reads still return the ledger: a newer
// node has written its own just before the grant.
type spoiltStore struct {
	driver.Store
	spoilt atomic.Bool
}

func (s *spoiltStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	r, err := s.Store.Acquire(ctx, req)
	if req.Key == "%cron:cron:job" && r.Outcome == driver.OutcomeOK && s.spoilt.Load() {
		r.Memo = []byte("page 7")
	}
	return r, err
}

// A node that gets the lock of a job with a ledger that it cannot read gives the lock back at once: a newer node can
// execute the job.
func TestLockOfALedgerThatCannotBeRead(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  []scheduler.Option
		other bool // another node executes the job, and dies: the node gets the lock by standing by
	}{
		"that is due":            {nil, false},
		"that is due in a lane":  {[]scheduler.Option{scheduler.MaxConcurrent(2)}, false},
		"of another node's term": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				store := &spoiltStore{Store: c.mem}
				n := c.nodeOn(store, 0)
				if tc.other {
					other := c.node(0)
					other.add("job", "@every 10m", r.fn(other, 5*min), tc.opts...)
					other.start()
					until(start, 10*min+sec)
					n.add("job", "@every 10m", r.fn(n, sec), tc.opts...)
					n.start()
					until(start, 11*min)
					store.spoilt.Store(true)
					other.cut()
				} else {
					n.add("job", "@every 10m", r.fn(n, sec), tc.opts...)
					n.start()
					until(start, 9*min)
					store.spoilt.Store(true)
				}
				until(start, 11*min+30*sec)
				status, err := n.locks.Status(c.Context(), "%cron:cron:job")
				wantNil(t, "Status", err)
				if status[0].State != joblock.StateFree {
					t.Errorf("the lock is %s by %s", status[0].State, status[0].Holder)
				}
				if log := c.logs.String(); !strings.Contains(log, "the memo is not a ledger") {
					t.Errorf("the log does not say why:\n%s", log)
				}
				calls := len(r.all())
				store.spoilt.Store(false)
				until(start, 15*min)
				if now := r.all(); len(now) != calls+1 || now[calls].on != n.name || !now[calls].tick.At.Equal(start.Add(10*min)) {
					t.Errorf("after that the calls are %+v, want the tick once more", now)
				}
			})
		})
	}
}

func TestLedgerOfALaterNodeWithTheSameVersion(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		last := start.Add(-25 * min).UnixMilli()
		c.write(n, "%cron:cron:job", fmt.Sprintf(`{"v":1,"spec":"@every 10m0s","last":%d,"counts":{"done":41,"novel":1},"novel":{"a":[1]}}`, last))
		n.add("job", "@every 10m", r.fn(n, sec))
		n.start()
		until(start, 11*min)
		r.wantTicks(t, start, 0, 10*min) // two before were missed
		e, err := n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Counts.Done != 43 || e.Counts.Missed != 2 {
			t.Errorf("counts %+v", e.Counts)
		}
	})
}

// The store loses everything. Jobs go on at their next tick, nothing is caught up with, and
// a tick that is due is not lost.
func TestLedgerIsLost(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		store := &switchStore{Store: c.mem}
		for range 2 {
			n := c.nodeOn(store, 0)
			n.add("job", "@every 10m", r.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
			n.start()
		}
		until(start, 29*min)
		store.swap(memstore.New(&memstore.Config{Silent: true}))
		until(start, 41*min)
		r.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min)
	})
}

// The store's clock is what counts. When it is set back, no tick is executed a second time.
// When it is set back by more than a day, it was wrong before, and the job goes on.
func TestStoresClockIsSet(t *testing.T) {
	for name, tc := range map[string]struct {
		ahead time.Duration // of the store's clock, for a while
		want  []time.Duration
	}{
		"by half an hour": {30 * min, []time.Duration{10 * min, 40 * min, 50 * min, 60 * min}},
		"by a month":      {30 * 24 * hour, []time.Duration{10 * min, 30*24*hour + 10*min, 30*24*hour + 20*min, 30 * min, 40 * min, 50 * min, 60 * min}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &cluster{T: t, logs: new(testkit.Log)}
				var r runs
				start := time.Now()
				wrong := func() time.Duration {
					if d := time.Since(start); d > 15*min && d < 25*min {
						return tc.ahead
					}
					return 0
				}
				c.mem = memstore.New(&memstore.Config{Silent: true, Now: func() time.Time { return time.Now().Add(wrong()) }})
				for range 2 {
					n := c.node(0)
					n.add("job", "@every 10m", r.fn(n, 10*time.Millisecond))
					n.start()
				}
				until(start, 62*min)
				r.wantTicks(t, start, tc.want...)
			})
		})
	}
}

// The ledger can be read in redis-cli.
func TestLedgerIsReadable(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10m", r.fn(n, sec))
		n.start()
		until(start, 200*min+5*sec)
		memo := c.memo(n, "%cron:cron:job")
		line, past, _ := strings.Cut(memo, "\n")
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m["v"] != 1.0 || m["spec"] != "@every 10m0s" || m["last"] != float64(start.Add(200*min).UnixMilli()) {
			t.Errorf("ledger %s", memo)
		}
		var runs []map[string]any
		if err := json.Unmarshal([]byte(past), &runs); err != nil || len(runs) != 10 {
			t.Errorf("%d runs in the history %s, %v", len(runs), past, err)
		}
		if len(memo) > 1500 {
			t.Errorf("the ledger has %d bytes, and grows: %s", len(memo), memo)
		}
	})
}

// A pause ends by Resume alone: nodes that are up now and then keep the record of pauses.
func TestAPauseOutlastsTheRecordsOfAYear(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start, day := time.Now(), 24*time.Hour
		up := func(from, upto time.Duration) *node {
			until(start, from)
			n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = time.Hour })
			n.add("job", "0 12 * * *", r.fn(n, sec))
			n.start()
			until(start, upto)
			return n
		}
		n := up(0, min)
		wantNil(t, "Pause", n.Pause(t.Context(), "job", "for good"))
		n.end()
		up(200*day, 200*day+2*time.Hour).end()
		up(400*day, 400*day+20*time.Hour).end()
		n = up(600*day, 600*day+20*time.Hour)
		r.wantTicks(t, start)
		e, err := n.Entry(t.Context(), "job")
		if wantNil(t, "Entry", err); !e.Paused || len(e.Pauses) != 1 || e.Pauses[0].Note != "for good" || e.Counts.Paused == 0 {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// The ledger of a job with a tick a year outlasts an outage at that tick: a node that is up has kept the ledger.
func TestATickAYearIsCaughtUpWith(t *testing.T) {
	for name, opts := range map[string][]scheduler.Option{"alone": nil, "at once": {scheduler.MaxConcurrent(2)}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start, day := time.Now(), 24*time.Hour // 2000 is a leap year
				n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = time.Hour })
				n.add("job", "0 0 2 1 *", r.fn(n, sec), opts...)
				n.start()
				until(start, 25*time.Hour)
				n.end()
				until(start, 5*day)
				n = c.node(0, func(cfg *scheduler.Config) { cfg.Sync = time.Hour })
				n.add("job", "0 0 2 1 *", r.fn(n, sec), opts...)
				n.start()
				until(start, 13*day)
				n.end()
				until(start, 367*day+10*min)
				n = c.node(0)
				n.add("job", "0 0 2 1 *", r.fn(n, sec), opts...)
				n.start()
				until(start, 367*day+11*min)
				r.wantTicks(t, start, day, 367*day)
			})
		})
	}
}

// A ledger that the store has dropped is not a new job, as the list of jobs says.
func TestALedgerThatIsGoneIsReported(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start, day := time.Now(), 24*time.Hour
		neighbour := "n"
		for roster.Page(neighbour) != roster.Page("job") { // on the same page of the list
			neighbour += "n"
		}
		up := func(at time.Duration, name string) {
			until(start, at)
			n := c.node(0)
			n.add(name, "@yearly", r.fn(n, sec))
			n.start()
			until(start, at+min)
			n.end()
		}
		const gone = "the ledger of the job is gone"
		up(0, "job")
		up(day, "job")
		up(200*day, neighbour)
		if strings.Contains(c.logs.String(), gone) {
			t.Errorf("the log says %q of a new job", gone)
		}
		up(368*day, "job")
		if !strings.Contains(c.logs.String(), gone) {
			t.Errorf("the log does not say %q", gone)
		}
	})
}

// Without the record of pauses, times still count from the store's clock.
func TestEntryWithoutTheRecordOfPauses(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		c.write(n, "%cron:cron:job", `{"v":1,"spec":"CRON_TZ=UTC 0 12 * * *","last":946641600000,"counts":{}}`)
		e, err := n.Entry(t.Context(), "job")
		if wantNil(t, "Entry", err); !e.Next.Equal(start.Add(12 * time.Hour)) {
			t.Errorf("next %v", e.Next)
		}
		ticks, err := n.NextTicks(t.Context(), "job", 1)
		if wantNil(t, "NextTicks", err); !ticks[0].At.Equal(start.Add(12 * time.Hour)) {
			t.Errorf("next %v", ticks)
		}
		wantNil(t, "Close", n.locks.Close(t.Context()))
	})
}
