package ops

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/limit"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	leaseLeft    = 20 * time.Second
	reservedLeft = time.Hour
	checksEvery  = 40 * time.Second
)

// lockIn returns a lock in the given state, that was last changed so long ago.
func lockIn(state joblock.State, job string, age time.Duration) Lock {
	l := Lock{
		Key: "export:7", State: state, Owner: "digest", Holder: "web-3:88", Job: job, Fence: 5, First: 3,
		Since: Time{noon.Add(-age - time.Minute)}, Changed: Time{noon.Add(-age)}, Age: Millis(age + time.Minute), Now: Time{noon},
		Reserved: Millis(reservedLeft), ReservedUntil: Time{noon.Add(reservedLeft)},
	}
	if state == joblock.StateHeld {
		l.Lease, l.ExpiresAt = Millis(leaseLeft), Time{noon.Add(leaseLeft)}
		l.TTL, l.Renewed = Millis(leaseLeft+5*time.Second), Time{noon.Add(-5 * time.Second)}
	}
	return l
}

func working(p KeeperPlace) Keeper {
	p.Number, p.Works, p.Every = 1, true, Millis(checksEvery)
	return Keeper{Places: []KeeperPlace{p}, Now: Time{noon}}
}

// taskStates are all states in which asynq may show the task of a job, as far as these differ for a lock.
var taskStates = map[string]Task{
	"unknown":         {State: TaskUnknown, Problem: "looking the task up in asynq failed: away."},
	"no queue":        {State: TaskNoQueue, Queue: "q", ID: "1"},
	"absent":          {State: TaskAbsent, Queue: "q", ID: "1"},
	"active":          {State: "active", Queue: "q", ID: "1", Type: "export", Attempt: 2, Attempts: 4, LastError: "no disk"},
	"crashed":         {State: "active", Queue: "q", ID: "1", Type: "export", Attempt: 2, Attempts: 4, Crashed: true},
	"pending":         {State: "pending", Queue: "q", ID: "1", Type: "export", Attempts: 4},
	"paused":          {State: "pending", Queue: "q", ID: "1", Type: "export", Attempts: 4, Paused: true},
	"scheduled":       {State: "scheduled", Queue: "q", ID: "1", Type: "export", Attempts: 4, NextAt: Time{noon.Add(time.Hour)}},
	"its turn":        {State: "scheduled", Queue: "q", ID: "1", Type: "export", Attempts: 4, Waits: true},
	"retry":           {State: "retry", Queue: "q", ID: "1", Type: "export", Attempt: 2, Attempts: 4, NextAt: Time{noon.Add(time.Minute)}, LastError: "no disk"},
	"aggregating":     {State: "aggregating", Queue: "q", ID: "1", Type: "export", Group: "g"},
	"archived":        {State: "archived", Queue: "q", ID: "1", Type: "export", Attempt: 4, Attempts: 4, LastError: "no disk", owners: []string{"digest"}},
	"archived before": {State: "archived", Queue: "q", ID: "1", Type: "export", Attempt: 4, Attempts: 4, owners: []string{"another"}},
	"snoozed":         {State: "archived", Queue: "q", ID: "1", Type: "export", Snoozed: true},
	"halted":          {State: "archived", Queue: "q", ID: "1", Type: "export", Attempt: 4, Attempts: 4, Halts: true, owners: []string{"digest"}},
	"completed":       {State: "completed", Queue: "q", ID: "1", Type: "export", CompletedAt: Time{noon.Add(-time.Minute)}, owners: []string{"digest"}},
}

