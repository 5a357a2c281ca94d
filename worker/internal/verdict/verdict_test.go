package verdict

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
)

func TestTries(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		tries                    Tries
		last, spent              bool
		snooze, byArchive, bears bool // byArchive: of a task without locks; bears: of one with locks
	}{
		{"first of two", Tries{Retried: 0, Budget: 1, Limit: 2, Configured: true}, false, false, true, false, false},
		{"last, with a spare retry", Tries{Retried: 1, Budget: 1, Limit: 2, Configured: true}, true, false, true, false, false},
		{"last, without one", Tries{Retried: 1, Budget: 1, Limit: 1, Configured: true}, true, false, false, true, false},
		{"the spare retry, or a rerun", Tries{Retried: 2, Budget: 1, Limit: 2, Configured: true}, true, true, false, true, true},
		{"without Configure", Tries{Retried: 0, Budget: 1, Limit: 2}, false, false, false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.tries.Last(); got != tt.last {
				t.Errorf("Last is %t", got)
			}
			if got := tt.tries.Spent(); got != tt.spent {
				t.Errorf("Spent is %t", got)
			}
			if got := tt.tries.CanSnooze(); got != tt.snooze {
				t.Errorf("CanSnooze is %t", got)
			}
			if got := tt.tries.CanSnoozeByArchive(false); got != tt.byArchive {
				t.Errorf("CanSnoozeByArchive of a task without locks is %t", got)
			}
			if got := tt.tries.CanSnoozeByArchive(true); got != tt.bears {
				t.Errorf("CanSnoozeByArchive of a task with locks is %t", got)
			}
		})
	}
}

func TestBounce(t *testing.T) {
	crash := asynq.ErrLeaseExpired.Error()
	last, spent := Tries{Retried: 1, Budget: 1, Limit: 2, Configured: true}, Tries{Retried: 2, Budget: 1, Limit: 2, Configured: true}
	bare := spent
	bare.Configured = false
	for _, tt := range []struct {
		name               string
		tries              Tries
		last               string
		charged, unsettled bool
		bounces, reported  bool
	}{
		{"a crash that was charged", last, crash, true, true, false, false},
		{"a crash that was not charged", last, crash, false, true, true, false},
		{"another error before", last, "boom", false, true, false, false},
		{"a crash of the last attempt", spent, crash, true, true, true, false},
		{"a crash of a rerun", spent, crash, true, false, false, false},
		{"a rerun after a failure", spent, "boom", true, true, false, false},
		{"a rerun after a bounce", spent, jobline.SpentText + "boom", true, true, false, false},
		{"out of the archive", spent, "text of another: " + jobline.ArchiveText + "busy", true, true, false, false},
		{"without Configure, a crash", bare, crash, true, true, true, false},
		{"without Configure, a failure", bare, "boom", true, true, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.tries.Bounce(tt.last, func() bool { return tt.charged }, func() bool { return tt.unsettled })
			if (err != nil) != tt.bounces {
				t.Fatalf("Bounce is %v, want an error: %t", err, tt.bounces)
			}
			if err != nil && (!err.Spent || err.Reported != tt.reported || !errors.Is(err, asynq.SkipRetry)) {
				t.Errorf("the error is %+v, want Reported = %t", err, tt.reported)
			}
		})
	}
	if last.MayBounce(false) || !last.MayBounce(true) || !spent.MayBounce(false) {
		t.Error("MayBounce is wrong")
	}
}

func lockError(code error, left time.Duration) error {
	return fmt.Errorf("worker: %w", &joblock.Error{Code: joblock.CodeOf(code), Remaining: left})
}

