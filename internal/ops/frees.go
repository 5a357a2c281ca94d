package ops

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

const (
	// overrun is the default of worker.Config.Overrun, which a Desk does not know.
	overrun = time.Minute

	// recovery is how long asynq takes at most to notice that a worker has died. The task then waits as it does after a
	// failure.
	recovery = 2 * time.Minute
)

// byWorker returns the first sentence about a key whose job is alive.
func (s *story) byWorker() string {
	cool := s.task.cooldowns[s.Key]
	switch {
	case s.untilStart() && cool > 0:
		return fmt.Sprintf("When the job starts, its key cools down for %s (handoff.Unique.Cooldown), and is then free.", length(cool))
	case s.untilStart():
		return "The worker frees the key when the job starts."
	case cool > 0:
		return fmt.Sprintf("The worker frees the key when the job has failed for good. When the job is done, its key cools down for %s (handoff.Unique.Cooldown), and is then free.", length(cool))
	}
	return "The worker frees the key when the job is done or has failed for good."
}

// frees returns what frees the key without intervention. It follows the rows of package worker's EXITS.md. A test has a
// row for each state of a lock and each state of its job.
func (s *story) frees() Frees {
	switch s.State {
	case joblock.StateFree:
		return s.freeKey()
	case joblock.StateForeign:
		return Frees{By: ByNothing, Text: "Nothing frees the key by itself: an operator has to remove the value from the store."}
	case joblock.StateHeld:
		if s.Job == "" {
			if s.ByHand {
				f := s.untilLease("The holder frees the key when its work ends. The lease ends at %s, also while the holder works, unless the holder renews it.")
				f.If = "the holder does not renew its lease"
				return f
			}
			f := s.untilLease("The holder frees the key when its work ends. If the holder is dead, the end of its lease frees the key, at %s.")
			if isRun(s.Holder) {
				f.Text += " If the holder is \"joblock run\", its work ends when its command and all processes that the command has left behind have ended: a daemon keeps the key, unless \"joblock run\" got --leave."
			}
			return f
		}
		return s.heldForJob()
	}
	if s.Job == "" {
		return s.untilReserved("The owner of the token can resume the lock and release it. Otherwise the end of the reservation frees the key, at %s.", "the lock is not resumed")
	}
	if _, cools := envelope.ParseCooling(s.Job); cools {
		return s.untilReserved("The cooldown of the job (handoff.Unique.Cooldown) ends by itself and frees the key, at %s.", "no operator frees the key before then")
	}
	return s.keptForJob()
}

// untilStart reports whether the job has the key only until it starts.
func (s *story) untilStart() bool { return slices.Contains(s.task.untilStart, s.Key) }

// isRun reports whether a label may come from "joblock run": the machine, the process and the name of the command.
func isRun(label string) bool {
	process, command, ok := strings.Cut(label, " ")
	i := strings.LastIndexByte(process, ':')
	if !ok || command == "" || i < 1 {
		return false
	}
	_, err := strconv.ParseUint(process[i+1:], 10, 32)
	return err == nil
}

const isFree = "The key is free."

// freeKey returns Frees for a free key.
func (s *story) freeKey() Frees {
	f := Frees{By: ByNone, Text: isFree}
	if p := s.Permits; p != nil && p.Taken > 0 {
		return s.soonestPermit()
	}
	if len(s.Line) > 0 {
		f.Text = "The key is free, and there are waiters: the first in line gets it within some seconds."
		if s.Line[0].Job != "" {
			f.Text = fmt.Sprintf("The key is free, and a job waits: a keeper gives the key to the job with its next check, within %s.", length(s.keeper.every()))
		}
	}
	return f
}

// soonestPermit returns Frees for the key of a limit or a sequence.
func (s *story) soonestPermit() Frees {
	p := s.Permits
	if p.N == 0 {
		text := "How many may have the key at a time is not known."
		if p.Kind == KindLimit && p.Waiting == 0 {
			text += " A caller that was refused, or had to wait, in the last day would have said it."
		}
		return Frees{By: ByNone, Text: text}
	}
	if p.Taken < p.N {
		text := fmt.Sprintf("Of those that may have the key at a time, %d are free", p.N-p.Taken)
		if p.Kind == KindLimit {
			text += fmt.Sprintf(" for a caller that uses the limit with %d", p.N)
		}
		return Frees{By: ByNone, Text: text + "."}
	}
	soonest, ok := p.soonest(s.keeps())
	if !ok {
		return Frees{By: ByJob, Text: fmt.Sprintf(
			"All are taken, and jobs have them. The first one whose job is done or has failed for good is free. A keeper prolongs their reservations until then. \"joblock explain -- %s\" shows what the job of number %d does, and when it ends at the latest.",
			Shell(p.Permits[0].Key), p.Permits[0].Number)}
	}
	return Frees{
		By: ByHolder, Latest: soonest.ReservedUntil, If: "it is neither renewed nor prolonged",
		Text: fmt.Sprintf("All are taken. The first one that a holder gives back is free. If it is not renewed, number %d is free at %s.", soonest.Number, s.clock(soonest.ReservedUntil.Time)),
	}
}