// What frees a key by itself, in each state of a lock and each state of its job, with a keeper that works and without
// one. The rows follow from the tables in package worker's EXITS.md. The states of jobs in one row are alike.
func TestWhatFreesAKey(t *testing.T) {
	held, parked, orphaned := joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned
	const none = time.Duration(-1)
	type freed struct {
		by     FreesBy
		within time.Duration
	}
	seen := make(map[string]bool)
	for _, row := range []struct {
		state      joblock.State
		tasks      string
		with, sans freed // a keeper
		text       string
	}{
		{held, "active, crashed", freed{ByJob, none}, freed{ByJob, none}, "schedules the next attempt within 2 min"},
		{held, "pending, paused, scheduled, its turn, retry, aggregating, snoozed", freed{ByJob, none}, freed{ByJob, none}, "An earlier attempt still holds the lock"},
		{held, "archived, completed", freed{ByKeeper, leaseLeft + checksEvery}, freed{ByHolder, reservedLeft}, "still runs after its job has ended"},
		{held, "absent, archived before", freed{ByKeeper, leaseLeft + checksEvery}, freed{ByHolder, reservedLeft}, "still runs after its job has ended"},
		{held, "halted", freed{ByNothing, none}, freed{ByReservation, reservedLeft}, "halts"},
		{held, "unknown, no queue", freed{ByJob, none}, freed{ByJob, none}, "If the worker dies"},

		{parked, "pending, paused, scheduled, retry, aggregating", freed{ByJob, none}, freed{ByJob, reservedLeft}, "done or has failed for good"},
		{parked, "its turn", freed{ByJob, none}, freed{ByJob, reservedLeft}, "has its turn now"},
		{parked, "active", freed{ByJob, none}, freed{ByJob, reservedLeft}, "about to resume"},
		{parked, "crashed", freed{ByJob, none}, freed{ByJob, reservedLeft}, "has died or is cut off"},
		{parked, "snoozed", freed{ByJob, none}, freed{ByJob, none}, "comes back from the archive"},
		{parked, "archived, archived before, completed", freed{ByKeeper, checksEvery}, freed{ByReservation, reservedLeft}, "Its job is over"},
		{parked, "absent", freed{ByKeeper, checksEvery}, freed{ByReservation, reservedLeft}, ""},
		{parked, "halted", freed{ByNothing, none}, freed{ByReservation, reservedLeft}, "halts"},
		{parked, "no queue", freed{ByReservation, reservedLeft}, freed{ByReservation, reservedLeft}, "knows the job's queue"},
		{parked, "unknown", freed{ByJob, none}, freed{ByReservation, reservedLeft}, "done or has failed for good"},

		{orphaned, "pending, paused, scheduled, retry, aggregating", freed{ByJob, none}, freed{ByJob, reservedLeft}, "done or has failed for good"},
		{orphaned, "its turn", freed{ByJob, none}, freed{ByJob, reservedLeft}, "has its turn now"},
		{orphaned, "active, crashed", freed{ByJob, none}, freed{ByJob, reservedLeft}, "has died or is cut off"},
		{orphaned, "snoozed", freed{ByJob, none}, freed{ByJob, none}, "comes back from the archive"},
		{orphaned, "archived, archived before, completed", freed{ByKeeper, checksEvery}, freed{ByReservation, reservedLeft}, "Its job is over"},
		{orphaned, "absent", freed{ByKeeper, checksEvery}, freed{ByReservation, reservedLeft}, ""},
		{orphaned, "halted", freed{ByNothing, none}, freed{ByReservation, reservedLeft}, "halts"},
		{orphaned, "no queue", freed{ByReservation, reservedLeft}, freed{ByReservation, reservedLeft}, "knows the job's queue"},
		{orphaned, "unknown", freed{ByJob, none}, freed{ByReservation, reservedLeft}, "done or has failed for good"},
	} {
		for name := range strings.SplitSeq(row.tasks, ", ") {
			task, ok := taskStates[name]
			if !ok {
				t.Fatalf("there is no state %q", name)
			}
			seen[row.state.String()+" "+name] = true
			for keeper, want := range map[*Keeper]freed{{Places: []KeeperPlace{}}: row.sans, ptr(working(KeeperPlace{})): row.with} {
				l := lockIn(row.state, "q/1", 10*time.Minute)
				l.Task = &task
				got := explain(l, *keeper, true, nil, nil)
				within := none
				if !got.Frees.Latest.IsZero() {
					within = got.Frees.Latest.Sub(noon)
				}
				if got.Frees.By != want.by || within != want.within || !strings.Contains(got.Frees.Text, row.text) {
					t.Errorf("%s, %s, %d keepers: by %s within %s: %s\nwant by %s within %s, with %q",
						row.state, name, len(keeper.Places), got.Frees.By, within, got.Frees.Text, want.by, want.within, row.text)
				}
				if (got.Frees.If == "") != got.Frees.Latest.IsZero() {
					t.Errorf("%s, %s: latest %s if %q", row.state, name, got.Frees.Latest, got.Frees.If)
				}
				checkSentences(t, got)
			}
		}
	}
	for _, state := range []joblock.State{held, parked, orphaned} {
		for name := range taskStates {
			if !seen[state.String()+" "+name] {
				t.Errorf("no row has the state %s and the job's state %q", state, name)
			}
		}
	}
}

