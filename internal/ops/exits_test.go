package ops

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/worker"
)

// plant has locks, a database of asynq and a keeper, all in virtual time.
type plant struct {
	*testing.T
	*Desk
	locks     *joblock.Locker
	client    *asynq.Client
	inspector *asynq.Inspector
	retire    func() // ends the keeper
}

func planted(t *testing.T, f func(t *testing.T, p *plant)) {
	synctest.Test(t, func(t *testing.T) {
		testkit.Seed(t, 1)
		redistest.Ran(t, redistest.MiniBackend())
		rdb := redistest.MiniClient(t, redistest.Mini(t))
		quiet := slog.New(slog.DiscardHandler)
		locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{Logger: quiet})
		testkit.WantNil(t, "joblock.New", err)
		t.Cleanup(func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) })
		p := &plant{T: t, locks: locks, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb)}
		w, err := worker.New(locks, p.inspector, &worker.Config{Logger: quiet})
		testkit.WantNil(t, "worker.New", err)
		ctx, cancel := context.WithCancel(context.Background())
		var keeper sync.WaitGroup
		keeper.Go(func() {
			if err := w.RunKeeper(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		p.retire = func() { cancel(); keeper.Wait() }
		t.Cleanup(func() { p.retire(); _ = w.Close(context.Background()) })
		p.Desk, err = New(Config{Locks: locks, Databases: []Database{{"jobs", p.inspector}}})
		testkit.WantNil(t, "New", err)
		p.who = actor{eva.By, eva.From}
		time.Sleep(time.Minute)
		f(t, p)
	})
}

// enqueue hands the lock on "k" to the task "default/1", which is scheduled for later.
func (p *plant) enqueue() joblock.Token {
	p.Helper()
	lock, err := p.locks.TryAcquire(p.Context(), "k")
	testkit.WantNil(p, "TryAcquire", err)
	token, err := lock.Park(p.Context(), joblock.ForJob("default/1"))
	testkit.WantNil(p, "Park", err)
	e := envelope.Envelope{Tokens: []joblock.Token{token}, Retries: 3}
	text, err := e.Seal(p.Context(), (*core.Locker)(p.locks).Ring(), "default/1", "export")
	testkit.WantNil(p, "Seal", err)
	_, err = p.client.Enqueue(asynq.NewTaskWithHeaders("export", nil, map[string]string{envelope.Header: text}),
		asynq.TaskID("1"), asynq.ProcessIn(100*time.Hour), asynq.MaxRetry(4))
	testkit.WantNil(p, "Enqueue", err)
	return token
}

// attempt resumes the lock as a worker does that then dies.
func (p *plant) attempt(token joblock.Token) {
	p.Helper()
	_, err := p.locks.Resume(p.Context(), token, joblock.ForJob("default/1"), joblock.NoRenew())
	testkit.WantNil(p, "Resume", err)
}

func (p *plant) archive() {
	p.Helper()
	testkit.WantNil(p, "ArchiveTask", p.inspector.ArchiveTask("default", "1"))
}
func (p *plant) delete() {
	p.Helper()
	testkit.WantNil(p, "DeleteTask", p.inspector.DeleteTask("default", "1"))
}

