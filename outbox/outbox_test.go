package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

func TestAJobExistsIfAndOnlyIfItsTransactionIsCommitted(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	for i := range 20 {
		k.in(i%2 == 0, func(tx *sql.Tx) {
			must(k.Enqueue(t.Context(), tx, handoff.Unique{Key: fmt.Sprint("unique:", i)}, task(fmt.Sprint("u", i))))(t)
			must(k.Enqueue(t.Context(), tx, handoff.Sequence{Key: fmt.Sprint("line:", i)}, task(fmt.Sprint("s", i))))(t)
		})
	}
	if got := k.tasks(); len(got) != 0 {
		t.Errorf("tasks before the relay: %q", got)
	}
	k.relayAll()
	got := k.tasks()
	slices.Sort(got)
	if want := "s0 s10 s12 s14 s16 s18 s2 s4 s6 s8 u0 u10 u12 u14 u16 u18 u2 u4 u6 u8"; strings.Join(got, " ") != want {
		t.Errorf("tasks %q, want %q", got, want)
	}
	k.wantStates("0 pending, 20 sent, 0 refused")
	// The key of a rolled back transaction was never taken.
	if st := k.key("unique:1"); st.State != joblock.StateFree || st.Fence != 0 {
		t.Errorf("the key of a rolled back transaction: %+v", st)
	}
	if st := k.key("unique:2"); st.Job == "" {
		t.Errorf("the key of a committed one: %+v", st)
	}
}