func ptr[T any](v T) *T { return &v }

// checkSentences fails the test if the explanation is not fit to be read.
func checkSentences(t *testing.T, e Explanation) {
	t.Helper()
	all := append([]string{e.Frees.Text}, e.Text...)
	for _, a := range e.Actions {
		all = append(all, a.Effect)
		if a.Danger != "" {
			all = append(all, a.Danger)
		}
	}
	for _, text := range all {
		if text == "" || !strings.HasSuffix(text, ".") || strings.Contains(text, "  ") || strings.Contains(text, "%!") || strings.Contains(text, "0001-01-01") {
			t.Errorf("not a sentence: %q", text)
		}
	}
}

// Just after its park, a lock may belong to a job whose enqueue is under way. The keeper then waits, unless the task that
// has ended carries the lock.
func TestYoungLocksAreFreedLater(t *testing.T) {
	for name, want := range map[string]time.Duration{
		"absent": 50*time.Second + checksEvery, "archived before": 50*time.Second + checksEvery, "archived": checksEvery, "completed": checksEvery,
	} {
		l := lockIn(joblock.StateParked, "q/1", 10*time.Second)
		l.Task = ptr(taskStates[name])
		got := explain(l, working(KeeperPlace{}), true, nil, nil).Frees
		if got.By != ByKeeper || got.Within.Duration() != want {
			t.Errorf("%s: by %s within %s, want by the keeper within %s", name, got.By, got.Within, want)
		}
		l.Reserved, l.ReservedUntil = Millis(time.Second), Time{noon.Add(time.Second)}
		if got := explain(l, working(KeeperPlace{}), true, nil, nil).Frees; got.Within.Duration() != time.Second {
			t.Errorf("%s: within %s, want the end of the reservation", name, got.Within)
		}
	}
}

func TestLocksWithoutAJob(t *testing.T) {
	for state, want := range map[joblock.State]FreesBy{
		joblock.StateHeld: ByHolder, joblock.StateParked: ByReservation, joblock.StateOrphaned: ByReservation,
	} {
		got := explain(lockIn(state, "", time.Minute), Keeper{}, true, nil, nil)
		if got.Frees.By != want || got.Frees.Within.Duration() != reservedLeft {
			t.Errorf("%s: %+v, want by %s within %s", state, got.Frees, want, reservedLeft)
		}
		checkSentences(t, got)
	}
	for _, l := range []Lock{
		{Key: "k", State: joblock.StateFree},
		{Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}, Ended: driver.EndedForced, Holder: "web:1", Changed: Time{noon.Add(-time.Minute)}, EndedAt: Time{noon.Add(-time.Minute)}, Reason: "stuck (by eva)"},
		{Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}, Ended: driver.EndedLapsed},
		{Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}, Ended: driver.EndedLapsed, EndedAt: Time{noon}, Renewed: Time{noon}, TTL: 1},
		{Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}, Line: []Waiter{{Position: 1, Holder: "w", Since: Time{noon}}}},
		{Key: "k", State: joblock.StateForeign},
	} {
		got := explain(l, Keeper{}, true, nil, nil)
		want := ByNone
		if l.State == joblock.StateForeign {
			want = ByNothing
		}
		if got.Frees.By != want || len(got.Actions) > 0 {
			t.Errorf("%s: %+v, want by %s and no action", l.State, got, want)
		}
		checkSentences(t, got)
	}
}

// The paragraphs name who, since when, what the job does, and who is next.
func TestParagraphs(t *testing.T) {
	l := lockIn(joblock.StateParked, "q/1", 10*time.Minute)
	l.Task = ptr(taskStates["retry"])
	l.Line = []Waiter{{Position: 1, Holder: "web-9:4", Since: Time{noon.Add(-30 * time.Second)}}, {Position: 2, Job: "q/2", Since: Time{noon}}}
	got := strings.Join(explain(l, working(KeeperPlace{}), true, nil, nil).Text, "\n")
	for _, want := range []string{
		`kept for the job "q/1" since 11:50:00 UTC (10 min ago), and is kept until 13:00:00 UTC, unless it is freed before`, "web-3:88",
		`waits for its next attempt, at 12:01:00 UTC (in 1 min). Attempt 2 of 4 ended with "no disk"`,
		"Next in line is web-9:4, which has waited since 11:59:30 UTC (30 s ago). 2 are waiting in all.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the text lacks %q:\n%s", want, got)
		}
	}
}