// What Explain says of the latest time at which a key is free comes true, with a real keeper and real tasks.
func TestKeysAreFreeWhenExplainSays(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(p *plant)
		by   FreesBy
	}{
		{"deleted", func(p *plant) { p.enqueue(); time.Sleep(5 * time.Minute); p.delete() }, ByKeeper},
		{"deleted just after its enqueue", func(p *plant) { p.enqueue(); p.delete() }, ByKeeper},
		{"archived", func(p *plant) { p.enqueue(); time.Sleep(5 * time.Minute); p.archive() }, ByKeeper},
		{"archived just after its enqueue", func(p *plant) { p.enqueue(); p.archive() }, ByKeeper},
		{"archived after an attempt that died", func(p *plant) {
			p.attempt(p.enqueue())
			time.Sleep(2 * time.Minute)
			p.archive()
		}, ByKeeper},
		{"archived during an attempt that dies", func(p *plant) { p.attempt(p.enqueue()); p.archive() }, ByKeeper},
		{"deleted during an attempt that dies", func(p *plant) { p.attempt(p.enqueue()); p.delete() }, ByKeeper},
		{"deleted, and no keeper", func(p *plant) { p.enqueue(); p.retire(); p.delete() }, ByReservation},
		{"waits, and no keeper", func(p *plant) { p.enqueue(); p.retire() }, ByJob},
		{"never enqueued", func(p *plant) {
			lock, err := p.locks.TryAcquire(p.Context(), "k")
			testkit.WantNil(p, "TryAcquire", err)
			_, err = lock.Park(p.Context(), joblock.ForJob("default/2"))
			testkit.WantNil(p, "Park", err)
			p.inspectorHasQueue()
		}, ByKeeper},
		{"parked for no job", func(p *plant) {
			lock, err := p.locks.TryAcquire(p.Context(), "k")
			testkit.WantNil(p, "TryAcquire", err)
			_, err = lock.Park(p.Context())
			testkit.WantNil(p, "Park", err)
		}, ByReservation},
		{"held by a process that dies", func(p *plant) {
			_, err := p.locks.TryAcquire(p.Context(), "k", joblock.NoRenew())
			testkit.WantNil(p, "TryAcquire", err)
		}, ByHolder},
	} {
		t.Run(c.name, func(t *testing.T) {
			planted(t, func(t *testing.T, p *plant) {
				c.do(p)
				e, err := p.Explain(t.Context(), "k")
				testkit.WantNil(t, "Explain", err)
				checkSentences(t, e)
				if !e.Lock.Locked() || e.Frees.By != c.by || e.Frees.Latest.IsZero() {
					t.Fatalf("%s, %+v; want a time, by %s", e.Lock.State, e.Frees, c.by)
				}
				time.Sleep(time.Until(e.Frees.Latest.Time) + 10*time.Millisecond) // a store rounds up
				st, err := p.locks.Status(t.Context(), "k")
				testkit.WantNil(t, "Status", err)
				if st[0].Locked() {
					t.Errorf("at %s the key is still %s; it was to be free: %s", time.Now(), st[0].State, e.Frees.Text)
				}
			})
		})
	}
}

// inspectorHasQueue makes asynq know the queue.
func (p *plant) inspectorHasQueue() {
	_, err := p.client.Enqueue(asynq.NewTask("other", nil), asynq.ProcessIn(time.Hour))
	testkit.WantNil(p, "Enqueue", err)
}

// A job that lives keeps its key for longer than any reservation, and Explain names no time.
func TestNoTimeIsNamedForAJobThatLives(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		p.enqueue()
		for range 10 {
			e, err := p.Explain(t.Context(), "k")
			testkit.WantNil(t, "Explain", err)
			if e.Frees.By != ByJob || !e.Frees.Latest.IsZero() || e.Lock.Task.State != "scheduled" || e.Lock.Task.Attempts != 4 {
				t.Fatalf("%+v, %+v", e.Frees, e.Lock.Task)
			}
			time.Sleep(time.Hour)
		}
	})
}

