package worker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// dieReplacing is an enqueue whose process dies when the task left is in its queue, and the task old, which it was to
// replace, is not deleted yet.
func (l *line) dieReplacing(old, left string, opts ...asynq.Option) {
	l.t.Helper()
	lock, err := l.locks.Resume(context.Background(), l.tokenOf(old, "k%next"), joblock.ForJob(envelope.Job(queue, old)))
	if err != nil {
		l.t.Fatal(err)
	}
	(*core.Lock)(lock).StopRenewing()
	next := lock.Token()
	run, err := joblock.NewToken("k", core.Token(next).Owner(), core.Token(next).TTL())
	if err != nil {
		l.t.Fatal(err)
	}
	l.submit(left, l.sealed([]byte(left), envelope.Envelope{
		Tokens: []joblock.Token{next, run}, UntilStart: []joblock.Token{next}, FromStart: []joblock.Token{run}, Newest: []joblock.Token{next}, Retries: 1,
	}), 2, opts...)
}

// newestFirst are the ways to enqueue of which an older payload must not run after a newer one.
var newestFirst = map[string]handoff.How{
	"KeepLast":         handoff.Unique{Key: "k", OnConflict: handoff.KeepLast},
	"Cooldown":         handoff.Unique{Key: "k", OnConflict: handoff.KeepLast, Cooldown: 20 * time.Second},
	"CancelInProgress": handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress},
	"Debounce":         handoff.Debounce{Key: "k", Wait: 5 * time.Second},
	"Leading":          handoff.Debounce{Key: "k", Wait: 5 * time.Second, Leading: true},
	"Chain":            handoff.Chain{Under: handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}},
}

// An enqueue that dies half-way leaves a job. A newer job starts, and the job that is left comes to run later: it does not
// run, whatever has happened to the key since.
func TestJobLeftByADeadEnqueueDoesNotRunAfterANewerOne(t *testing.T) {
	for what, c := range map[string]struct {
		due   time.Duration // when the job that is left comes
		long  time.Duration // how long the newer job runs
		since func(r *rig)  // after the start of the newer job
	}{
		"soon after":        {due: 12 * time.Second},
		"a minute after":    {due: time.Minute},
		"during a long run": {due: 12 * time.Second, long: 20 * time.Minute},
		"after a long run":  {due: 5 * time.Minute, long: 4 * time.Minute},
		"while another dead one waits": {due: 40 * time.Second, since: func(r *rig) {
			r.untilFree("k%next")
			r.parkOwn("k%next", "dead")
		}},
		"when the keeper has freed the key of another dead one": {due: 4 * time.Minute, since: func(r *rig) {
			r.untilFree("k%next")
			r.parkOwn("k%next", "dead")
			r.untilFree("k%next")
		}},
		"when an operator has freed the key": {due: 40 * time.Second, since: func(r *rig) {
			r.untilFree("k%next")
			r.parkOwn("k%next", "dead")
			if err := r.locks.ForceRelease(context.Background(), "k%next", joblock.Reason("test")); err != nil {
				r.t.Error(err)
			}
		}},
		"when a request has had the key": {due: 40 * time.Second, since: func(r *rig) {
			r.untilFree("k")
			r.release(r.hold("k"))
		}},
	} {
		for name, how := range newestFirst {
			t.Run(fmt.Sprint(what, "/", name), func(t *testing.T) {
				kept(t, func(r *rig) {
					l := r.line()
					var d diary
					add := func(payload string) string {
						done, err := l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, []byte(payload)))
						if err != nil {
							t.Fatal(err)
						}
						return done.Task.ID
					}
					old := add("old")
					l.dieReplacing(old, "left", asynq.ProcessIn(ttl+c.due))
					time.Sleep(ttl)
					add("new")
					r.serve(service{}, d.handler(func(context.Context, string) error {
						time.Sleep(c.long)
						return nil
					}))
					r.until("the newer one runs", func() bool { return d.has("start new") })
					if c.since != nil {
						c.since(r)
					}
					r.untilTask("left", "gone")
					r.until("the newer one has ended", func() bool { return d.has("end new") })
					d.want(t, "start new", "end new")
					r.until("all is free", func() bool { return !r.status("k").Locked() && !r.status("k%next").Locked() })
					add("next") // the key is as good as ever
					r.until("the next one has run", func() bool { return d.has("end next") })
					d.want(t, "start new", "end new", "start next", "end next")
				})
			})
		}
	}
}

