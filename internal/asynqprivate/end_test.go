package asynqprivate

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/scriptstep"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// ending is a job that has its key and whose task is active, and a job that waits for the key.
type ending struct {
	t     *testing.T
	rdb   *redis.Client
	in    *Inspector
	store driver.Store
	req   driver.ReleaseRequest
}

const endKey = "wallet:1"

// eachEnding calls f with a job that ends, and a job that waits, whose queue is that of the second parameter.
func eachEnding(t *testing.T, queue string, f func(e *ending)) {
	for _, backend := range []struct {
		name   string
		client func(*testing.T) *redis.Client
	}{
		{"miniredis", func(t *testing.T) *redis.Client { return connect(t, redistest.MiniServer(t)) }},
		{"redis", func(t *testing.T) *redis.Client { return redistest.Shared(t).Client(t) }},
	} {
		t.Run(backend.name, func(t *testing.T) {
			t.Parallel()
			rdb := backend.client(t)
			store := testkit.Must(redisstore.New(rdb, nil))
			t.Cleanup(func() { _ = store.Close() })
			e := &ending{t: t, rdb: rdb, store: store, in: New(asynq.NewInspectorFromRedisClient(rdb))}
			client := asynq.NewClientFromRedisClient(rdb)
			e.must(client.Enqueue(asynq.NewTask("job", nil), asynq.TaskID("a")))
			e.must(client.Enqueue(asynq.NewTask("job", nil), asynq.TaskID("b"), asynq.Queue(queue), asynq.ProcessIn(time.Hour)))
			take := func(id, queue string) driver.TakeRequest {
				return driver.TakeRequest{
					Key: endKey, Owner: "owner " + id, Nonce: "take-of-job-" + id, Job: queue + "/" + id,
					Reserve: time.Minute, Retain: time.Minute, Patience: time.Minute,
				}
			}
			e.must(store.Take(t.Context(), []driver.TakeRequest{take("a", "default"), take("b", queue)}))
			got, err := store.Resume(t.Context(), []driver.ResumeRequest{{
				Key: endKey, Owner: "owner a", Nonce: "resume-of-a-1", TTL: time.Minute, Retain: time.Minute, Job: "default/a", Reserve: time.Minute,
			}})
			e.must(got, err)
			e.req = driver.ReleaseRequest{
				Term: driver.Term{Key: endKey, Owner: "owner a", Fence: got[0].Fence}, Nonce: "release-of-a1", Job: "default/a", Done: true,
				Retain: time.Minute, Starts: true,
			}
			e.active("a")
			f(e)
		})
	}
}

func (e *ending) must(_ any, err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// active does what asynq does when it delivers a task.
func (e *ending) active(id string) {
	e.must(e.rdb.HSet(e.t.Context(), "asynq:{default}:t:"+id, "state", "active").Result())
}

// done does what asynq does when the job a has succeeded.
func (e *ending) done() {
	e.must(e.rdb.Del(e.t.Context(), "asynq:{default}:t:a").Result())
	e.must(e.rdb.Incr(e.t.Context(), "asynq:{default}:processed").Result())
}

func (e *ending) release() (driver.Reply, error) {
	e.t.Helper()
	end := e.in.Ends(e.store, "default", "a")
	if end == nil {
		e.t.Fatal("there is no Releaser")
	}
	got, err := end(e.t.Context(), []driver.ReleaseRequest{e.req})
	return got[0], err
}

// want checks the answer to a release, who has the key, and the state of the job that waits.
func (e *ending) want(got driver.Reply, err error, reply driver.Reply, fails error, owner string, state asynq.TaskState) {
	e.t.Helper()
	if !reflect.DeepEqual(got, reply) || !errors.Is(err, fails) {
		e.t.Errorf("the release returns %+v and %v, want %+v and %v", got, err, reply, fails)
	}
	recs, err := e.store.Inspect(e.t.Context(), driver.InspectRequest{Keys: []string{endKey}})
	e.must(nil, err)
	if recs[0].Owner != owner {
		e.t.Errorf("the key has %q, want %q", recs[0].Owner, owner)
	}
	if info, err := e.in.GetTaskInfo("default", "b"); err == nil && info.State != state {
		e.t.Errorf("the task of the next job is %s, want %s", info.State, state)
	}
}

func TestEndOfAJobRunsTheNext(t *testing.T) {
	t.Parallel()
	eachEnding(t, "default", func(e *ending) {
		e.done()
		got, err := e.release()
		e.want(got, err, driver.Reply{Outcome: driver.OutcomeOK}, nil, "owner b", asynq.TaskStatePending)
		if ids := e.rdb.LRange(t.Context(), "asynq:{default}:pending", 0, 0).Val(); len(ids) != 1 || ids[0] != "b" {
			t.Errorf("last among the pending tasks is %q, want b", ids)
		}
		got, err = e.release() // whose answer was lost
		e.want(got, err, driver.Reply{Outcome: driver.OutcomeOK}, nil, "owner b", asynq.TaskStatePending)
		if n := e.rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 2 { // a, whose state was set by hand, and b
			t.Errorf("%d tasks are pending, want 2", n)
		}
	})
}

func TestEndOfAJobThatIsNotWritten(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]func(e *ending){
		"active": func(*ending) {},
		"retry": func(e *ending) {
			e.must(e.rdb.HSet(context.Background(), "asynq:{default}:t:a", "state", "retry").Result())
		},
		"archived": func(e *ending) {
			e.must(e.rdb.HSet(context.Background(), "asynq:{default}:t:a", "state", "archived").Result())
		},
		"asynq's keys are elsewhere": func(e *ending) {
			e.must(e.rdb.Del(context.Background(), "asynq:{default}:t:a").Result())
		},
		"not a task": func(e *ending) {
			e.done()
			e.must(e.rdb.Set(context.Background(), "asynq:{default}:t:a", "text", 0).Result())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachEnding(t, "default", func(e *ending) {
				written(e)
				got, err := e.release()
				e.want(got, err, driver.Reply{}, scriptstep.ErrNotYet, "owner a", asynq.TaskStateScheduled)
			})
		})
	}
}

