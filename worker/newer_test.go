package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// newerText is what the log says of a header that only a newer build can read.
const newerText = "a newer build of the toolkit has written which locks a task carries"

// newer returns a header for a task as a newer build may write it, sealed with the right key and with a word more. The
// header readable has the same length, and this build can read it. So upgrade can turn one into the other, as if a worker
// of the newer build had come.
func (r *rig) newer(id string, env envelope.Envelope) (newer, readable string) {
	r.t.Helper()
	text, err := seal.Text(r.header(id, env))
	if err != nil {
		r.t.Fatal(err)
	}
	words := strings.SplitN(text, " ", 3)
	return r.reseal(words[0] + " " + words[1] + " x " + words[2]), r.reseal(words[0] + " 00" + words[1] + " " + words[2])
}

func (r *rig) reseal(text string) string {
	r.t.Helper()
	header, err := (*core.Locker)(r.locks).Ring().Seal(context.Background(), text)
	if err != nil {
		r.t.Fatal(err)
	}
	return header
}

// age gives a task that waits a header of another version, and returns what upgrade needs to take that back.
func (r *rig) age(id string) (newer, readable string) {
	r.t.Helper()
	return r.ageBy(id, r.laterText)
}

func (r *rig) laterText(header string) string {
	r.t.Helper()
	text, err := seal.Text(header)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.reseal("2" + text[1:])
}

// ageBy is age with a function that makes another header, of the same length.
func (r *rig) ageBy(id string, other func(header string) string) (newer, readable string) {
	r.t.Helper()
	readable = r.taskHeaders(id)[envelope.Header]
	newer = other(readable)
	r.upgrade(id, readable, newer)
	return newer, readable
}

// upgrade replaces the header of a task by another one of the same length, in asynq's Redis.
func (r *rig) upgrade(id, from, to string) {
	r.t.Helper()
	ctx, name := context.Background(), "asynq:{"+queue+"}:t:"+id
	msg, err := r.rdb.HGet(ctx, name, "msg").Bytes()
	if err != nil {
		r.t.Fatal(err)
	}
	if len(from) != len(to) || bytes.Count(msg, []byte(from)) != 1 {
		r.t.Fatalf("%s does not have the header to replace", id)
	}
	if err := r.rdb.HSet(ctx, name, "msg", bytes.Replace(msg, []byte(from), []byte(to), 1)).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// ownStore runs f on a rig whose locks are in a Redis of their own. The function obscure makes the record
// of a key one that only a newer build can read, and returns a function that takes that back.
func ownStore(t *testing.T, f func(r *rig, obscure func(key string) (restore func()))) {
	t.Helper()
	testkit.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		redistest.Ran(t, redistest.MiniBackend())
		mini, locks := redistest.Mini(t), redistest.Mini(t)
		rdb := redistest.MiniClient(t, locks)
		r := newRig(t, redistest.MiniClient(t, mini), testkit.Must(redisstore.New(redistest.MiniClient(t, locks), nil)), ttl)
		r.mini = mini
		r.patience, r.step = 6*time.Hour, 500*time.Millisecond
		f(r, func(key string) func() {
			name := "joblock:" + key
			put := func(from, to string) {
				t.Helper()
				text, err := rdb.Get(t.Context(), name).Result()
				if err != nil || !strings.HasPrefix(text, from) {
					t.Fatalf("the record of %s is %.20q, %v; want one that begins with %q", key, text, err, from)
				}
				if err := rdb.Set(t.Context(), name, to+text[len(from):], redis.KeepTTL).Err(); err != nil {
					t.Fatal(err)
				}
			}
			put("job", "jot")
			return func() { put("jot", "job") }
		})
	})
}

// A keeper goes on with a lock whose record it could not read for a while.
func TestKeeperKeepsAnEyeOnTheRecordOfANewerBuild(t *testing.T) {
	ownStore(t, func(r *rig, obscure func(string) func()) {
		var p probe
		r.keep(r.locks, worker.Config{})
		r.enqueue("a", 0, asynq.ProcessIn(time.Hour))
		restore := obscure("key-a") // before the keeper has seen it
		time.Sleep(reserve / 2)
		if st := r.status("key-a"); st.State != joblock.StateForeign {
			t.Errorf("the lock is %s", st.State)
		}
		restore()
		time.Sleep(3 * reserve) // the reservation has been extended again and again
		r.wantState("key-a", joblock.StateParked, "a")
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantEnded("key-a", "job done")
		r.wantTrustErrors("this build cannot read the record of a task's lock")
	})
}