func TestBadArgumentsAreRefusedInTheTransaction(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	ok := handoff.Unique{Key: "key"}
	var none *Outbox
	k.in(true, func(tx *sql.Tx) {
		for name, c := range map[string]func() error{
			"no how": func() error { _, err := k.Enqueue(t.Context(), tx, nil, task("")); return err },
			"no key": func() error { _, err := k.Enqueue(t.Context(), tx, handoff.Unique{}, task("")); return err },
			"an empty part": func() error {
				_, err := k.Enqueue(t.Context(), tx, handoff.Sequence{Key: joblock.Key("a", "")}, task(""))
				return err
			},
			"a limit": func() error {
				_, err := k.Enqueue(t.Context(), tx, handoff.Unique{Key: "key", Limit: 2}, task(""))
				return err
			},
			"no task":        func() error { _, err := k.Enqueue(t.Context(), tx, ok, nil); return err },
			"no type":        func() error { _, err := k.Enqueue(t.Context(), tx, ok, asynq.NewTask(" ", nil)); return err },
			"no transaction": func() error { _, err := k.Enqueue(t.Context(), nil, ok, task("")); return err },
			"no locks":       func() error { _, err := k.Enqueue(t.Context(), tx, handoff.Carry(), task("")); return err },
			"a nil lock":     func() error { _, err := k.Enqueue(t.Context(), tx, handoff.Carry(nil), task("")); return err },
			"a passed deadline": func() error {
				_, err := k.Enqueue(t.Context(), tx, ok, task(""), asynq.Deadline(time.Now().Add(-time.Hour)))
				return err
			},
			"two kinds of unique": func() error {
				_, err := k.Enqueue(t.Context(), tx, ok, task(""), asynq.Unique(time.Minute))
				return err
			},
			"a group in sequence": func() error {
				_, err := k.Enqueue(t.Context(), tx, handoff.Sequence{Key: "key"}, task(""), asynq.Group("g"))
				return err
			},
			"no Outbox":            func() error { _, err := none.Enqueue(t.Context(), tx, ok, task("")); return err },
			"an Outbox by hand":    func() error { _, err := new(Outbox).Enqueue(t.Context(), tx, ok, task("")); return err },
			"Run by hand":          func() error { return new(Outbox).Run(t.Context()) },
			"Reclaim by hand":      func() error { return k.Reclaim(t.Context(), Job{}) },
			"Stats by hand":        func() error { _, err := none.Stats(t.Context()); return err },
			"Migrate":              func() error { return Migrate(t.Context(), k.db, 0) },
			"Migrate without one":  func() error { return Migrate(t.Context(), nil, SQLite) },
			"New without a client": func() error { _, err := New(nil, k.db, SQLite, nil); return err },
			"a client by hand":     func() error { _, err := New(new(handoff.Client), k.db, SQLite, nil); return err },
			"no database":          func() error { _, err := New(k.p.Jobs, nil, SQLite, nil); return err },
			"no dialect":           func() error { _, err := New(k.p.Jobs, k.db, 0, nil); return err },
			"Poll":                 func() error { _, err := New(k.p.Jobs, k.db, SQLite, &Config{Poll: time.Millisecond}); return err },
			"Batch":                func() error { _, err := New(k.p.Jobs, k.db, SQLite, &Config{Batch: 1001}); return err },
			"Retention":            func() error { _, err := New(k.p.Jobs, k.db, SQLite, &Config{Retention: 9000 * time.Hour}); return err },
			"Name":                 func() error { _, err := New(k.p.Jobs, k.db, SQLite, &Config{Name: "a:b"}); return err },
			"Listen": func() error {
				_, err := New(k.p.Jobs, k.db, MySQL, &Config{Listen: func(context.Context, string, func()) error { return nil }})
				return err
			},
		} {
			if err := c(); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
	})
	k.wantStates("0 pending, 0 sent, 0 refused")
}

// All options reach asynq as Enqueue of package handoff passes them.
func TestATaskHasItsHeadersAndOptions(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	made := asynq.NewTaskWithHeaders("work", []byte("all"), map[string]string{"tenant": "7"}, asynq.MaxRetry(3), asynq.Queue("low"))
	job := k.put(handoff.Unique{Key: "all"}, made, asynq.Queue("high"), asynq.TaskID("mine"), asynq.Timeout(time.Minute),
		asynq.Deadline(at.Add(time.Hour)), asynq.Retention(time.Hour), asynq.ProcessIn(time.Minute), asynq.ProcessAt(at))
	if job.Queue != "high" || job.TaskID != "mine" {
		t.Errorf("job %+v", job)
	}
	k.relayAll()
	info := must(k.p.Inspector.GetTaskInfo("high", "mine"))(t)
	if info.MaxRetry != 4 || info.Timeout != time.Minute || !info.Deadline.Equal(at.Add(time.Hour)) || info.Retention != time.Hour ||
		!info.NextProcessAt.Equal(at) || info.Headers["tenant"] != "7" || string(info.Payload) != "all" {
		t.Errorf("task %+v", info)
	}
	if len(made.Headers()) != 1 {
		t.Errorf("the caller's task was changed: %v", made.Headers())
	}
	bare := k.put(handoff.Sequence{Key: "bare"}, asynq.NewTask("work", nil))
	k.relayAll()
	info = must(k.p.Inspector.GetTaskInfo("default", bare.TaskID))(t)
	if info.MaxRetry != 26 || len(info.Payload) != 0 || info.Retention != time.Minute {
		t.Errorf("task without options: %+v", info)
	}
}

// A process that dies after the enqueue and before it has marked the row leaves the row to the next one.
func TestARepeatedEnqueueMakesNoSecondTask(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(k *kit) handoff.How{
		"unique":   func(*kit) handoff.How { return handoff.Unique{Key: "key"} },
		"keep":     func(*kit) handoff.How { return handoff.Unique{Key: "key", OnConflict: handoff.KeepLast} },
		"replace":  func(*kit) handoff.How { return handoff.Unique{Key: "key", OnConflict: handoff.Replace} },
		"skip":     func(*kit) handoff.How { return handoff.Unique{Key: "key", OnConflict: handoff.Skip} },
		"sequence": func(*kit) handoff.How { return handoff.Sequence{Key: "key"} },
		"limit":    func(*kit) handoff.How { return handoff.Sequence{Key: "key", Limit: 2} },
		"carry": func(k *kit) handoff.How {
			return handoff.Carry(must(k.p.Locks.TryAcquire(context.Background(), "key"))(k.t))
		},
		"first": func(k *kit) handoff.How {
			return handoff.Sequence{Lock: must(k.p.Locks.TryAcquire(context.Background(), "key"))(k.t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, nil)
			job := k.put(how(k), task("once"))
			k.relayAll()
			before := k.key("key")
			for range 2 {
				k.exec("UPDATE joblock_outbox SET state = 0, due_ms = 0")
				k.relayAll()
			}
			k.wantStates("0 pending, 1 sent, 0 refused")
			if got := k.tasks(); !slices.Equal(got, []string{"once"}) {
				t.Errorf("tasks %q", got)
			}
			if after := k.key("key"); after.Fence != before.Fence || after.Job != before.Job {
				t.Errorf("the key was %+v, is %+v", before, after)
			}
			if name == "keep" {
				return
			}
			// The job runs under the lock, and frees the key.
			var locked atomic.Int32
			done := make(chan struct{}, 1)
			stop := k.serve(func(ctx context.Context, task *asynq.Task) error {
				if lock, ok := joblock.FromContext(ctx); ok && lock.Key() == "key" && lock.Err() == nil {
					locked.Add(1)
				}
				done <- struct{}{}
				return nil
			})
			<-done
			stop()
			if st := k.key("key"); locked.Load() != 1 || st.State != joblock.StateFree {
				t.Errorf("ran %d times under the lock, the key is %+v", locked.Load(), st)
			}
			_ = job
		})
	}
}

// As above, and meanwhile the turn of the job has come. The repeated enqueue does not take it away, which would let the next job
// overtake.
func TestARepeatedEnqueueLeavesTheJobItsTurn(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]handoff.Sequence{
		"one at a time": {Key: "key"}, "limit": {Key: "key", Limit: 2}, "halted": {Key: "key", HaltOnFailure: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, nil)
			slots := max(1, how.Limit)
			for i := range slots {
				k.put(how, task(fmt.Sprint("before ", i)))
			}
			k.relayAll()
			before := k.key("key")
			k.put(how, task("second"))
			k.put(how, task("third"))
			k.relayAll()
			testkit.WantNil(t, "FreeJobs", (*core.Locker)(k.p.Locks).FreeJobs(t.Context(), nil, []core.JobRelease{{Key: "key", Job: before.Job}})[0])
			turn := k.key("key")
			if turn.State != joblock.StateParked || turn.Job == before.Job {
				t.Fatalf("the key is %+v, want it to be given to the next job", turn)
			}
			if queue, id, _ := strings.Cut(turn.Job, "/"); name == "halted" {
				testkit.WantNil(t, "ArchiveTask", k.p.Inspector.ArchiveTask(queue, id))
			}
			k.exec("UPDATE joblock_outbox SET state = 0, due_ms = 0")
			k.relayAll()
			k.wantStates(fmt.Sprintf("0 pending, %d sent, 0 refused", slots+2))
			if now := k.key("key"); now.Job != turn.Job || now.Fence != turn.Fence {
				t.Errorf("the key was %+v, is %+v", turn, now)
			}
		})
	}
}