// No job is lost for the sake of a newer one that does not start.
func TestNewestAcknowledgedJobRuns(t *testing.T) {
	for what, meanwhile := range map[string]func(l *line, id string){
		"a dead enqueue has not sent its task": func(l *line, _ string) { l.untilFree("k%next") },
		"its lock was freed by hand, and another one died": func(l *line, _ string) {
			if err := l.locks.ForceRelease(context.Background(), "k%next", joblock.Reason("test")); err != nil {
				l.t.Error(err)
			}
			l.parkOwn("k%next", "dead")
		},
	} {
		for name, how := range newestFirst {
			t.Run(fmt.Sprint(what, "/", name), func(t *testing.T) {
				kept(t, func(r *rig) {
					l := r.line()
					var d diary
					if what == "a dead enqueue has not sent its task" {
						r.parkOwn("k%next", "dead")
						meanwhile(l, "")
					}
					done, err := l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, []byte("new")))
					if err != nil {
						t.Fatal(err)
					}
					if what != "a dead enqueue has not sent its task" {
						meanwhile(l, done.Task.ID)
					}
					r.serve(service{}, d.handler(func(context.Context, string) error { return nil }))
					r.untilTask(done.Task.ID, "gone")
					d.want(t, "start new", "end new")
				})
			})
		}
	}
}

// A job that has run may run again after a newer one, if an operator wants that.
func TestJobThatAnOperatorRunsAgainAfterANewerOne(t *testing.T) {
	for name, fail := range map[string]error{"completed": nil, "archived": errBoom} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var d diary
				r.serve(service{}, d.handler(func(_ context.Context, name string) error {
					if name == "a" {
						return fail
					}
					return nil
				}))
				for _, id := range []string{"a", "b"} {
					l.enqueueNewest(id, asynq.MaxRetry(0), asynq.Retention(time.Hour))
					r.until(id+" has run", func() bool { return d.has("end " + id) })
					r.untilFree("k")
				}
				r.untilTask("a", name)
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
				r.until("it has run again", func() bool { return len(d.all()) == 6 })
				d.want(t, "start a", "end a", "start b", "end b", "start a", "end a")
			})
		})
	}
}

// A job that is left in a group does not take the others of the group with it.
func TestJobLeftInAGroupDoesNotEndTheOthers(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		how := handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}
		ran := make(chan int, 10)
		r.group(nil, func(ctx context.Context, _ *asynq.Task) error {
			ran <- len(keysHeld(ctx))
			return nil
		})
		old, err := l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, nil), asynq.ProcessIn(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		l.dieReplacing(old.Task.ID, "left", asynq.ProcessIn(time.Hour))
		time.Sleep(ttl)
		newer, err := l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, nil))
		if err != nil {
			t.Fatal(err)
		}
		r.untilTask(newer.Task.ID, "gone")
		header := r.taskHeaders("left")
		if err := r.inspector.DeleteTask(queue, "left"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.client.Enqueue(asynq.NewTaskWithHeaders(taskType, nil, header), asynq.TaskID("left"), asynq.Group("g")); err != nil {
			t.Fatal(err)
		}
		other, err := l.jobs.Enqueue(context.Background(), handoff.Unique{Key: "k2"}, asynq.NewTask(taskType, nil), asynq.Group("g"))
		if err != nil {
			t.Fatal(err)
		}
		r.untilTask(other.Task.ID, "gone")
		r.untilFree("k2")
		close(ran)
		var locks []int
		for n := range ran {
			locks = append(locks, n)
		}
		if !slices.Equal(locks, []int{1, 2}) {
			t.Errorf("the tasks had %d locks, want 1 of the newer job and 2 of the group", locks)
		}
	})
}
