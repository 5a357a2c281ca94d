package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
)

// another returns the Client of another process on the same Redis, with the locks in the same store.
func (w *web) another(t *testing.T) *handoff.Client {
	t.Helper()
	c, err := handoff.NewClient(newLocker(t, w.store), w.client, w.inspector, &handoff.Config{Logger: w.log.JSON()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("close the Client: %v", err)
		}
	})
	return c
}

// Many callers replace a job that waits, at once. Each one replaces the job of another: no payload is refused. In one
// process the last caller replaces last, so the newest payload is the one that is left.
func TestCrowdThatReplacesAJobThatWaits(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	const callers, slow = 60, 10 * time.Millisecond
	for policy, onConflict := range map[string]handoff.OnConflict{"Replace": handoff.Replace, "KeepLast": handoff.KeepLast} {
		for _, processes := range []int{1, 4} {
			for _, many := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d processes, many %t", policy, processes, many), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						mini := redistest.Mini(t)
						rdb := redis.NewClient(&redis.Options{
							Addr: "127.0.0.1:1", PoolSize: 2 * callers, // go-redis's wait for a connection does not work in bubbles
							Dialer: func(context.Context, string, string) (net.Conn, error) { return mini.Dial() },
						})
						t.Cleanup(func() { _ = rdb.Close() })
						w := newWeb(t, rdb, nil)
						w.warm(t)
						u := handoff.Unique{Key: "k", OnConflict: onConflict}
						w.first(t, u)
						// Every call to the locks' store takes a while, or all of a wave would be done in the same instant.
						for _, call := range []string{faultstore.Take, faultstore.Resume, faultstore.Park} {
							w.store.Set(faultstore.Fault{Mode: faultstore.Pass, Before: func() { time.Sleep(slow) }}, call)
						}
						clients := []*handoff.Client{w.jobs}
						for len(clients) < processes {
							clients = append(clients, w.another(t))
						}
						var crowd sync.WaitGroup
						for i := range callers {
							crowd.Go(func() {
								time.Sleep(time.Duration(i) * time.Microsecond)
								task := asynq.NewTask("export", fmt.Append(nil, i), asynq.ProcessIn(time.Hour))
								c := clients[i%processes]
								if !many {
									if got, err := c.Enqueue(t.Context(), u, task); err != nil || got.Replaced == nil {
										t.Errorf("caller %d: %+v, %v; want another's job replaced", i, got, err)
									}
									return
								}
								got, err := c.EnqueueMany(t.Context(), []handoff.Item{{Task: task, How: u}})
								if err != nil || got[0].Err != nil || got[0].Replaced == nil {
									t.Errorf("caller %d: %+v, %v; want another's job replaced", i, got, err)
								}
							})
						}
						crowd.Wait()
						left, err := w.inspector.ListScheduledTasks("default")
						if err != nil || len(left) != 1 {
							t.Fatalf("%d tasks are left, %v; want one", len(left), err)
						}
						if processes == 1 && string(left[0].Payload) != fmt.Sprint(callers-1) {
							t.Errorf("the job of caller %s is left, want that of the last", left[0].Payload)
						}
						w.store.Clear()
						w.wantOnly(t, u, handoff.Result{Task: left[0]})
					})
				})
			}
		}
	}
}

// A call that replaces a job goes on while another call replaces the job, for ten seconds. Its error then says that another
// try is worth while at once.
func TestReplacementByACallThatTakesLong(t *testing.T) {
	for policy, onConflict := range map[string]handoff.OnConflict{"Replace": handoff.Replace, "KeepLast": handoff.KeepLast} {
		for _, takes := range []time.Duration{8 * time.Second, time.Minute} {
			t.Run(policy+" "+takes.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					w.warm(t)
					u := handoff.Unique{Key: "k", OnConflict: onConflict}
					first := w.first(t, u)
					env, _, err := envelopekit.Read(w.task(t, first.Queue, first.ID).Headers)
					if err != nil {
						t.Fatal(err)
					}
					other, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob("default/first"))
					if err != nil {
						t.Fatal(err)
					}
					time.AfterFunc(takes, func() {
						if _, err := other.Park(context.Background(), joblock.ForJob("default/first")); err != nil {
							t.Error(err)
						}
					})
					// Others of the process that come meanwhile wait for their turn, and end at the same time.
					var calls sync.WaitGroup
					for i := range 3 {
						calls.Go(func() {
							start := time.Now()
							got, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil, asynq.ProcessIn(time.Hour)))
							if takes < 10*time.Second {
								if err != nil || got.Replaced == nil {
									t.Errorf("call %d: %+v, %v; want a job replaced", i, got, err)
								}
								return
							}
							if !errors.Is(err, joblock.ErrHeld) || !strings.Contains(err.Error(), "try again") {
								t.Errorf("call %d: %+v, %v; want an ErrHeld that says to try again", i, got, err)
							}
							if f := handoff.RefusalOf(t.Context(), err); f.Status != http.StatusTooManyRequests || f.RetryAfter != time.Second {
								t.Errorf("call %d: the answer is %+v, want 429 with a second", i, f)
							}
							if took := time.Since(start); took < 10*time.Second || took > 11*time.Second {
								t.Errorf("call %d took %s, want ten seconds", i, took)
							}
						})
					}
					calls.Wait()
					if takes > 10*time.Second {
						w.task(t, "default", "first")
						time.Sleep(takes)
					}
				})
			})
		}
	}
}

// The end of a caller's context ends its wait for its turn.
func TestContextEndsWhileWaitingForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		first := w.first(t, replaceK)
		w.store.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: func() { time.Sleep(time.Second) }}, faultstore.Resume)
		var calls sync.WaitGroup
		calls.Go(func() {
			if got, err := w.second(t.Context(), replaceK); err != nil || got.Replaced == nil {
				t.Errorf("%+v, %v; want the first job replaced", got, err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if got, err := w.jobs.Enqueue(ctx, replaceK, asynq.NewTask("export", nil)); !errors.Is(err, context.DeadlineExceeded) || got.Task != nil {
			t.Errorf("%+v, %v; want the end of the context", got, err)
		}
		calls.Wait()
		w.wantNoTask(t, first)
	})
}