// A relay that was frozen after the enqueue for so long that asynq has forgotten the task enqueues the job again: it runs a
// second time, not at the same time, and with a larger fence.
func TestAJobThatAsynqHasForgottenRunsAgainWithALargerFence(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	job := k.put(handoff.Unique{Key: "key"}, task("again"))
	var last int64
	for range 2 {
		k.exec("UPDATE joblock_outbox SET state = 0, due_ms = 0")
		k.relayAll()
		fence := make(chan int64, 1)
		stop := k.serve(func(ctx context.Context, _ *asynq.Task) error {
			lock, _ := joblock.FromContext(ctx)
			fence <- lock.Fence()
			return nil
		})
		if got := <-fence; got <= last {
			t.Errorf("ran with fence %d after %d", got, last)
		} else {
			last = got
		}
		stop()
		if err := k.p.Inspector.DeleteTask(job.Queue, job.TaskID); err != nil {
			t.Fatal(err)
		}
	}
	k.wantStates("0 pending, 1 sent, 0 refused")
}

func TestTheJobsOfAKeyAreEnqueuedInTheirOrder(t *testing.T) {
	t.Parallel()
	k := newKit(t, &Config{Batch: 7})
	var want []string
	for i := range 30 {
		name := fmt.Sprint("job", i)
		want = append(want, name)
		k.put(handoff.Sequence{Key: "line"}, task(name))
		k.put(handoff.Sequence{Key: fmt.Sprint("other", i)}, task("other"))
	}
	k.relayAll()
	var got []string
	done := make(chan struct{})
	stop := k.serve(func(ctx context.Context, task *asynq.Task) error {
		if string(task.Payload()) != "other" {
			if got = append(got, string(task.Payload())); len(got) == len(want) {
				close(done)
			}
		}
		return nil
	})
	<-done
	stop()
	if !slices.Equal(got, want) {
		t.Errorf("ran %q", got)
	}
}