func TestSnoozeFor(t *testing.T) {
	const most = time.Minute
	snoozed := &Snooze{Err: errors.New("early"), Delay: time.Hour}
	for _, tt := range []struct {
		name string
		err  error
		want time.Duration // before the jitter; 0 for nil
	}{
		{"nil", nil, 0},
		{"an error of the handler", errors.New("boom"), 0},
		{"an earlier attempt runs for long", lockError(joblock.ErrBusy, time.Hour), busyPause},
		{"an earlier attempt is nearly over", lockError(joblock.ErrBusy, time.Millisecond), time.Second},
		{"held for long", lockError(joblock.ErrHeld, time.Hour), most},
		{"held for short", lockError(joblock.ErrHeld, 10*time.Second), 10 * time.Second},
		{"waited too long", lockError(joblock.ErrTimeout, 10*time.Second), 10 * time.Second},
		{"no answer", lockError(joblock.ErrUnavailable, 0), most},
		{"closed", lockError(joblock.ErrClosed, 0), most},
		{"gone", lockError(joblock.ErrNotFound, 0), 0},
		{"invalid", lockError(joblock.ErrInvalid, 0), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := SnoozeFor(tt.err, most)
			switch {
			case (got == nil) != (tt.want == 0):
				t.Errorf("SnoozeFor is %v, want a delay of %s", got, tt.want)
			case got != nil && (got.Delay < tt.want || got.Delay > tt.want+tt.want/4 || !errors.Is(got, tt.err)):
				t.Errorf("SnoozeFor is %v for %s, want %s and the jitter", got, got.Delay, tt.want)
			}
		})
	}
	if got := SnoozeFor(fmt.Errorf("outer: %w", snoozed), most); got != snoozed {
		t.Errorf("SnoozeFor of a Snooze is %v", got)
	}
}

func TestRefused(t *testing.T) {
	held, away := lockError(joblock.ErrHeld, time.Minute), lockError(joblock.ErrUnavailable, 0)
	waits := error(&Snooze{Err: errors.New("in line, or paused"), Delay: time.Hour})
	retry, none := Tries{Limit: 1, Configured: true}, Tries{Configured: true}
	for _, tt := range []struct {
		name   string
		err    error
		ifBusy IfBusy
		late   bool
		tries  Tries
		want   Busy
	}{
		{"busy", held, SnoozeIfBusy, false, retry, SnoozeTask},
		{"busy, DropIfBusy", held, DropIfBusy, false, retry, DropTask},
		{"busy, FailIfBusy", held, FailIfBusy, false, retry, FailTask},
		{"busy, no retry left", held, SnoozeIfBusy, false, none, ArchiveTask},
		{"busy, without Configure", held, SnoozeIfBusy, false, Tries{}, WaitOn},
		{"busy, without Configure, late", held, SnoozeIfBusy, true, Tries{}, OutOfTime},
		{"no answer", away, DropIfBusy, false, retry, SnoozeTask},
		{"no answer, no retry left", away, SnoozeIfBusy, false, none, WaitOn},
		{"no answer, no retry left, late", away, SnoozeIfBusy, true, none, ArchiveTask},
		{"in line, or paused", waits, SnoozeIfBusy, false, retry, SnoozeTask},
		{"in line, no retry left", waits, SnoozeIfBusy, false, none, ArchiveTask},
		{"in line, no answer, no retry left", away, SnoozeIfBusy, false, none, WaitOn},
		{"invalid", lockError(joblock.ErrInvalid, 0), SnoozeIfBusy, false, retry, FailTask},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Refused{Err: tt.err, Snooze: SnoozeFor(tt.err, time.Minute), IfBusy: tt.ifBusy, Late: tt.late, Tries: tt.tries}
			if got := r.Next(); got != tt.want {
				t.Errorf("Next is %d, want %d", got, tt.want)
			}
		})
	}
}