// untilLease returns Frees for a lock that its holder renews while it lives. text has one formatting verb, for a time.
func (s *story) untilLease(text string) Frees {
	at := s.ReservedUntil
	return Frees{By: ByHolder, Latest: at, If: "the holder is dead", Text: fmt.Sprintf(text, s.clock(at.Time))}
}

// untilReserved returns Frees for a lock under which nothing runs. text has one formatting verb, for a time.
func (s *story) untilReserved(text, condition string) Frees {
	at := s.ReservedUntil
	return Frees{By: ByReservation, Latest: at, If: condition, Text: fmt.Sprintf(text, s.clock(at.Time))}
}

// heldForJob returns Frees for a lock that an attempt of a job holds.
func (s *story) heldForJob() Frees {
	switch t := &s.task; {
	case t.State == "active" && t.Crashed:
		return Frees{By: ByJob, Text: s.byWorker() + fmt.Sprintf(" The worker of this attempt seems to be dead. If so, its lease ends at %s at the latest, the lock stays with the job, and asynq schedules the next attempt within %s.", s.clock(s.ExpiresAt.Time), length(recovery))}
	case t.State == "active":
		text := s.byWorker()
		if !s.untilStart() {
			text += " After an attempt that fails, the lock is kept for the next attempt."
		}
		if t.Timeout > 0 && !s.untilStart() {
			text += fmt.Sprintf(" An attempt may take %s.", length(t.Timeout.Duration()))
			if left := t.Attempts - t.Attempt + 1; left > 1 {
				text += fmt.Sprintf(" Including this one, %d attempts are left: %s in all, plus the pauses between them.", left, length(time.Duration(left)*t.Timeout.Duration()))
			}
		}
		return Frees{By: ByJob, Text: text + fmt.Sprintf(" If the worker dies, the lease ends at %s, the lock stays with the job, and asynq schedules the next attempt within %s.", s.clock(s.ExpiresAt.Time), length(recovery))}
	case s.halted():
		return s.halting()
	case t.Ended():
		if !s.keeps() {
			return s.untilLease("The attempt that still runs after its job has ended frees the key when it returns. No keeper works. So otherwise the end of the reservation frees the key, at %s.")
		}
		at := s.check(s.over(s.ExpiresAt.Time))
		return Frees{By: ByKeeper, Latest: at, If: "the holder does not renew its lease", Text: fmt.Sprintf(
			"The attempt that still runs after its job has ended frees the key when it returns. Its worker renews the lease for %s at most after the time of the attempt is up, if it has the usual settings. If the lease is not renewed, a keeper frees the key at %s at the latest.",
			length(overrun), s.clock(at.Time))}
	case t.State == TaskNoQueue, t.State == TaskUnknown:
		return Frees{By: ByJob, Text: s.byWorker() + fmt.Sprintf(" If the worker dies, the lease ends at %s, and the lock is kept for the job, until %s unless it is freed before.", s.clock(s.ExpiresAt.Time), s.clock(s.ReservedUntil.Time))}
	default: // pending, scheduled, retry, aggregating, or snoozed in the archive
		return Frees{By: ByJob, Text: s.byWorker() + fmt.Sprintf(" An earlier attempt still holds the lock, and the next attempt waits until it returns or its lease ends. Its worker renews the lease for %s at most after the time of the attempt is up, if it has the usual settings.", length(overrun))}
	}
}