// With Reject a job waits in the table until the key is free, and so do those behind it. Others do not wait.
func TestAJobWhoseKeyIsTakenWaitsInTheTable(t *testing.T) {
	t.Parallel()
	k := newKit(t, &Config{Batch: 4})
	lock := must(k.p.Locks.TryAcquire(t.Context(), "busy"))(t)
	k.put(handoff.Unique{Key: "busy"}, task("first"))
	for i := range 10 {
		k.put(handoff.Unique{Key: "busy"}, task(fmt.Sprint("behind", i)))
	}
	k.put(handoff.Unique{Key: "free"}, task("other"))
	k.relayAll()
	if got := k.tasks(); !slices.Equal(got, []string{"other"}) {
		t.Errorf("tasks %q, want that of the free key", got)
	}
	k.wantStates("11 pending, 1 sent, 0 refused")
	// A row that comes later does not overtake those that wait.
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := k.put(handoff.Unique{Key: "busy"}, task("late"))
	k.relayAll()
	k.wantStates("12 pending, 1 sent, 0 refused")
	k.hurry()
	k.relayAll()
	if got := k.tasks(); !slices.Equal(got, []string{"first", "other"}) && !slices.Equal(got, []string{"other", "first"}) {
		t.Errorf("tasks %q, want first and other", got)
	}
	if got := k.errorOf(late); got != "" {
		t.Errorf("the row behind has the error %q", got)
	}
}

// A long line of rows whose key is taken does not keep others back, however often its first row is tried again meanwhile.
func TestALongLineOfATakenKeyDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	k := newKit(t, &Config{Batch: 4})
	must(k.p.Locks.TryAcquire(t.Context(), "busy"))(t)
	var behind Job
	for i := range 40 {
		behind = k.put(handoff.Unique{Key: "busy"}, task(fmt.Sprint("busy", i)))
	}
	for i := range 8 {
		k.put(handoff.Unique{Key: fmt.Sprint("free", i)}, task(fmt.Sprint("free", i)))
	}
	for range 4 { // each time the first row is tried in one round, and the next has room for others
		must(k.round(t.Context()))(t)
		must(k.round(t.Context()))(t)
		k.hurry()
	}
	k.wantStates("40 pending, 8 sent, 0 refused")
	if got := k.errorOf(behind); got != "" {
		t.Errorf("a row behind the first has the error %q", got)
	}
}

