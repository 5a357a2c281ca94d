package ops

import (
	"fmt"
	"strings"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/joblock/event"
)

// sentence describes the event, without a full stop. It escapes texts of applications.
func (e *Event) sentence() string {
	if kind, ok := strings.CutPrefix(e.Kind, eventlog.CronKind("")); ok {
		return e.cronSentence(kind)
	}
	if e.Kind == EventDropped {
		return fmt.Sprintf("%s has dropped %d events here, because Redis did not take them in time", visible(e.Source), e.Dropped)
	}
	who, text := e.who(), ""
	switch e.Kind {
	case event.Acquired.String():
		text = who + " got the lock"
		if e.Waited > 0 {
			text += " after a wait of " + length(e.Waited.Duration())
		}
		if e.Prior == "lapsed" {
			text += "; the lock of the previous holder had lapsed: its lease was not renewed in time"
		}
	case event.Contended.String():
		text = visibleOr(e.Source, "a caller") + " found the key busy: " + who + " has it"
		if e.Remaining > 0 {
			text += ", for " + length(e.Remaining.Duration()) + " more unless that is prolonged or the key is freed"
		}
	case event.GaveUp.String():
		text = fmt.Sprintf("%s gave up after a wait of %s: %s has the key", visible(e.Source), length(e.Waited.Duration()), who)
	case event.Resumed.String():
		text = who + " resumed the lock"
		if e.Recovered {
			text += ", although its reservation had run out"
		}
	case event.Reclaimed.String():
		text = who + " has taken the lock back"
	case event.Parked.String():
		text = fmt.Sprintf("%s no longer runs under the lock, after %s", visibleOr(e.Holder, "a holder without a label"), length(e.Held.Duration())) + keptFor(e.Job)
	case event.Released.String():
		text = fmt.Sprintf("%s has released the lock, after %s", who, length(e.Held.Duration()))
		if e.Error != "" {
			text += "; Redis has not answered yet"
		}
	case event.Lost.String():
		text = fmt.Sprintf("%s has lost the lock, after %s", who, length(e.Held.Duration()))
	case event.RenewedLate.String():
		text = fmt.Sprintf("%s has renewed the lock %s late", who, length(e.Late.Duration()))
	case event.RenewalUnanswered.String():
		text = fmt.Sprintf("%d renewals of %s got no answer", e.Locks, visible(e.Source))
	case event.ReleasedByToken.String():
		text = "the lock was released by token"
	case event.Freed.String():
		text = "the key was freed while no holder ran under its lock"
		if e.Job != "" {
			text = "the key was freed, because its job does not run again"
		}
	case event.Forced.String():
		text = freedByForce(e.Reason)
	case event.CleanupFailed.String():
		text = visible(e.Source) + " could not clean up after a call without an answer, so a lock may be left behind until its lease ends"
	case event.FellBack.String():
		text = visible(e.Source) + " runs under a lock of its own process, because the store does not answer"
	case event.Overran.String():
		text = fmt.Sprintf("a function under a lock of the process %s still runs after %s", visible(e.Source), length(e.Held.Duration()))
	case event.RateLimited.String():
		text = fmt.Sprintf("the rate of the key was used up for another %s", length(e.Remaining.Duration()))
	case event.HeldBack.String():
		text = visibleOr(e.Job, "a job") + " was held back, because an operator has paused the key"
	default:
		text = visible(e.Kind)
	}
	if e.Reason != "" {
		text += ": " + visible(e.Reason)
	}
	return text + e.because()
}

// keptFor ends a sentence about a lock that was parked: for a handover, or for the pause after an attempt that failed or
// was cancelled.
func keptFor(job string) string {
	if job == "" {
		return ", and has parked it"
	}
	if after, cools := envelope.ParseCooling(job); cools {
		return ": the key cools down after the job " + visible(after)
	}
	return ": it is kept for the job " + visible(job)
}

// freedByForce says that an operator freed a key, or only that it was freed by force, depending on the reason.
func freedByForce(reason string) string {
	if isSigned(reason) {
		return "an operator has freed the key"
	}
	return "the key was freed by force"
}

func (e *Event) because() string {
	if e.Error == "" {
		return ""
	}
	// The sentences are for people who need not know the names of options.
	return " (" + visible(strings.Replace(e.Error, core.ErrNotRenewed.Error(), "the holder had ended its renewal itself", 1)) + ")"
}

// who names the holder, at the beginning of a sentence.
func (e *Event) who() string {
	switch {
	case e.Holder != "" && e.Job != "":
		return visible(e.Holder) + " for the job " + visible(e.Job)
	case e.Holder != "":
		return visible(e.Holder)
	case e.Job != "":
		return "the job " + visible(e.Job)
	}
	return "a holder without a label"
}

func (e *Event) cronSentence(kind string) string {
	tick := "the tick of " + moment(e.Tick.Time)
	if e.Tick.IsZero() {
		tick = "the job"
	}
	on := ""
	if e.Node != "" {
		on = " on " + visible(e.Node)
	}
	took := func() string { return " after " + length(e.Took.Duration()) }
	text := ""
	switch kind {
	case "started":
		text = tick + " has begun" + on
	case "taken over":
		text = tick + " has begun again" + on + ", because the execution before was broken off"
	case "done":
		text = tick + " is done" + on + took()
	case "enqueued":
		text = tick + " has enqueued its task" + on + took()
	case "stuck":
		text = fmt.Sprintf("%d ticks in a row were skipped, because an execution or a task was under way; the newest is %s", e.Count, tick)
	case "failed":
		text = tick + " has failed" + on + took()
	case "interrupted":
		text = tick + " was broken off" + on + took() + ", because the node stops"
	case "cancelled":
		text = tick + " was cancelled" + on + took() + ", because the next one has come"
	case "broken":
		text = tick + " was broken off" + on + took() + ", because its lock was lost"
	case "overrun":
		text = tick + " goes on" + on + took() + ", although its context has ended: its function ignores that"
	case "lost":
		text = tick + " is lost: it was broken off, and no node executes it again"
	case "missed":
		text = fmt.Sprintf("%d ticks were missed, the newest of them %s", e.Count, tick)
	case "overlapped":
		text = fmt.Sprintf("%d ticks were skipped, because an execution was under way; the newest is %s", e.Count, tick)
	case "paused":
		text = fmt.Sprintf("%d ticks were skipped, because the job is paused; the newest is %s", e.Count, tick)
	case "backfilled":
		text = fmt.Sprintf("a backfill has ended, with %d executions that are done or have enqueued their tasks", e.Count)
	case "redefined":
		text = "the spec or the options of the job have changed"
	case "spec":
		text = "another spec is in force"
	case "contested":
		text = "two definitions of the job take turns"
	case "clock":
		text = "the clock of the store was set back"
	default:
		text = visible(kind)
	}
	if e.Late > 0 {
		text += ", " + length(e.Late.Duration()) + " late"
	}
	return text + e.because()
}