// keptForJob returns Frees for a lock that is parked or orphaned, and reserved for a job.
func (s *story) keptForJob() Frees {
	switch t := &s.task; {
	case s.halted():
		return s.halting()
	case t.Ended():
		return s.byKeeper()
	case t.State == TaskNoQueue:
		return s.untilReserved("No process here knows the job's queue. A keeper whose process has met the queue frees the key within about "+length(s.grace()+s.keeper.every())+"; any other keeper leaves the lock alone. Without a keeper that knows the queue, the end of the reservation frees the key, at %s.", "no keeper knows the queue")
	case t.State == TaskUnknown && !s.keeps():
		return s.untilReserved(s.byWorker()+" If the job does not run again, the end of the reservation frees the key, at %s: no keeper works to prolong it.", "the job does not run before then")
	case t.State == TaskUnknown:
		return Frees{By: ByJob, Text: s.byWorker() + fmt.Sprintf(" If the job is over or does not exist, a keeper frees the key within %s.", length(s.grace()+s.keeper.every()))}
	case t.Snoozed:
		return Frees{By: ByJob, Text: s.byWorker() + " Its task comes back from the archive after the pause. If the worker has died, a keeper takes the task out of the archive."}
	}
	text := s.byWorker()
	switch t := &s.task; {
	case t.State == "active" && (t.Crashed || s.State == joblock.StateOrphaned):
		text += fmt.Sprintf(" The worker of this attempt has died or is cut off: asynq schedules the next attempt within %s, and that attempt gets the lock.", length(recovery))
	case t.State == "active":
		text += " A worker has the task and is about to resume the lock. If that takes longer than a second, the program of this worker was built without the toolkit's middleware, and runs the task without the lock."
	case t.Waits && s.keeps():
		text += fmt.Sprintf(" The job has its turn now, and a keeper starts its task within %s, if no other process does.", length(s.keeper.every()))
	case t.Waits:
		text += " The job has its turn now. If its task does not start, no keeper works to start the task."
	}
	if s.keeps() {
		return Frees{By: ByJob, Text: text + " Until then a keeper prolongs the reservation."}
	}
	return Frees{By: ByJob, Latest: s.ReservedUntil, If: "the job does not run before then",
		Text: text + fmt.Sprintf(" No keeper works to prolong the reservation: if the job does not run before, others can get the key at %s.", s.clock(s.ReservedUntil.Time))}
}

// halting returns Frees for the key of a sequence that halts because its job has failed for good.
func (s *story) halting() Frees {
	const text = "Nothing frees the key by itself: the sequence halts. It goes on when a new run of the task succeeds, when an operator skips the job, or when the task is deleted."
	if s.keeps() {
		return Frees{By: ByNothing, Text: text}
	}
	return Frees{By: ByReservation, Latest: s.ReservedUntil, If: "no keeper starts before then",
		Text: text + fmt.Sprintf(" No keeper works to prolong the reservation: it ends at %s.", s.clock(s.ReservedUntil.Time))}
}

// byKeeper returns Frees for a lock that is reserved for a job that has ended or does not exist.
func (s *story) byKeeper() Frees {
	if !s.keeps() {
		return s.untilReserved("Its job is over. A keeper would free the key, but no keeper works: so the key is free when the reservation ends, at %s.", "no keeper starts before then")
	}
	at := s.check(s.over(s.now))
	why := "Its job is over."
	if s.task.State == TaskAbsent {
		why = "Its task does not exist."
	}
	return Frees{By: ByKeeper, Latest: at, If: s.behind(), Text: fmt.Sprintf("%s A keeper frees the key with its next check, at %s at the latest.%s", why, s.clock(at.Time), s.slow())}
}

// over returns when a keeper can be certain that the job has ended: at the time from if the task carries the token of the
// lock; otherwise not before the job's enqueue can no longer be under way.
func (s *story) over(from time.Time) time.Time {
	if s.task.State != TaskAbsent && s.task.carries(s.Lock) {
		return from
	}
	return latest(from, s.graceEnd())
}

// keeps reports whether a keeper works, or may work because the keepers' stats are not known.
func (s *story) keeps() bool { return !s.known || s.keeper.Works() != nil }

// graceEnd returns the end of the minute during which the enqueue of the job may be under way.
func (s *story) graceEnd() time.Time { return s.Changed.Add(envelope.EnqueueGrace) }

// grace returns what is left until graceEnd.
func (s *story) grace() time.Duration { return max(0, s.graceEnd().Sub(s.now)) }

// check returns when a keeper will have checked the lock, if the lock can be freed from the time from on.
func (s *story) check(from time.Time) Time {
	at := latest(s.now, from).Add(s.keeper.every())
	if s.State != joblock.StateHeld && s.ReservedUntil.Before(at) {
		at = s.ReservedUntil.Time // no keeper prolongs the reservation of a job that has ended
	}
	return Time{at}
}

// behind returns the condition under which the keeper frees the lock in time.
func (s *story) behind() string {
	if p := s.keeper.Works(); p != nil && p.Behind {
		return "the keeper catches up"
	}
	return "the keeper keeps up"
}

func (s *story) slow() string {
	if p := s.keeper.Works(); p != nil && p.Behind {
		return " But the keeper is behind with its checks, so this may take longer."
	}
	if !s.known {
		return " Whether a keeper works is not known."
	}
	return ""
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