func TestThePoliciesOfUniqueApplyAtTheRelay(t *testing.T) {
	t.Parallel()
	for policy, want := range map[handoff.OnConflict]string{
		handoff.Reject: "old 1 pending, 1 sent, 0 refused", handoff.Skip: "old 0 pending, 2 sent, 0 refused",
		handoff.Replace: "new 0 pending, 2 sent, 0 refused", handoff.KeepLast: "new 0 pending, 2 sent, 0 refused",
	} {
		k := newKit(t, nil)
		k.put(handoff.Unique{Key: "key", OnConflict: policy}, task("old"))
		k.relayAll()
		job := k.put(handoff.Unique{Key: "key", OnConflict: policy}, task("new"))
		k.relayAll()
		if got := strings.Join(k.tasks(), " ") + " " + k.states(); got != want {
			t.Errorf("policy %d: %q, want %q", policy, got, want)
		}
		if note := k.errorOf(job); (policy == handoff.Skip) != strings.Contains(note, "another job has the key") {
			t.Errorf("policy %d: the row says %q", policy, note)
		}
	}
}

func TestALineThatIsFullWaitsInTheTable(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	for i := range 4 {
		k.put(handoff.Sequence{Key: "line", MaxWaiting: 2}, task(fmt.Sprint(i)))
	}
	k.put(handoff.Sequence{Key: "line"}, task("behind")) // fits in, and must not overtake
	k.relayAll()
	k.wantStates("2 pending, 3 sent, 0 refused")
}

// A poison task: what can never be enqueued is kept with its error, and the others of its key go on.
func TestWhatIsRefusedForGoodIsKeptWithItsError(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	must(k.p.Client.Enqueue(asynq.NewTask("foreign", nil), asynq.TaskID("taken"), asynq.ProcessIn(time.Hour)))(t)
	taken := k.put(handoff.Sequence{Key: "key"}, task("conflict"), asynq.TaskID("taken"))
	broken := k.put(handoff.Sequence{Key: "key"}, task("broken"))
	unknown := k.put(handoff.Sequence{Key: "key"}, task("unknown"))
	expired := k.put(handoff.Sequence{Key: "key"}, task("expired"), asynq.Deadline(time.Now().Add(time.Hour)))
	k.exec(`UPDATE joblock_outbox SET job = '{"queue":' WHERE uid = ?`, broken.uid)
	k.exec(`UPDATE joblock_outbox SET job = replace(job, '"Sequence"', '"Later"') WHERE uid = ?`, unknown.uid)
	k.exec(`UPDATE joblock_outbox SET job = replace(job, ?, '"deadline":"2001-01-01T00:00:00Z"') WHERE uid = ?`,
		`"deadline":"`+time.Unix(expired.kept.Options.Deadline.Unix(), 0).Format(time.RFC3339)+`"`, expired.uid)
	k.put(handoff.Sequence{Key: "key"}, task("good"))
	k.put(handoff.Unique{Key: "other"}, task("other"))
	k.relayAll()
	for job, want := range map[Job]string{taken: "task ID conflicts", broken: "cannot be read", unknown: `kind "Later" is not known`} {
		if got := k.errorOf(job); !strings.Contains(got, want) {
			t.Errorf("%s: error %q, want %q", job.TaskID, got, want)
		}
	}
	if got := k.tasks(); !slices.Contains(got, "good") || !slices.Contains(got, "other") {
		t.Errorf("tasks %q", got)
	}
	if got := strings.Count(k.log.String(), "refused for good"); got < 3 {
		t.Errorf("%d lines about refused rows:\n%s", got, k.log)
	}
	stats := must(k.Stats(t.Context()))(t)
	if stats.Refused < 3 || stats.Backlog != 0 || stats.Oldest != 0 {
		t.Errorf("stats %+v", stats)
	}
}