// A job whose lock has a record of a newer build does not run, and is not charged, while the record is like that.
func TestTaskWhoseRecordIsOfANewerBuild(t *testing.T) {
	for name, s := range map[string]service{
		"carried":               {},
		"carried, no Configure": {unconfigure: true},
		"WithoutOverlapping": {use: []func(*worker.Worker) asynq.MiddlewareFunc{func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(*asynq.Task) string { return "busy" }, nil)
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			ownStore(t, func(r *rig, obscure func(string) func()) {
				var p probe
				r.enqueue("a", 0)
				r.release(r.hold("busy"))
				key := "key-a"
				if s.use != nil {
					key = "busy"
				}
				restore := obscure(key)
				r.serve(s, p.handler(func(ctx context.Context, _ int) error {
					if len(keysHeld(ctx)) == 0 {
						t.Error("the job has no lock")
					}
					return nil
				}))
				time.Sleep(ttl / 2)
				r.wantRuns(&p, 0)
				if _, info := r.task("a"); info.Retried != 0 || info.State == asynq.TaskStateArchived {
					t.Errorf("the task is %s, and %d retries were charged", info.State, info.Retried)
				}
				restore()
				r.untilTask("a", "gone")
				r.wantRuns(&p, 1)
				r.wantEnded("key-a", "job done")
				r.wantTrustErrors("this build cannot read the record of a lock")
			})
		})
	}
}

// A worker has died in the last attempt that the author allows. That the record is not readable for a while makes no further one.
func TestNoAttemptMoreForTheRecordOfANewerBuild(t *testing.T) {
	ownStore(t, func(r *rig, obscure func(string) func()) {
		var p probe
		r.crash("a", r.enqueue("a", 0))
		restore := obscure("key-a")
		r.serve(service{}, p.handler(succeed))
		time.Sleep(3 * time.Minute)
		restore()
		time.Sleep(10 * time.Minute)
		r.wantRuns(&p, 0)
		if _, info := r.task("a"); info == nil || info.State != asynq.TaskStateArchived {
			t.Errorf("the task is %+v, want it archived", info)
		}
	})
}

// wantNewerReported checks that the log has lines about newer headers, no more than one a minute, and no other errors.
func (r *rig) wantNewerReported() {
	r.t.Helper()
	r.wantTrustErrors(newerText)
	if log := r.log.String(); !strings.Contains(log, "this build cannot read it: ") || !strings.Contains(log, "a worker of that build gets it") {
		r.t.Errorf("the log does not say what to do:\n%s", log)
	}
}

// A task whose header a newer build has written never runs without its locks, is neither charged nor lost, and runs when
// a reader of the header comes.
func TestTaskOfANewerBuildWaitsForAReader(t *testing.T) {
	for name, c := range map[string]struct {
		service service
		lists   func(e *envelope.Envelope)
		sealed  bool // the newer build has another seal, too
		overlap bool // the server has WithoutOverlapping and no Middleware
	}{
		"another seal":              {sealed: true},
		"to the end":                {},
		"from start":                {lists: func(e *envelope.Envelope) { e.FromStart = e.Tokens }},
		"gone is skipped":           {service: service{worker: worker.Config{OnLockLost: skipping.decide}}},
		"WithoutOverlapping around": {service: service{unguarded: true}, overlap: true},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				var p probe
				env := envelope.Envelope{Tokens: r.park("a", "key-a")}
				if c.lists != nil {
					c.lists(&env)
				}
				newer, readable := r.newer("a", env)
				if c.sealed {
					newer = "2" + readable[1:]
				}
				r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: newer}), 1)
				if c.overlap {
					c.service.use = append(c.service.use, func(w *worker.Worker) asynq.MiddlewareFunc {
						return w.WithoutOverlapping(func(*asynq.Task) string { return "key-a" }, nil)
					})
				}
				r.serve(c.service, p.handler(func(ctx context.Context, _ int) error {
					if keys := keysHeld(ctx); !c.overlap && !slices.Equal(keys, []string{"key-a"}) {
						t.Errorf("the job has %q", keys)
					}
					return nil
				}))
				time.Sleep(2 * reserve)
				r.wantRuns(&p, 0)
				r.wantState("key-a", joblock.StateParked, "a")
				r.untilRetry("a", 0)
				if _, info := r.task("a"); !strings.Contains(info.LastErr, "a newer build of the toolkit") {
					t.Errorf("asynqmon shows %q", info.LastErr)
				}
				r.upgrade("a", newer, readable)
				r.untilTask("a", "gone")
				r.wantRuns(&p, 1)
				if !c.overlap {
					r.wantEnded("key-a", "job done")
				}
				r.wantNewerReported()
			})
		})
	}
}

// Without Configure the task waits in place, as for a store that does not answer. asynq's timeout charges a retry.
func TestTaskOfANewerBuildWaitsInPlace(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		newer, readable := r.newer("a", envelope.Envelope{Tokens: r.park("a", "key-a"), Retries: 1})
		r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: newer}), 2, asynq.Timeout(5*time.Minute))
		r.serve(service{unconfigure: true}, p.handler(succeed))
		time.Sleep(4 * time.Minute)
		r.untilRetry("a", 1)
		r.wantRuns(&p, 0)
		r.upgrade("a", newer, readable)
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantEnded("key-a", "job done")
	})
}