func TestWait(t *testing.T) {
	long := time.Minute
	for _, tt := range []struct {
		name    string
		wait    Wait
		free    bool
		left    time.Duration // until the deadline
		longest time.Duration
		inPlace time.Duration
	}{
		{"a place is free", Wait{CanSnooze: true}, true, time.Hour, 6 * time.Minute, defaultMaxWait},
		{"a place is free, little time", Wait{CanSnooze: true}, true, 10 * time.Second, time.Second, time.Second},
		{"no place", Wait{CanSnooze: true}, false, time.Hour, 6 * time.Minute, 0},
		{"no place, short locks", Wait{CanSnooze: true, Brisk: true}, false, time.Hour, 6 * time.Minute, shortWait},
		{"no place, short locks, called", Wait{CanSnooze: true, Brisk: true, Called: true}, false, time.Hour, 6 * time.Minute, calledWait},
		{"no place, long locks, called", Wait{CanSnooze: true, Called: true}, false, time.Hour, 6 * time.Minute, 0},
		{"MaxWait", Wait{CanSnooze: true, MaxWait: long}, true, time.Hour, 6 * time.Minute, long},
		{"drop", Wait{IfBusy: DropIfBusy}, true, time.Hour, 6 * time.Minute, 0},
		{"drop, MaxWait", Wait{IfBusy: DropIfBusy, MaxWait: long}, true, time.Hour, 6 * time.Minute, long},
		{"no snooze", Wait{}, false, time.Hour, 30 * time.Minute, 30 * time.Minute},
		{"no snooze, MaxWait", Wait{MaxWait: long}, false, time.Hour, 30 * time.Minute, 30 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			longest := tt.wait.Longest(tt.left)
			if longest != tt.longest {
				t.Errorf("Longest is %s, want %s", longest, tt.longest)
			}
			if got := tt.wait.InPlace(longest, func() bool { return tt.free }); got != tt.inPlace {
				t.Errorf("InPlace is %s, want %s", got, tt.inPlace)
			}
		})
	}
}

func TestEndOf(t *testing.T) {
	first, last, rerun := Tries{Budget: 1, Limit: 2}, Tries{Retried: 1, Budget: 1, Limit: 2}, Tries{Retried: 2, Budget: 1, Limit: 2}
	boom, snoozed := errors.New("boom"), &Snooze{Err: errors.New("busy"), Delay: time.Minute}
	late := &HeldTooLong{"too long", boom}
	for _, tt := range []struct {
		name   string
		tries  Tries
		err    error
		settle Settle
		reason string
		done   bool
		asynq  error // what the result matches; nil for nil
	}{
		{"success", first, nil, Release, ReasonDone, true, nil},
		{"RevokeTask", first, asynq.RevokeTask, Release, ReasonRevoked, true, asynq.RevokeTask},
		{"superseded", first, &Superseded{"q/b"}, Release, ReasonSuperseded, true, asynq.RevokeTask},
		{"superseded on the last attempt", last, &Superseded{"q/b"}, Release, ReasonSuperseded, true, ErrSuperseded},
		{"RevokeTask on the last attempt", last, asynq.RevokeTask, Release, ReasonRevoked, true, asynq.RevokeTask},
		{"SkipRetry", first, fmt.Errorf("no: %w", asynq.SkipRetry), Release, ReasonFailed, false, asynq.SkipRetry},
		{"an error", first, boom, Park, "", false, nil},
		{"a panic", first, ErrPanicked, Park, "", false, nil},
		{"an error on the last attempt", last, boom, Release, ReasonFailed, false, asynq.SkipRetry},
		{"an error of a rerun", rerun, boom, Release, ReasonFailed, false, asynq.SkipRetry},
		{"too long", first, late, Release, ReasonHeld, false, asynq.SkipRetry},
		{"snoozed", last, snoozed, BackOut, "", false, snoozed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.tries.EndOf(tt.err)
			if got.Settle != tt.settle || got.Reason != tt.reason || IsDone(got.Reason) != tt.done || !errors.Is(got.Err, tt.asynq) {
				t.Errorf("EndOf is %+v", got)
			}
			if fe, ok := errors.AsType[*Final](got.Err); ok && fe.Spent != tt.tries.Spent() {
				t.Errorf("Spent is %t", fe.Spent)
			}
		})
	}
}

func TestSupersedes(t *testing.T) {
	now := time.Now()
	for want, infos := range map[bool][]asynq.TaskInfo{
		true: {
			{State: asynq.TaskStatePending}, {State: asynq.TaskStateActive},
			{State: asynq.TaskStateRetry, NextProcessAt: now.Add(time.Hour)}, // it was there before, and found the key busy
			{State: asynq.TaskStateScheduled, NextProcessAt: now.Add(-time.Second)},
		},
		false: {
			{State: asynq.TaskStateScheduled, NextProcessAt: now.Add(time.Hour)}, {State: asynq.TaskStateAggregating},
			{State: asynq.TaskStateArchived}, {State: asynq.TaskStateCompleted},
		},
	} {
		for _, info := range infos {
			if got := Supersedes(&info); got != want {
				t.Errorf("Supersedes is %t for a task that is %s, due in %s", got, info.State, time.Until(info.NextProcessAt))
			}
		}
	}
}