// Sequences shows each line of jobs once, with what its first job does, and in CompareSequences those that have halted
// come first.
func TestSequencesAreListed(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		ctx := t.Context()
		client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
		testkit.WantNil(t, "NewClient", err)
		enqueue := func(s handoff.Sequence, ids ...string) {
			t.Helper()
			for _, id := range ids {
				_, err := client.Enqueue(ctx, s, asynq.NewTask("export", nil, asynq.TaskID(id)))
				testkit.WantNil(t, "Enqueue", err)
				time.Sleep(time.Second)
			}
		}
		list := func(q SequencesQuery) (all []Sequence, text string) {
			t.Helper()
			for s, err := range p.Sequences(ctx, q) {
				testkit.WantNil(t, "Sequences", err)
				all = append(all, s)
			}
			slices.SortFunc(all, CompareSequences)
			var lines []string
			for _, s := range all {
				lines = append(lines, fmt.Sprintf("%s %s %s %d/%d+%d", s.Key, s.State, s.Job, s.Running, s.Limit, s.Waiting))
			}
			return all, strings.Join(lines, ", ")
		}
		want := func(q SequencesQuery, want string) []Sequence {
			t.Helper()
			all, got := list(q)
			if got != want {
				t.Fatalf("%+v\n got %s\nwant %s", q, got, want)
			}
			return all
		}
		want(SequencesQuery{}, "")
		p.enqueue() // no sequence
		enqueue(handoff.Sequence{Key: "imports", Limit: 3}, "m1", "m2", "m3", "m4", "m5")
		enqueue(handoff.Sequence{Key: "alone", HaltOnFailure: true}, "x1")
		enqueue(handoff.Sequence{Key: "ledger", HaltOnFailure: true}, "l1", "l2")
		enqueue(handoff.Sequence{Key: "wallet", HaltOnFailure: true}, "w1", "w2", "w3")
		want(SequencesQuery{}, "imports waiting default/m1 3/3+2, wallet waiting default/w1 1/1+2, ledger waiting default/l1 1/1+1, alone waiting default/x1 1/1+0")
		held, err := p.locks.TryAcquire(ctx, "desk", joblock.Holder("web:1"))
		testkit.WantNil(t, "TryAcquire", err)
		enqueue(handoff.Sequence{Key: "desk"}, "d1")

		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "w1"))
		time.Sleep(time.Hour)
		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "l1"))
		testkit.WantNil(t, "PauseQueue", p.inspector.PauseQueue("default"))
		all := want(SequencesQuery{}, "ledger halted default/l1 1/1+1, wallet halted default/w1 1/1+2, "+
			"imports stuck default/m1 3/3+2, alone stuck default/x1 1/1+0, desk running  1/0+1")
		run := Args{Job: "default/l1", Step: "archived-0"}
		if i := slices.IndexFunc(all[0].Actions, func(a Offer) bool { return a.Name == ActRunTask }); i < 0 || all[0].Actions[i].Args != run || !strings.Contains(all[0].Why, "its sequence halts") {
			t.Errorf("a halted sequence: %+v, %q", all[0].Actions, all[0].Why)
		}
		if !strings.Contains(all[2].Why, "is paused") || !strings.Contains(all[4].Why, "web:1 has the key, and no job") {
			t.Errorf("%q, %q", all[2].Why, all[4].Why)
		}
		if i := slices.IndexFunc(all[0].Actions, func(a Offer) bool { return a.Name == ActSkipJob }); i < 0 || !strings.Contains(all[0].Actions[i].Effect, "The next in line") {
			t.Errorf("%+v", all[0].Actions)
		}
		want(SequencesQuery{Halted: true}, "ledger halted default/l1 1/1+1, wallet halted default/w1 1/1+2")
		want(SequencesQuery{Prefix: "led"}, "ledger halted default/l1 1/1+1")
		testkit.WantNil(t, "UnpauseQueue", p.inspector.UnpauseQueue("default"))

		p.retire()
		testkit.WantNil(t, "DeleteTask", p.inspector.DeleteTask("default", "l1"))
		testkit.WantNil(t, "Release", held.Release(ctx))
		time.Sleep(10 * time.Minute)
		all, got := list(SequencesQuery{})
		if len(all) < 4 || all[1].Since.After(all[2].Since.Time) {
			t.Errorf("without a keeper: %s", got)
		}
		for _, s := range all {
			if lost := s.Key == "ledger" || s.Key == "desk"; lost != (s.State == SequenceStuck) || lost && !strings.Contains(s.Why, "no keeper works") {
				t.Errorf("without a keeper %s is %s: %q; %s", s.Key, s.State, s.Why, got)
			}
		}
		var failed error
		for _, failed = range p.Sequences(ctx, SequencesQuery{Share: 2}) {
		}
		testkit.WantErr(t, failed, joblock.ErrInvalid)
	})
}