// What a key stands for that handoff.TaskKey has made: the type, and where the payload is, if it still is.
func TestKeysOfTasksAreNamed(t *testing.T) {
	const digest = "541dc1350123456789abcdef00000000"
	stands := `The key stands for all tasks of type "mail:welcome" with the same payload: its last part is a digest of that payload.`
	shown := ` "joblock jobs get --payload -- 'q/it'\''s'" shows the payload.`
	for name, task := range taskStates {
		for _, in := range []Lock{
			{Key: "unique:mail%3Awelcome:" + digest},
			{Key: "unique:mail%3Awelcome:" + digest + "%next", Role: RoleNext},
			{Key: "unique:mail%3Awelcome:" + digest + "%#2", Role: RolePermit, Group: "unique:mail%3Awelcome:" + digest, Number: 2},
		} {
			l := lockIn(joblock.StateParked, "q/it's", 10*time.Minute)
			l.Key, l.Role, l.Group, l.Number, l.Task = in.Key, in.Role, in.Group, in.Number, &task
			want := stands
			if name != "unknown" && name != "no queue" && name != "absent" {
				want += shown
			}
			if got := explain(l, working(KeeperPlace{}), true, nil, nil).Text; got[1] != want {
				t.Errorf("%s, %s: %q, want %q", name, in.Key, got[1], want)
			}
		}
	}
	l := lockIn(joblock.StateHeld, "", time.Minute)
	l.Key = "unique:mail%3Awelcome:" + digest
	if got := explain(l, Keeper{}, true, nil, nil).Text[1]; got != stands {
		t.Errorf("without a job: %q, want %q", got, stands)
	}
	l.Key = "unique:mail:welcome:" + digest
	if got := strings.Join(explain(l, Keeper{}, true, nil, nil).Text, "\n"); strings.Contains(got, "stands for") {
		t.Errorf("a key that TaskKey does not make: %s", got)
	}
}

// The holder of a resumed lock has had the lock for a shorter time than its owner.
func TestHolderOfAResumedLock(t *testing.T) {
	for state, want := range map[joblock.State]string{
		joblock.StateHeld:     `web-3:88 has had the lock since 11:50:00 UTC (10 min ago), for the job "q/1". The lock was first acquired at 11:49:00 UTC (11 min ago).`,
		joblock.StateOrphaned: `web-3:88 got the lock at 11:50:00 UTC (10 min ago) and did not give it back`,
	} {
		l := lockIn(state, "q/1", 10*time.Minute)
		if got := explain(l, Keeper{}, true, nil, nil).Text[0]; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s; want %s", state, got, want)
		}
		l.Changed = l.Since
		if got := explain(l, Keeper{}, true, nil, nil).Text[0]; strings.Contains(got, "acquired") {
			t.Errorf("%s, not resumed: %s", state, got)
		}
	}
}

func TestNothingSteersATerminal(t *testing.T) {
	l := lockIn(joblock.StateHeld, "q/\x1b[31m1", time.Minute)
	l.Holder, l.Key = "web\x1b]0;owned\a", "k\x9b1m"
	l.Line = []Waiter{{Holder: "\x1b[2J", Job: "\u202e/1"}}
	l.Task = ptr(Task{State: "retry", Type: "a\x1b[1mb", LastError: "line\nline\x1b[1m", Group: "\x1b"})
	e := explain(l, Keeper{}, true, nil, nil)
	all := strings.Join(e.Text, "") + e.Frees.Text
	for _, a := range e.Actions {
		all += a.Effect + a.Danger
	}
	for _, r := range all {
		if r < ' ' || 0x7f <= r && r < 0xa0 || r == '\u202e' || r == utf8.RuneError {
			t.Errorf("%q is in the text", r)
		}
	}
}

func TestLengthsInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0 ms", 0: "0 ms", 250 * time.Millisecond: "250 ms", 1499 * time.Millisecond: "1 s", 21 * time.Second: "21 s",
		time.Minute: "1 min", 4*time.Minute + 10*time.Second: "4 min 10 s", time.Hour: "1 h", 59*time.Minute + 59*time.Second: "1 h",
		3*time.Hour + 29*time.Minute: "3 h 29 min", 74 * time.Hour: "3 d 2 h", 24 * time.Hour: "1 d", 59600 * time.Millisecond: "1 min",
		23*time.Hour + 59*time.Minute + 59*time.Second: "1 d",
	} {
		if got := length(d); got != want {
			t.Errorf("%s in words is %q, want %q", d, got, want)
		}
	}
}

