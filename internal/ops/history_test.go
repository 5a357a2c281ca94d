package ops

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/memstore"
)

// texts returns the history of a key, the oldest first.
func (c *chronicle) texts(key string) (all []string) {
	c.Helper()
	h, err := c.desk.History(c.Context(), HistoryQuery{Key: key, Actions: true})
	testkit.WantNil(c.T, "History", err)
	for _, item := range slices.Backward(h.Items) {
		all = append(all, item.Kind+": "+item.Text)
	}
	return all
}

func (c *chronicle) wantTexts(key string, want ...string) {
	c.Helper()
	if got := c.texts(key); !slices.Equal(got, want) {
		c.Errorf("the history of %s is\n%s\nwant\n%s", key, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// act records an action that is done.
func (c *chronicle) act(e AuditEntry) {
	c.Helper()
	time.Sleep(time.Minute)
	e.By, e.Reason = "eva", "because"
	id, err := c.desk.cfg.Audit.Write(c.Context(), e)
	testkit.WantNil(c.T, "Write", err)
	e.Of, e.Before, e.Outcome = id, nil, OutcomeDone
	_, err = c.desk.cfg.Audit.Write(c.Context(), e)
	testkit.WantNil(c.T, "Write", err)
}

// The history of a key has what operators did to the tasks that had its lock: the task of the lock, those that say so,
// and those of which an event or an older action tells.
func TestHistoryHasTheActionsOnTasks(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		c.act(AuditEntry{Action: "run task", Key: "default/3"})
		c.act(AuditEntry{Action: "skip job", Key: key, Fence: 1, Before: &Lock{Key: key, Job: "default/3"}})
		time.Sleep(time.Minute)
		c.write(eventlog.Entry{Kind: "lost", Key: key, Job: "default/4", Holder: "w"})
		c.act(AuditEntry{Action: ActDeleteTask, Key: "default/4"})
		c.act(AuditEntry{Action: ActCancelTask, Key: "default/2", Keys: []string{"other", key}})
		c.act(AuditEntry{Action: ActDeleteTask, Key: "default/9"})
		c.act(AuditEntry{Action: "cron pause", Scope: "shop", Key: "default/1"})
		time.Sleep(time.Minute)
		lock, err := c.desk.cfg.Locks.TryAcquire(t.Context(), key, joblock.Holder("web"))
		testkit.WantNil(t, "TryAcquire", err)
		time.Sleep(time.Second)
		_, err = lock.Park(t.Context(), joblock.ForJob("default/1"))
		testkit.WantNil(t, "Park", err)
		c.act(AuditEntry{Action: "run task", Key: "default/1"})
		c.wantTexts(key,
			`run task: run task on "default/3": done by eva: because`,
			`skip job: skip job: done by eva: because`,
			`lost: w for the job default/4 has lost the lock, after 0 ms`,
			`delete task: delete task on "default/4": done by eva: because`,
			`cancel task: cancel task on "default/2": done by eva: because`,
			`acquired: the key was acquired`,
			`parked: web no longer runs under the lock: it is kept for the job default/1`,
			`run task: run task on "default/1": done by eva: because`)
		h, err := c.desk.History(t.Context(), HistoryQuery{Key: key})
		if err != nil || slices.ContainsFunc(h.Items, func(i Happening) bool { return i.Action != nil }) {
			t.Errorf("without Actions: %+v, %v", h.Items, err)
		}
		for e := range Actions(c.desk.Audit(t.Context(), AuditQuery{Key: "other"})) {
			if e.Key != "default/2" || e.Outcome != OutcomeDone {
				t.Errorf("%+v", e)
			}
		}
	})
}

// How the last holding ended is in the history without a journal, and once with one.
func TestHistoryHasWhatTheRecordSays(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		locks := c.desk.cfg.Locks
		take := func(key string) *joblock.Lock {
			lock, err := locks.TryAcquire(t.Context(), key, joblock.Holder("web"), joblock.Retain(time.Hour), joblock.NoRenew(), joblock.TTL(10*time.Second))
			testkit.WantNil(t, "TryAcquire", err)
			time.Sleep(5 * time.Second)
			return lock
		}
		park := func(key string) {
			_, err := take(key).Park(t.Context(), joblock.ForJob("default/1"))
			testkit.WantNil(t, "Park", err)
			time.Sleep(5 * time.Second)
		}
		for _, key := range []string{"kept", "announced"} {
			park(key)
			release := jobs.Release{Key: key, Job: "default/1", Reason: workerstats.KeeperReason + "the task does not exist"}
			testkit.WantNil(t, "Free", errors.Join(jobs.Free(t.Context(), locks, release)...))
		}
		c.write(eventlog.Entry{Kind: "freed", Key: "announced", Job: "default/1", Reason: "keeper: x"})
		park("idle")
		c.write(eventlog.Entry{Kind: "freed", Key: "idle", Reason: "the stream has ended"})
		testkit.WantNil(t, "Release", take("released").Release(t.Context(), joblock.Reason("done")))
		take("lapsed")
		take("forced")
		_, err := c.desk.Act(t.Context(), ForceRelease{Key: "forced", Fence: must(c.desk.Lock(t.Context(), "forced"))(t).Fence, Reason: eva.Reason})
		testkit.WantNil(t, "Force", err)
		take("app")
		testkit.WantNil(t, "ForceRelease", locks.ForceRelease(t.Context(), "app", joblock.Reason("by hand")))
		park("program")
		testkit.WantNil(t, "Free", errors.Join(jobs.Free(t.Context(), locks, jobs.Release{Key: "program", Job: "default/1", Reason: "its job was over"})...))
		time.Sleep(time.Minute)
		begun, had := "acquired: the key was acquired", "acquired: web got the lock"
		c.wantTexts("kept", begun, "freed: a keeper has freed the key: the task does not exist")
		c.wantTexts("announced", begun, "freed: the key was freed, because its job does not run again: keeper: x")
		c.wantTexts("idle", begun, "parked: web no longer runs under the lock: it is kept for the job default/1", "freed: the key was freed while no holder ran under its lock: the stream has ended")
		c.wantTexts("released", had, "released: web has released the lock: done")
		c.wantTexts("lapsed", had, "lapsed: the lock of web has lapsed: its lease was not renewed in time")
		c.wantTexts("forced", had, "force release: force release: done by eva@laptop from laptop: hangs since noon")
		c.wantTexts("app", had, "forced: the key was freed by force: by hand")
		c.wantTexts("program", begun, "freed: a program has freed the key: its job was over")
		c.wantTexts("unused")
	})
}