func TestAfterLoss(t *testing.T) {
	lost, boom := lockError(joblock.ErrLost, 0), errors.New("boom")
	for _, tt := range []struct {
		name       string
		err, cause error
		lock       error
		want       bool
	}{
		{"the loss itself", lost, lost, lost, true},
		{"the end of the context", context.Canceled, lost, lost, true},
		{"another end of the context", context.Canceled, context.Canceled, lost, false},
		{"an error that is not due to the loss", boom, lost, lost, false},
		{"SkipRetry", fmt.Errorf("%w: %w", lost, asynq.SkipRetry), lost, lost, false},
		{"RevokeTask", fmt.Errorf("%w: %w", lost, asynq.RevokeTask), lost, lost, false},
		{"no lock of the attempt", lost, nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := AfterLoss(tt.err, tt.cause, []error{nil, tt.lock}); got != tt.want {
				t.Errorf("AfterLoss is %t", got)
			}
		})
	}
}

func TestTooLong(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name              string
		key               string
		held, delay, most time.Duration
		want              bool
	}{
		{"no bound", "k", time.Hour, time.Hour, 0, false},
		{"no key", "", 0, time.Hour, time.Minute, false},
		{"just in time", "k", 30 * time.Second, 30 * time.Second, time.Minute, false},
		{"too late", "k", 31 * time.Second, 30 * time.Second, time.Minute, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := TooLong(tt.key, tt.held, tt.delay, tt.most, boom)
			if (err != nil) != tt.want || err != nil && (!errors.Is(err, boom) || !errors.Is(err, asynq.SkipRetry)) {
				t.Errorf("TooLong is %v", err)
			}
		})
	}
}

func TestFailed(t *testing.T) {
	first, last, spare := Tries{Budget: 1, Limit: 2}, Tries{Retried: 1, Budget: 1, Limit: 2}, Tries{Retried: 2, Budget: 1, Limit: 2}
	boom := errors.New("boom")
	for _, tt := range []struct {
		name  string
		tries Tries
		err   error
		want  Failure
	}{
		{"an error", first, boom, MayRunOn},
		{"an error on the last attempt", last, boom, Archive},
		{"an error on the spare retry", spare, boom, FreeLocks},
		{"a lost lease", last, asynq.ErrLeaseExpired, Leave},
		{"RevokeTask", last, asynq.RevokeTask, Leave},
		{"SkipRetry", first, asynq.SkipRetry, Leave},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.tries.Failed(tt.err); got != tt.want {
				t.Errorf("Failed is %d, want %d", got, tt.want)
			}
		})
	}
}