// A forced release kills a command under "joblock run", and its operator reads so before. A handler is never killed.
func TestForceSaysWhomItKills(t *testing.T) {
	for job, kills := range map[string]bool{"": true, "q/1": false} {
		got := explain(lockIn(joblock.StateHeld, job, time.Minute), Keeper{}, true, nil, nil)
		last := got.Actions[len(got.Actions)-1]
		if last.Name != ActForce || strings.Contains(last.Effect, "SIGKILL") != kills || !strings.Contains(last.Effect, "not stopped") {
			t.Errorf("job %q: %+v; kills %t", job, last, kills)
		}
	}
}

// A time that counts only for a dead holder is no promise: the condition comes first, and nothing is "at the latest".
func TestTimesOfDeadHolders(t *testing.T) {
	got := explain(lockIn(joblock.StateHeld, "", time.Minute), Keeper{}, true, nil, nil)
	text := got.Frees.Text + got.Actions[0].Effect
	if strings.Contains(text, "at the latest") || !strings.Contains(text, "If the holder is dead: others can get the key from 13:00:00 UTC") {
		t.Error(text)
	}
}

// The explanation of a task that hangs says that more attempts follow a cancelled one, how long they may go on, and in
// which order a running task is deleted.
func TestATaskThatHangs(t *testing.T) {
	l := lockIn(joblock.StateHeld, "q/1", 10*time.Minute)
	task := Task{State: "active", Queue: "q", ID: "1", Type: "export", Attempt: 2, Attempts: 26, Timeout: Millis(time.Hour)}
	effect := func() string {
		l.Task = &task
		e := explain(l, working(KeeperPlace{}), true, nil, nil)
		checkSentences(t, e)
		if want := "25 attempts are left: 1 d 1 h in all"; task.Attempt == 2 && !strings.Contains(e.Frees.Text, want) {
			t.Errorf("%s; want %q", e.Frees.Text, want)
		}
		i := slices.IndexFunc(e.Actions, func(a Offer) bool { return a.Name == ActCancelTask })
		return e.Actions[i].Effect
	}
	if got := effect(); !strings.Contains(got, "Attempt 3 of 26 follows, and may hang again.") {
		t.Error(got)
	}
	if task.Attempt = 26; !strings.Contains(effect(), "This attempt is the last one") {
		t.Error(effect())
	}
	if err := task.Check(ActDeleteTask); !errors.Is(err, joblock.ErrBusy) || !strings.Contains(err.Error(), "cancel it with then=drop") {
		t.Error(err)
	}
	testkit.WantNil(t, "Check", task.Check(ActCancelTask))
	task.State = "retry"
	testkit.WantErr(t, task.Check(ActCancelTask), joblock.ErrBusy)
	testkit.WantNil(t, "Check", task.Check(ActDeleteTask))
}

// A keeper that frees what a job has left behind is no operator who forces.
func TestExplainOfAKeyThatAKeeperFreed(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("left", "default/1")
		release := jobs.Release{Key: "left", Job: "default/1", Fence: s.lock("left").Fence, Reason: workerstats.KeeperReason + "the task does not exist"}
		testkit.WantNil(t, "Free", errors.Join(jobs.Free(t.Context(), s.locks, release)...))
		for key, want := range map[string]string{
			"left":  "left it behind, and a keeper freed it at ",
			"leftt": "The store has no record of this key: the key is free",
		} {
			e, err := s.Explain(t.Context(), key)
			testkit.WantNil(t, "Explain", err)
			if text := strings.Join(e.Text, "\n"); !strings.Contains(text, want) || strings.Contains(text, "forced") {
				t.Errorf("%s: no %q in:\n%s", key, want, text)
			}
		}
	})
}