// The history says in the same words that an operator freed a key, whether or not a holder ran under its lock.
func TestOperatorsHaveTheirOwnWords(t *testing.T) {
	var told []event.Event
	locks, err := joblock.New(memstore.New(nil), &joblock.Config{Observer: func(e event.Event) { told = append(told, e) }})
	testkit.WantNil(t, "joblock.New", err)
	defer func() { testkit.WantNil(t, "Close", locks.Close(t.Context())) }()
	lock, err := locks.TryAcquire(t.Context(), "k")
	testkit.WantNil(t, "TryAcquire", err)
	_, err = lock.Park(t.Context(), joblock.ForJob("default/1"))
	testkit.WantNil(t, "Park", err)
	seen, err := locks.Status(t.Context(), "k")
	testkit.WantNil(t, "Status", err)
	told = nil
	testkit.WantNil(t, "Force", Force(t.Context(), locks, seen[0], true, signed("TICKET-5", "eva")))
	if len(told) != 1 || told[0].Kind != event.Forced {
		t.Fatalf("%+v", told)
	}
	e := Event{Kind: told[0].Kind.String(), Reason: told[0].Reason}
	if got := e.sentence(); got != "an operator has freed the key: TICKET-5 (by eva)" {
		t.Error(got)
	}
}

// A lock that is parked was handed over, or its attempt has ended before its job: the sentence is true of both.
func TestHistoryOfAParkedLock(t *testing.T) {
	for want, e := range map[string]Event{
		"web-1 no longer runs under the lock, after 6 min 53 s: it is kept for the job low/7":         {Holder: "web-1", Job: "low/7"},
		"a holder without a label no longer runs under the lock, after 6 min 53 s, and has parked it": {},
	} {
		e.Kind, e.Held = event.Parked.String(), Millis(6*time.Minute+53*time.Second)
		if got := e.sentence(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Processes know the store's clock only nearly: what a later fence did comes after what an earlier one did.
func TestOrderOfAHistory(t *testing.T) {
	type item struct {
		name, key string
		fence     int64
		at        int // milliseconds
		kind      string
	}
	order := func(items ...item) string {
		InOrder(items, func(i item) Place { return Place{i.key, i.fence, i.kind, time.UnixMilli(int64(i.at))} })
		var names []string
		for _, i := range items {
			names = append(names, i.name)
		}
		return strings.Join(names, " ")
	}
	for want, items := range map[string][]item{
		"contended acquired released": {{"released", "k", 3, 900, ""}, {"contended", "k", 4, 800, ""}, {"acquired", "k", 4, 700, ""}},
		"released acquired":           {{"released", "k", 4, 900, ""}, {"acquired", "k", 4, 700, ""}},
		"b a":                         {{"b", "k", 3, 5000, ""}, {"a", "k", 4, 1000, ""}}, // far apart: the clock is right
		"other x":                     {{"other", "l", 3, 900, ""}, {"x", "k", 4, 800, ""}},
		"none x":                      {{"none", "k", 0, 900, ""}, {"x", "k", 4, 800, ""}},

		// Under one fence a holding begins before it ends.
		"parked begun":         {{"begun", "k", 4, 900, "acquired"}, {"parked", "k", 4, 900, "parked"}},
		"freed parked begun":   {{"begun", "k", 4, 901, "acquired"}, {"freed", "k", 4, 900, "freed"}, {"parked", "k", 4, 899, "parked"}},
		"reclaimed left":       {{"reclaimed", "k", 4, 901, "reclaimed"}, {"left", "k", 4, 900, "parked"}}, // which may be true
		"acquired lost, apart": {{"acquired", "k", 4, 5000, "acquired"}, {"lost, apart", "k", 4, 1000, "lost"}},
		"acquired lost, other": {{"acquired", "k", 4, 900, "acquired"}, {"lost, other", "l", 4, 900, "lost"}},
	} {
		if got := order(items...); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// must returns a function that ends the test if there is an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		testkit.WantNil(t, "the call", err)
		return v
	}
}

// The reason says who freed a key: a keeper, a program, or an operator by force.
func TestWhoHasFreedAKey(t *testing.T) {
	for reason, want := range map[string]string{
		"keeper: the task is archived":           "keeper, freed by a keeper",
		"its job was over, and no keeper worked": "program, freed by a program",
		"job failed":                             "program, freed by a program",
		"job 41 hangs (by eva)":                  "force, freed by an operator",
		"hangs (by eva)":                         "force, freed by an operator",
		"the keeper: hangs":                      "force, freed by force",
		"":                                       "force, freed by force",
	} {
		l := show(joblock.Status{Key: "k", State: joblock.StateFree, Ended: driver.EndedForced, Fence: 3, Reason: reason})
		if got := string(l.FreedBy) + ", " + l.How(); got != want {
			t.Errorf("%q: %s, want %s", reason, got, want)
		}
	}
	for _, st := range []joblock.Status{
		{State: joblock.StateFree}, {State: joblock.StateHeld, Ended: driver.EndedForced, Reason: "keeper: x"},
	} {
		if l := show(st); l.How() != "" {
			t.Errorf("%+v: %s", st, l.How())
		}
	}
	if l := show(joblock.Status{State: joblock.StateFree, Ended: driver.EndedDone}); l.How() != "done" || l.FreedBy != "" {
		t.Errorf("done: %+v", l)
	}
}

// The record of an action on a task names the keys of the task's locks.
func TestActionsOnTasksNameTheKeys(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		token := s.park("export:7", "default/1")
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "export", State: asynq.TaskStateArchived, Headers: s.header(token, "default/1", "export", nil)})
		_, err := s.Act(t.Context(), RunTask{Queue: "default", ID: "1", Reason: eva.Reason})
		testkit.WantErr(t, err, joblock.ErrInvalid) // this database cannot run it
		if e := s.audit.entries; len(e) != 2 || !slices.Equal(e[0].Keys, []string{"export:7"}) {
			t.Errorf("%+v", e)
		}
	})
}