func TestFates(t *testing.T) {
	at := time.Now().Add(time.Hour)
	task := func(state asynq.TaskState, last string) *asynq.TaskInfo {
		return &asynq.TaskInfo{State: state, LastErr: last, NextProcessAt: at, Headers: map[string]string{envelope.Header: "h"}}
	}
	other := task(asynq.TaskStatePending, "")
	other.Headers = nil
	late := task(asynq.TaskStateRetry, "deadline")
	late.Deadline = time.Now().Add(-time.Second)
	over, failed, again, unknown := Fate{Written: true, Over: ReasonGone}, Fate{Written: true, Over: ReasonFailed}, Fate{Written: true, Delay: time.Hour}, Fate{}
	atOnce := Fate{Written: true}
	for _, tt := range []struct {
		name    string
		info    *asynq.TaskInfo
		err     error
		archive string
		last    bool
		want    Fate
		inOrder Fate
	}{
		{"no task", nil, asynq.ErrTaskNotFound, "", true, over, over},
		{"no queue", nil, asynq.ErrQueueNotFound, "", true, over, over},
		{"no answer", nil, errors.New("no answer"), "", true, atOnce, unknown},
		{"active", task(asynq.TaskStateActive, ""), nil, "", true, unknown, unknown},
		{"retry", task(asynq.TaskStateRetry, "boom"), nil, "", true, again, again},
		{"retry, to be archived", task(asynq.TaskStateRetry, "deadline"), nil, "deadline", true, failed, again},
		{"retry, with another error", task(asynq.TaskStateRetry, "boom"), nil, "deadline", true, again, again},
		{"retry, and not the last", task(asynq.TaskStateRetry, "deadline"), nil, "deadline", false, again, again},
		{"retry after the Deadline", late, nil, "deadline", false, failed, again},
		{"archived", task(asynq.TaskStateArchived, "boom"), nil, "", true, failed, failed},
		{"archived for a snooze", task(asynq.TaskStateArchived, jobline.ArchiveText), nil, "", true, atOnce, atOnce},
		{"completed", task(asynq.TaskStateCompleted, ""), nil, "", true, over, over},
		{"another task with the ID", other, nil, "", true, again, over},
	} {
		t.Run(tt.name, func(t *testing.T) {
			round := func(f Fate) Fate { f.Delay = f.Delay.Round(time.Minute); return f }
			if got := round(FateOf(tt.info, tt.err, tt.archive, tt.last)); got != tt.want {
				t.Errorf("FateOf is %+v, want %+v", got, tt.want)
			}
			if got := round(FateInOrder(tt.info, tt.err, "h")); got != tt.inOrder {
				t.Errorf("FateInOrder is %+v, want %+v", got, tt.inOrder)
			}
		})
	}
}

func TestMoves(t *testing.T) {
	task := func(state asynq.TaskState, last string) *asynq.TaskInfo {
		return &asynq.TaskInfo{State: state, LastErr: last}
	}
	for _, tt := range []struct {
		name                           string
		info                           *asynq.TaskInfo
		err                            error
		archive, mayRetry, run, leaves Move
	}{
		{"no task", nil, asynq.ErrTaskNotFound, GiveUp, GiveUp, GiveUp, GiveUp},
		{"no answer", nil, errors.New("no answer"), LookAgain, LookAgain, GiveUp, LookAgain},
		{"active", task(asynq.TaskStateActive, ""), nil, LookAgain, GiveUp, LookAgain, LookAgain},
		{"retry with the error", task(asynq.TaskStateRetry, "boom"), nil, Now, GiveUp, GiveUp, GiveUp},
		{"retry with another error", task(asynq.TaskStateRetry, "bang"), nil, GiveUp, GiveUp, GiveUp, GiveUp},
		{"retry for a snooze", task(asynq.TaskStateRetry, SnoozeText+"busy"), nil, GiveUp, GiveUp, Now, GiveUp},
		{"archived for a snooze", task(asynq.TaskStateArchived, jobline.ArchiveText), nil, GiveUp, GiveUp, LookAgain, Now},
		{"archived with the error", task(asynq.TaskStateArchived, "boom"), nil, GiveUp, GiveUp, GiveUp, Now},
		{"archived with another error", task(asynq.TaskStateArchived, "bang"), nil, GiveUp, GiveUp, GiveUp, GiveUp},
		{"pending", task(asynq.TaskStatePending, ""), nil, GiveUp, GiveUp, GiveUp, GiveUp},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ArchiveNow(tt.info, tt.err, "boom", false); got != tt.archive {
				t.Errorf("ArchiveNow is %d, want %d", got, tt.archive)
			}
			if got := ArchiveNow(tt.info, tt.err, "boom", true); got != tt.mayRetry { // no Deadline has passed
				t.Errorf("ArchiveNow of a task with retries is %d, want %d", got, tt.mayRetry)
			}
			if got := RunSnoozed(tt.info, tt.err); got != tt.run {
				t.Errorf("RunSnoozed is %d, want %d", got, tt.run)
			}
			if got := LeaveArchive(tt.info, tt.err, "boom"); got != tt.leaves {
				t.Errorf("LeaveArchive is %d, want %d", got, tt.leaves)
			}
		})
	}
}