// What is said of a task before it is deleted names the time that is said of its lock afterwards.
func TestTheTimeOfADeletedTaskIsOne(t *testing.T) {
	for _, state := range []joblock.State{joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned} {
		for _, age := range []time.Duration{time.Second, 10 * time.Minute} {
			before, after := lockIn(state, "q/1", age), lockIn(state, "q/1", age)
			task, gone := taskStates["retry"], taskStates["absent"]
			before.Task, after.Task = &task, &gone
			at := explain(after, working(KeeperPlace{}), true, nil, nil).Frees.Latest.UTC().Format("15:04:05 UTC")
			i := slices.IndexFunc(explain(before, working(KeeperPlace{}), true, nil, nil).Actions, func(a Offer) bool {
				return a.Name == ActDeleteTask && strings.Contains(a.Effect, "A keeper frees the lock at "+at+" at the latest")
			})
			if i < 0 {
				t.Errorf("%s for %s: no %s in %+v", state, age, at, explain(before, working(KeeperPlace{}), true, nil, nil).Actions)
			}
		}
	}
}

// A command under "joblock run" may have ended while the key is still taken: the explanation says by what.
func TestExplainSaysWhatKeepsTheKeyOfRun(t *testing.T) {
	for holder, want := range map[string]bool{
		"web-3:88 backup.sh": true, "[::1]:88 make": true,
		"web-3:88": false, "web-3 backup.sh": false, "a script": false, ":8 x": false, "web-3:x y": false,
	} {
		l := lockIn(joblock.StateHeld, "", time.Second)
		l.Holder = holder
		e := explain(l, Keeper{}, true, nil, nil)
		checkSentences(t, e)
		if got := strings.Contains(e.Frees.Text, "all processes that the command has left behind"); got != want {
			t.Errorf("%q: %s", holder, e.Frees.Text)
		}
	}
}

// Who deletes the task of a group, because of one of its locks, reads that the work of others ends with it.
func TestDangerOfDeletingAnAggregate(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		token := s.park("export:7", "default/1")
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "export", State: asynq.TaskStatePending, MaxRetry: 4,
			Headers: s.header(token, "default/1", "export", func(e *envelope.Envelope) { e.Members = 3 })})
		got, err := s.Explain(t.Context(), "export:7")
		testkit.WantNil(t, "Explain", err)
		if i := slices.IndexFunc(got.Actions, func(a Offer) bool { return a.Name == ActDeleteTask }); i < 0 || !strings.Contains(got.Actions[i].Danger, "3 tasks of a group") {
			t.Errorf("%+v, want a danger that names the three tasks", got.Actions)
		}
	})
}

// A key whose job has it only until it starts, or which cools down after the job, is not free when the job ends.
func TestExplainOfAKeyThatDoesNotEndWithItsJob(t *testing.T) {
	for name, tt := range map[string]struct {
		unique handoff.Unique
		want   []string
		ends   bool // JobEnds is known
	}{
		"neither":        {handoff.Unique{}, []string{"The worker frees the key when the job is done or has failed for good.", "If all 4 remaining attempts fail"}, true},
		"until started":  {handoff.Unique{UntilStarted: true}, []string{"The worker frees the key when the job starts."}, false},
		"a cooldown":     {handoff.Unique{Cooldown: 72 * time.Hour}, []string{"has failed for good. When the job is done, its key cools down for 3 d", "If all 4 remaining attempts fail"}, true},
		"both":           {handoff.Unique{UntilStarted: true, Cooldown: time.Hour}, []string{"When the job starts, its key cools down for 1 h"}, false},
		"of the next":    {handoff.Unique{OnConflict: handoff.KeepLast}, []string{"The worker frees the key when the job starts."}, false},
		"next, cooldown": {handoff.Unique{OnConflict: handoff.KeepLast, Cooldown: time.Hour}, []string{"The worker frees the key when the job starts."}, false},
	} {
		t.Run(name, func(t *testing.T) {
			planted(t, func(t *testing.T, p *plant) {
				client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
				testkit.WantNil(t, "NewClient", err)
				defer func() { testkit.WantNil(t, "Close", client.Close(context.Background())) }()
				key := "k"
				tt.unique.Key = key
				if tt.unique.OnConflict == handoff.KeepLast {
					key = keyspace.Next(key)
				}
				_, err = client.Enqueue(t.Context(), tt.unique, asynq.NewTask("export", nil, asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.ProcessIn(time.Hour)))
				testkit.WantNil(t, "Enqueue", err)
				e, err := p.Explain(t.Context(), key)
				testkit.WantNil(t, "Explain", err)
				checkSentences(t, e)
				for _, want := range tt.want {
					if !strings.Contains(e.Frees.Text, want) {
						t.Errorf("%q is not in: %s", want, e.Frees.Text)
					}
				}
				if e.Frees.JobEnds.IsZero() == tt.ends || !tt.ends && strings.Contains(e.Frees.Text, "the job ends by itself") {
					t.Errorf("the latest end is %s: %s", e.Frees.JobEnds, e.Frees.Text)
				}
				for _, a := range e.Actions {
					if frees := strings.Contains(a.Effect, "frees the key when it ends"); a.Name == ActWait && frees != (name == "neither") {
						t.Errorf("to wait: %s", a.Effect)
					}
				}
			})
		})
	}
}