// The jobs of a sequence have slots, and wait in one line. A job that has failed for good may halt its sequence.
func TestSequencesAreExplained(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		ctx := t.Context()
		client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
		testkit.WantNil(t, "NewClient", err)
		enqueue := func(key, id string, s handoff.Sequence) {
			t.Helper()
			s.Key = key
			_, err := client.Enqueue(ctx, s, asynq.NewTask("export", nil, asynq.TaskID(id)))
			testkit.WantNil(t, "Enqueue", err)
			time.Sleep(time.Second)
		}
		for i := range 5 {
			enqueue("imports", fmt.Sprint("many-", i), handoff.Sequence{Limit: 3})
		}
		permits, err := p.Permits(ctx, "imports", 0)
		if err != nil || permits.Kind != KindSequence || permits.N != 3 || permits.Taken != 3 || permits.Waiting != 2 || len(permits.Permits) != 3 {
			t.Errorf("%+v, %v", permits, err)
		}
		l, err := p.Lock(ctx, "imports")
		if err != nil || len(l.Line) != 2 || l.Line[0].Job != "default/many-3" || l.Line[1].Job != "default/many-4" || l.Line[0].Holder == "" {
			t.Errorf("%+v, %v", l, err)
		}
		slot := permits.Permits[2]
		if slot.Role != RoleSlot || slot.Group != "imports" || slot.Number != 3 {
			t.Errorf("%+v", slot)
		}
		e, err := p.Explain(ctx, slot.Key)
		testkit.WantNil(t, "Explain", err)
		checkSentences(t, e)
		if text := strings.Join(e.Text, " "); !strings.Contains(text, `slot 3 of the sequence "imports"`) || !strings.Contains(text, `Next in line is the job "default/many-3"`) {
			t.Errorf("the slot: %s", text)
		}
		jobs, task, err := p.Job(ctx, "default/many-4")
		if err != nil || len(jobs) != 1 || jobs[0].Place == nil || jobs[0].Place.Position > 2 || !task.Waits || task.Limit != 3 {
			t.Errorf("a job that waits: %+v, %+v, %v", jobs, task, err)
		}

		enqueue("ledger", "fails", handoff.Sequence{HaltOnFailure: true})
		enqueue("ledger", "after", handoff.Sequence{HaltOnFailure: true})
		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "fails"))
		for range 3 { // the keeper keeps the key
			e, err := p.Explain(ctx, "ledger")
			testkit.WantNil(t, "Explain", err)
			checkSentences(t, e)
			if e.Frees.By != ByNothing || !e.Lock.Locked() || e.Lock.Job != "default/fails" || !strings.Contains(strings.Join(e.Text, " "), "its sequence halts") {
				t.Fatalf("%+v", e)
			}
			time.Sleep(time.Hour)
		}
		e, err = p.Explain(ctx, "ledger")
		testkit.WantNil(t, "Explain", err)
		i := slices.IndexFunc(e.Actions, func(a Offer) bool { return a.Name == ActFreeIdle })
		if i < 0 || e.Actions[i].Effect == "" || e.Actions[0].Name == ActWait {
			t.Errorf("%+v", e.Actions)
		}
		err = Force(ctx, p.locks, joblock.Status{Key: "ledger", Fence: e.Lock.Fence, Job: e.Lock.Job}, true, "passed over")
		testkit.WantNil(t, "Force", err)
		if l, err := p.Lock(ctx, "ledger"); err != nil || l.Job != "default/after" {
			t.Errorf("after Force: %+v, %v", l, err)
		}
	})
}