func TestALockThatIsCarriedIsTheJobsFromTheEnqueueOn(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	lock := must(k.p.Locks.TryAcquire(t.Context(), "key"))(t)
	token := string(must(lock.Token().MarshalText())(t))
	job := k.put(handoff.Carry(lock), task("carried"))
	if err := lock.Release(t.Context()); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("a deferred Release: %v, want ErrNotOwner", err)
	}
	if st := k.key("key"); st.State != joblock.StateParked || st.Job != "default/"+job.TaskID {
		t.Errorf("between commit and relay the key is %+v", st)
	}
	if _, err := k.p.Locks.TryAcquire(t.Context(), "key"); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("another caller: %v, want ErrHeld", err)
	}
	testkit.WantErr(t, k.Reclaim(t.Context(), job), joblock.ErrBusy)

	// No column shows the owner.
	rows := must(k.db.Query("SELECT * FROM joblock_outbox"))(t)
	defer rows.Close()
	names := must(rows.Columns())(t)
	for rows.Next() {
		cells, to := make([]sql.RawBytes, len(names)), make([]any, len(names))
		for i := range cells {
			to[i] = &cells[i]
		}
		if err := rows.Scan(to...); err != nil {
			t.Fatal(err)
		}
		for i, cell := range cells {
			if strings.Contains(string(cell), token) || strings.Contains(string(cell), token[20:50]) {
				t.Errorf("column %s has the token", names[i])
			}
		}
	}
	k.relayAll()
	ran := make(chan error, 1)
	stop := k.serve(func(ctx context.Context, _ *asynq.Task) error {
		lock, ok := joblock.FromContext(ctx)
		if !ok || lock.Key() != "key" {
			ran <- errors.New("ran without its lock")
			return nil
		}
		ran <- lock.Err()
		return nil
	})
	if err := <-ran; err != nil {
		t.Error(err)
	}
	stop()
}

// The tasks that follow in a chain travel with the locks. Without locks of the caller a chain is refused.
func TestAChainUnderACarriedLockIsKept(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	then := []*asynq.Task{task("second"), task("third")}
	k.put(handoff.Chain{Under: handoff.Carry(must(k.p.Locks.TryAcquire(t.Context(), "key"))(t)), Then: then}, task("first"))
	k.in(false, func(tx *sql.Tx) {
		_, err := k.Enqueue(t.Context(), tx, handoff.Chain{Under: handoff.Unique{Key: "other"}, Then: then}, task("first"))
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
	k.relayAll()
	ran := make(chan string, 3)
	stop := k.serve(func(_ context.Context, task *asynq.Task) error {
		ran <- string(task.Payload())
		return nil
	})
	if got := []string{<-ran, <-ran, <-ran}; !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("ran %q", got)
	}
	stop()
}

func TestReclaimGivesTheLocksOfARolledBackTransactionBack(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	locks := must(k.p.Locks.AcquireAll(t.Context(), []string{"one", "two"}))(t)
	var job Job
	k.in(false, func(tx *sql.Tx) { job = must(k.Enqueue(t.Context(), tx, handoff.Carry(locks...), task("never")))(t) })
	if err := k.Reclaim(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(locks.Err(), locks.Release(t.Context())); err != nil {
		t.Error(err)
	}
	k.relayAll()
	if st := k.key("one"); st.State != joblock.StateFree || len(k.tasks()) != 0 {
		t.Errorf("key %+v, tasks %q", st, k.tasks())
	}
	// A job that has parked nothing has nothing to get back.
	k.in(false, func(tx *sql.Tx) { job = must(k.Enqueue(t.Context(), tx, handoff.Unique{Key: "one"}, task("never")))(t) })
	if err := k.Reclaim(t.Context(), job); err != nil {
		t.Error(err)
	}
}

// A statement that fails leaves the caller its locks.
func TestAnEnqueueThatFailsGivesTheLocksBack(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	k.exec("DROP TABLE joblock_outbox")
	lock := must(k.p.Locks.TryAcquire(t.Context(), "key"))(t)
	k.in(false, func(tx *sql.Tx) {
		if _, err := k.Enqueue(t.Context(), tx, handoff.Carry(lock), task("")); err == nil || !strings.Contains(err.Error(), "joblock_outbox") {
			t.Errorf("without the table: %v", err)
		}
	})
	if err := errors.Join(lock.Err(), lock.Release(t.Context())); err != nil {
		t.Error(err)
	}
}

// A process that dies in the transaction leaves locks parked for a task that does not exist. The keeper finds that out.
func TestTheKeeperFreesTheLocksOfATransactionThatDied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		s := must(k.p.NewServer(asynq.Config{LogLevel: asynq.FatalLevel}))(t)
		k.p.Go(s.Worker.RunKeeper)
		must(k.p.Client.Enqueue(task("other")))(t) // the queue exists
		lock := must(k.p.Locks.TryAcquire(t.Context(), "key"))(t)
		k.in(false, func(tx *sql.Tx) { must(k.Enqueue(t.Context(), tx, handoff.Carry(lock), task("never")))(t) })
		began := time.Now()
		for k.key("key").State != joblock.StateFree {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < 50*time.Second || took > 2*time.Minute {
			t.Errorf("the key was free after %s, want a minute or two", took)
		}
	})
}