func TestEndOfAJobThatIsKept(t *testing.T) {
	t.Parallel()
	eachEnding(t, "default", func(e *ending) {
		e.must(e.rdb.HSet(t.Context(), "asynq:{default}:t:a", "state", "completed").Result())
		got, err := e.release()
		e.want(got, err, driver.Reply{Outcome: driver.OutcomeOK}, nil, "owner b", asynq.TaskStatePending)
	})
}

// The caller starts the next job if the step cannot.
func TestEndOfAJobWhoseNextIsNotScheduled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue string
		as    asynq.TaskState
		set   func(e *ending)
	}{
		"active":        {"default", asynq.TaskStateActive, func(e *ending) { e.active("b") }},
		"in no list":    {"default", asynq.TaskStateScheduled, func(e *ending) { e.must(e.rdb.Del(context.Background(), "asynq:{default}:scheduled").Result()) }},
		"no task":       {"default", 0, func(e *ending) { e.must(e.rdb.Del(context.Background(), "asynq:{default}:t:b").Result()) }},
		"escaped queue": {"50%25", 0, func(*ending) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachEnding(t, c.queue, func(e *ending) {
				e.done()
				c.set(e)
				got, err := e.release()
				e.want(got, err, driver.Reply{Outcome: driver.OutcomeOK, Next: c.queue + "/b"}, nil, "owner b", c.as)
			})
		})
	}
}

// A queue's name may have what Lua reads as a pattern or as the end of a text.
func TestEndOfAJobWithAStrangeQueue(t *testing.T) {
	t.Parallel()
	const queue = `it's [a] "queue"\n.*`
	eachEnding(t, queue, func(e *ending) {
		e.done()
		got, err := e.release()
		e.want(got, err, driver.Reply{Outcome: driver.OutcomeOK}, nil, "owner b", asynq.TaskStatePending)
		info, err := e.in.GetTaskInfo(queue, "b")
		if e.must(nil, err); info.State != asynq.TaskStatePending {
			t.Errorf("the next task is %s, want pending", info.State)
		}
	})
}

// ables are the clients with which the locks may be.
type ables map[string]struct {
	locks redis.UniversalClient
	able  bool
}

func (a ables) check(t *testing.T, in *Inspector) {
	for name, c := range a {
		t.Run(name, func(t *testing.T) {
			store := testkit.Must(redisstore.New(c.locks, nil))
			t.Cleanup(func() { _, _ = store.Close(), c.locks.Close() })
			if got := in.Ends(store, "default", "a") != nil; got != c.able {
				t.Errorf("able is %t, want %t", got, c.able)
			}
		})
	}
}

func TestNoStepsInAnotherRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	ables{
		"the same client":       {rdb, true},
		"another with a Dialer": {redistest.MiniClient(t, redistest.Mini(t)), false},
		"no Dialer":             {redis.NewClient(&redis.Options{Addr: rdb.Options().Addr}), false},
		"a cluster":             {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{rdb.Options().Addr}}), false},
	}.check(t, New(asynq.NewInspectorFromRedisClient(rdb)))

	usual := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DB: 2})
	t.Cleanup(func() { _ = usual.Close() })
	ables{
		"the same address":   {redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DB: 2, Password: "another", PoolSize: 3}), true},
		"another user":       {redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DB: 2, Username: "locks"}), false},
		"a user of its own":  {redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DB: 2, CredentialsProvider: func() (string, string) { return "", "" }}), false},
		"another address":    {redis.NewClient(&redis.Options{Addr: "127.0.0.1:2", DB: 2}), false},
		"another database":   {redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), false},
		"through a Sentinel": {redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, DB: 2}), false},
	}.check(t, New(asynq.NewInspectorFromRedisClient(usual)))
}

// A store of another kind, or around one of package redisstore, knows no steps.
func TestNoStepsInAnotherStore(t *testing.T) {
	t.Parallel()
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	store := testkit.Must(redisstore.New(rdb, nil))
	t.Cleanup(func() { _ = store.Close() })
	in := New(asynq.NewInspectorFromRedisClient(rdb))
	for name, other := range map[string]driver.Store{"nil": nil, "around": struct{ driver.Store }{store}} {
		if in.Ends(other, "default", "a") != nil {
			t.Errorf("%s: there is a Releaser", name)
		}
	}
}