// A keeper that cannot read the header of a job that has failed does not pass its key on: the sequence may be halted.
func TestKeeperKeepsTheKeyOfANewerBuild(t *testing.T) {
	for name, other := range map[string]func(r *rig, header string) string{
		"another text": (*rig).laterText,
		"another seal": func(_ *rig, header string) string { return "2" + header[1:] },
		"a lost key":   func(_ *rig, header string) string { return header[:2] + "0123456789abcdef" + header[18:] },
	} {
		t.Run(name, func(t *testing.T) { testKeeperKeepsTheKey(t, other) })
	}
}

func testKeeperKeepsTheKey(t *testing.T, other func(r *rig, header string) string) {
	kept(t, func(r *rig) {
		l := r.line()
		var p probe
		var healed atomic.Bool
		l.add(handoff.Sequence{HaltOnFailure: true}, "1", "2", "3")
		r.serve(service{}, p.handler(only("2", func(context.Context, int) error {
			if healed.Load() {
				return nil
			}
			return errBoom
		})))
		r.untilTask("2", "archived")
		time.Sleep(time.Second)
		newer, readable := r.ageBy("2", func(header string) string { return other(r, header) })
		time.Sleep(2 * reserve)
		r.wantState(seqKey, joblock.StateParked, "2")
		l.wantLine("3")
		l.run("2")
		time.Sleep(10 * time.Minute)
		l.wantOrder(&p, "1", "2", "2")
		healed.Store(true)
		r.untilTask("2", "retry", "archived")
		r.upgrade("2", newer, readable)
		if state, _ := r.task("2"); state == "archived" {
			l.run("2")
		}
		r.untilTask("3", "gone")
		l.wantOrder(&p, "1", "2", "2", "2", "3")
		if log := r.log.String(); !strings.Contains(log, "The task may halt a sequence, so its lock stays locked") {
			t.Errorf("the keeper's log does not say why the key stays:\n%s", log)
		}
	})
}

// A completed task of a newer build has no part in a sequence that halts: its lock is freed.
func TestKeeperFreesTheLockOfACompletedTaskOfANewerBuild(t *testing.T) {
	kept(t, func(r *rig) {
		token := r.enqueue("a", 0, asynq.Retention(time.Hour))
		r.age("a")
		r.crash("a", token)
		(&line{rig: r}).endActive("a", "completed")
		r.untilFree("key-a")
		r.wantFreed("key-a", "keeper: the task is completed")
	})
}

// The members of a group keep their locks, and are not made into a task, while one of them cannot be read.
func TestGroupWithAMemberOfANewerBuild(t *testing.T) {
	for told, other := range map[string]func(newer, readable string) string{
		newerText:        func(newer, _ string) string { return newer },
		"not known here": func(_, readable string) string { return readable[:2] + "0123456789abcdef" + readable[18:] },
	} {
		t.Run(told, func(t *testing.T) { testGroupWithAMember(t, told, other) })
	}
}

func testGroupWithAMember(t *testing.T, told string, other func(newer, readable string) string) {
	kept(t, func(r *rig) {
		var p probe
		r.enqueue("b", 0, asynq.Group("g"))
		newer, readable := r.newer("a", envelope.Envelope{Tokens: r.park("a", "key-a")})
		newer = other(newer, readable)
		r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: newer}), 1, asynq.Group("g"))
		keys := make(chan string, 10)
		r.group(nil, p.handler(func(ctx context.Context, _ int) error {
			keys <- fmt.Sprint(keysHeld(ctx))
			return nil
		}))
		r.until("it was logged", func() bool { return strings.Contains(r.log.String(), told) })
		began := time.Now()
		time.Sleep(10 * time.Minute)
		r.wantRuns(&p, 0)
		for _, id := range []string{"a", "b"} {
			r.wantTask(id, "aggregating", 0)
			r.wantState("key-"+id, joblock.StateParked, id)
		}
		if n := strings.Count(r.log.String(), "could not be moved"); n != 1 {
			t.Errorf("reported %d times in %s that the locks of the group were not moved:\n%s", n, time.Since(began), r.log)
		}
		r.upgrade("a", newer, readable)
		r.again("c")
		r.untilTask("a", "gone")
		r.until("the group's task ran", func() bool { return p.count() == 1 })
		if got := <-keys; got != "[key-a key-b]" {
			t.Errorf("the group's task has %s", got)
		}
		r.wantTrustErrors(told)
	})
}

// A server that cannot read the header takes up the job of a crashed worker. The job comes back after the usual delay,
// and who can read the header ends it as ever.
func TestCrashOfAJobOfANewerBuild(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		token := r.enqueue("a", 0)
		newer, readable := r.age("a")
		r.crash("a", token)
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		r.untilTask("a", "retry")
		r.wantRuns(&p, 0)
		r.wantHeld("key-a")
		r.upgrade("a", newer, readable)
		r.untilTask("a", "archived")
		r.wantRuns(&p, 0)
		r.untilFree("key-a")
		r.wantTask("a", "archived", 1)
	})
}