// A keeper prolongs the permit of a job as long as the job lives, so the end of the reservation frees nothing.
func TestExplainOfALimitWhosePermitsJobsHave(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
		testkit.WantNil(t, "NewClient", err)
		defer func() { testkit.WantNil(t, "Close", client.Close(context.Background())) }()
		enqueue := func() {
			t.Helper()
			_, err := client.Enqueue(t.Context(), handoff.Unique{Key: "k", Limit: 2}, asynq.NewTask("export", nil, asynq.ProcessIn(24*time.Hour)))
			testkit.WantNil(t, "Enqueue", err)
		}
		check := func(by FreesBy, known bool, want string) {
			t.Helper()
			e, err := p.Explain(t.Context(), "k")
			testkit.WantNil(t, "Explain", err)
			checkSentences(t, e)
			waits := slices.ContainsFunc(e.Actions, func(o Offer) bool {
				return o.Name == ActWait && strings.Contains(o.Effect, "neither renewed nor prolonged")
			})
			if f := e.Frees; f.By != by || f.Latest.IsZero() == known || !strings.Contains(f.Text, want) || waits != known {
				t.Errorf("%+v and %+v, want %s, %t, %q", f, e.Actions, by, known, want)
			}
		}
		enqueue()
		lock, err := limit.New(p.locks, 2).TryAcquire(t.Context(), "k", joblock.NoRenew())
		testkit.WantNil(t, "TryAcquire", err)
		check(ByNone, false, "How many may have the key at a time is not known.")
		if _, err := limit.New(p.locks, 2).TryAcquire(t.Context(), "k"); !errors.Is(err, joblock.ErrHeld) { // it says the number
			t.Errorf("a third caller: %v, want ErrHeld", err)
		}
		check(ByHolder, true, "If it is not renewed, number "+map[string]string{"k%#1": "1", "k%#2": "2"}[lock.Key()]+" is free at")
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
		enqueue()
		check(ByJob, false, `A keeper prolongs their reservations until then. "joblock explain -- 'k%#1'" shows`)
		p.retire()
		time.Sleep(time.Minute)
		check(ByHolder, true, "If it is not renewed, number ")
	})
}

// Of a key that cools down, people read after which job, until when, and that nothing is to be done.
func TestExplainOfACooldown(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("k", envelope.Cooling("default/1"))
		e, err := s.Explain(t.Context(), "k")
		testkit.WantNil(t, "Explain", err)
		checkSentences(t, e)
		text := strings.Join(e.Text, "\n")
		if !strings.Contains(text, `The key cools down after the job "default/1", since `) || strings.Contains(text, "asynq") {
			t.Errorf("the text is:\n%s", text)
		}
		if e.Frees.By != ByReservation || !strings.Contains(e.Frees.Text, "ends by itself") || !e.Frees.Latest.Equal(e.Lock.ReservedUntil.Time) {
			t.Errorf("what frees the key: %+v", e.Frees)
		}
		if name := JobName(e.Lock.Job); name != "none: cools down after default/1" {
			t.Errorf("the name of its job is %q", name)
		}
		next, err := (*core.Locker)(s.locks).TryAcquire(t.Context(), keyspace.Next("k"), core.Options{OwnKey: true})
		testkit.WantNil(t, "TryAcquire", err)
		_, err = next.Park(t.Context(), core.Park{Job: "default/2", Reserve: time.Hour})
		testkit.WantNil(t, "Park", err)
		e, err = s.Explain(t.Context(), "k")
		testkit.WantNil(t, "Explain", err)
		if text := strings.Join(e.Text, "\n"); !strings.Contains(text, `"default/2"`) || strings.Contains(text, "no waiters") {
			t.Errorf("the newest job waits, and the text is:\n%s", text)
		}
		if text := keptFor(envelope.Cooling("default/1")); text != ": the key cools down after the job default/1" {
			t.Errorf("the event says %q", text)
		}
	})
}