// The relay is down for so long that the keeper frees the key, and another caller takes it: the job waits for its turn.
func TestACarriedLockThatIsGoneWhenTheRelayComesIsTakenAgain(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	lock := must(k.p.Locks.TryAcquire(t.Context(), "key"))(t)
	k.put(handoff.Carry(lock), task("late"))
	if err := k.p.Locks.ForceRelease(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
	k.relayAll()
	k.wantStates("0 pending, 1 sent, 0 refused")
	ran := make(chan error, 1)
	stop := k.serve(func(ctx context.Context, _ *asynq.Task) error {
		lock, _ := joblock.FromContext(ctx)
		ran <- lock.Err()
		return nil
	})
	if err := <-ran; err != nil {
		t.Error(err)
	}
	stop()
}

// The Redis of the locks has lost everything, with the keys that seal tokens: the row still says which keys it needs.
func TestARowOutlivesTheLossOfRedis(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	lock := must(k.p.Locks.TryAcquire(t.Context(), "key"))(t)
	k.put(handoff.Carry(lock), task("carried"))
	k.put(handoff.Unique{Key: "other"}, task("unique"))
	k.rdb.FlushAll(t.Context())
	fresh := must(newProcess(t, k))(t) // knows no keys but those of the store
	fresh.relayAll()
	fresh.wantStates("0 pending, 2 sent, 0 refused")
	ran := make(chan string, 2)
	stop := fresh.serve(func(ctx context.Context, task *asynq.Task) error {
		lock, _ := joblock.FromContext(ctx)
		ran <- string(task.Payload()) + " under " + lock.Key()
		return nil
	})
	got := []string{<-ran, <-ran}
	slices.Sort(got)
	if !slices.Equal(got, []string{"carried under key", "unique under other"}) {
		t.Errorf("ran %q", got)
	}
	stop()
}

func TestSentRowsAreDeletedAtTheEndOfTheirRetention(t *testing.T) {
	t.Parallel()
	k := newKit(t, &Config{Retention: -1})
	k.put(handoff.Unique{Key: "key"}, task("one"))
	k.relayAll()
	k.wantStates("0 pending, 0 sent, 0 refused")
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &Config{Retention: time.Minute, Poll: time.Second})
		k.p.Go(k.Run)
		k.put(handoff.Unique{Key: "key"}, task("one"))
		time.Sleep(30 * time.Second)
		k.wantStates("0 pending, 1 sent, 0 refused")
		time.Sleep(45 * time.Second)
		k.wantStates("0 pending, 0 sent, 0 refused")
	})
}

// Pending and refused rows, and sent rows in their retention, stay.
func TestCleaningKeepsWhatIsNotOld(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	for i := range 5 {
		k.put(handoff.Unique{Key: fmt.Sprint("key", i)}, task("one"))
	}
	k.relayAll()
	k.exec("UPDATE joblock_outbox SET expires_ms = 0 WHERE id > 2")
	if n := must(k.cleanOnce(t.Context()))(t); n != 3 {
		t.Errorf("deleted %d rows, want 3", n)
	}
	k.wantStates("0 pending, 2 sent, 0 refused")
	if err := Migrate(t.Context(), k.db, k.dialect); err != nil {
		t.Errorf("Migrate again: %v", err)
	}
	k.put(handoff.Unique{Key: "old"}, task("old"))
	stats := must(k.Stats(t.Context()))(t)
	if stats.Backlog != 1 || stats.Oldest < 0 || stats.Oldest > time.Minute {
		t.Errorf("stats %+v", stats)
	}
}

// Two processes run the relay: one works, and the next takes over when it ends.
func TestOneRelayWorksAndAnotherTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		first, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- k.Run(first) }()
		synctest.Wait()
		second, stopSecond := context.WithCancel(t.Context())
		go func() { ended <- k.Run(second) }()
		time.Sleep(time.Second)
		lock := must((*core.Locker)(k.jobs.Locks()).Status(t.Context(), keyspace.Outbox(k.cfg.Name)))(t)[0]
		if lock.State != joblock.StateHeld || lock.Waiters != 1 {
			t.Fatalf("the relays' lock is %s with %d waiters, want the second to wait for the first", lock.State, lock.Waiters)
		}
		k.put(handoff.Unique{Key: "a"}, task("a"))
		time.Sleep(2 * time.Second)
		k.wantStates("0 pending, 1 sent, 0 refused")
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the first relay: %v", err)
		}
		k.put(handoff.Unique{Key: "b"}, task("b"))
		time.Sleep(2 * time.Second)
		k.wantStates("0 pending, 2 sent, 0 refused")
		stopSecond()
		if err := <-ended; err != nil {
			t.Errorf("the second relay: %v", err)
		}
	})
}

// While Redis is away nothing is lost, charged or written into the rows.
func TestAnOutageOfRedisChargesNoRow(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	k.put(handoff.Unique{Key: "warm"}, task("warm"))
	k.relayAll()
	job := k.put(handoff.Sequence{Key: "line"}, task("one"))
	k.put(handoff.Unique{Key: "key"}, task("two"))
	k.mini.SetError("LOADING Redis is loading the dataset in memory")
	_, err := k.round(t.Context())
	testkit.WantErr(t, err, joblock.ErrUnavailable)
	k.mini.SetError("")
	k.wantStates("2 pending, 1 sent, 0 refused")
	if got := k.errorOf(job); got != "" {
		t.Errorf("the row has the error %q", got)
	}
	k.relayAll()
	k.wantStates("0 pending, 3 sent, 0 refused")
}

func TestAnUnknownErrorIsGivenUpAfterItsLastTry(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	unknown := enqueue.Result{Err: errors.New("asynq says something new")}
	for attempts, want := range map[int]verdict{0: unclear, maxAttempts - 2: unclear, maxAttempts - 1: refused} {
		r := &row{attempts: attempts}
		if k.judge(t.Context(), r, unknown); r.verdict != want {
			t.Errorf("after %d tries: verdict %d, want %d", attempts, r.verdict, want)
		}
	}
}

func TestEveryErrorHasItsVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want verdict
	}{
		{nil, sent},
		{fmt.Errorf("x: %w", joblock.ErrHeld), waits},
		{fmt.Errorf("x: %w", handoff.ErrLineFull), unclear}, // alone; Enqueue joins it with ErrHeld
		{errors.Join(handoff.ErrLineFull, joblock.ErrHeld), waits},
		{errors.Join(asynq.ErrTaskIDConflict, joblock.ErrHeld), lookUp},
		{asynq.ErrDuplicateTask, lookUp},
		{joblock.ErrUnavailable, away},
		{errors.Join(handoff.ErrNotSent, context.Canceled), away},
		{joblock.ErrClosed, away},
		{joblock.ErrInvalid, refused},
		{errors.New("asynq says something new"), unclear},
	} {
		if got := judge(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
	if got := waits.pause(0); got != 100*time.Millisecond {
		t.Errorf("first pause %s", got)
	}
	if got := waits.pause(1000); got != 5*time.Second {
		t.Errorf("longest pause %s", got)
	}
}
