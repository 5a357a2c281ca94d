package ops

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// actions returns what an operator may do, the mildest first.
func (s *story) actions(f Frees) []Offer {
	all := []Offer{}
	add := func(name string, effect, danger string) {
		o := Offer{Name: name, Effect: effect, Danger: danger}
		if v := VerbOf(name); v != nil && v.Has("Queue") || name == ActUnpause {
			o.Args = Args{Job: s.task.Job(), Step: s.task.Step}
		} else if v != nil {
			o.Args = Args{Key: s.Key, Fence: s.Fence}
		}
		all = append(all, o)
	}
	for _, p := range s.Paused {
		all = append(all, Offer{Name: ActResumeKey, Args: Args{Key: p.Key}, Effect: "The jobs that the pause holds back start, in the order in which they came."})
	}
	if !s.Locked() {
		return append(all, s.permitActions(f)...)
	}
	if f.By != ByNothing {
		effect := "The job frees the key when it ends. That may take any time."
		switch cool := s.task.cooldowns[s.Key]; {
		case !f.Latest.IsZero():
			effect = fmt.Sprintf("If %s: others can get the key from %s.", f.If, s.clock(f.Latest.Time))
		case s.untilStart():
			effect = "The job gives up the key when it starts. That may take any time."
		case !f.JobEnds.IsZero() && cool > 0:
			effect = fmt.Sprintf("The job ends at %s at the latest, if the workers use asynq's default RetryDelayFunc. If it is then done, the key is free %s later.", s.clock(f.JobEnds.Time), length(cool))
		case !f.JobEnds.IsZero():
			effect = fmt.Sprintf("The job frees the key when it ends: at %s at the latest, if the workers use asynq's default RetryDelayFunc.", s.clock(f.JobEnds.Time))
		}
		add(ActWait, effect, "")
	}
	s.taskActions(add)
	if s.Job != "" && !s.keeps() {
		add(ActStartKeep, "Start a worker process with a keeper: a keeper frees the locks of jobs that are over, and keeps those of jobs that live.", "")
	}
	return append(all, s.force())
}

// force returns the offer of a forced release of the key, which has a holder or is reserved.
func (s *story) force() Offer {
	o := Offer{ActForce, Args{Key: s.Key, Fence: s.Fence}, s.effect(), s.danger()}
	if s.State != joblock.StateHeld {
		o.Name, o.Effect = ActFreeIdle, o.Effect+" If a process works under the lock by then, nothing happens."
	}
	return o
}

// permitsShown is how many permits an explanation names, and offers to free.
const permitsShown = 8

// permitActions returns what an operator may do to the permits of a limit, or to the slots of a sequence.
func (s *story) permitActions(f Frees) []Offer {
	all := []Offer{}
	p := s.Permits
	if p == nil || p.Taken == 0 {
		return all
	}
	if soonest, ok := p.soonest(s.keeps()); ok && !f.Latest.IsZero() {
		all = append(all, Offer{Name: ActWait, Effect: fmt.Sprintf("The next one that a holder gives back is free. If %s: number %d is free from %s.", f.If, soonest.Number, s.clock(f.Latest.Time))})
	}
	for _, l := range p.Permits[:min(permitsShown, len(p.Permits))] {
		one := story{Lock: l, keeper: s.keeper, known: s.known, now: s.now}
		if l.Job != "" {
			one.task.State = TaskUnknown
		}
		if len(s.Line) > 0 {
			one.Line = s.Line
		}
		a := one.force()
		a.Effect = fmt.Sprintf("Number %d, which %s has: %s", l.Number, visibleOr(l.Holder, "a holder without a label"), a.Effect)
		all = append(all, a)
	}
	return all
}

// effect describes what a forced release does.
func (s *story) effect() string {
	text := "The key is free at once."
	if len(s.Line) > 0 {
		text = "The next in line has the key at once."
	}
	if s.State == joblock.StateHeld {
		text += s.toHolder()
	}
	return text
}

// toHolder describes what a forced release does to the present holder.
func (s *story) toHolder() string {
	others := fmt.Sprintf("is not stopped at once: its process notices the release at the next renewal, within some %s, or at once if it listens for forced releases, and then asks the work to stop.", length(s.renewal()))
	if s.Job != "" {
		return " The handler " + others // "joblock run" has no job
	}
	return " A command under \"joblock run\" is KILLED at once (SIGKILL), with no time to clean up. Any other holder " + others
}

// renewal returns how long a holder may take to notice a forced release: a third of its lease.
func (s *story) renewal() time.Duration { return max(time.Second, s.TTL.Duration()/3) }

// danger describes what may go wrong after a forced release.
func (s *story) danger() string {
	switch t := &s.task; {
	case s.State == joblock.StateHeld:
		return "Until the holder notices, two holders may work at the same time. Only a resource that compares fences refuses the writes of the old one."
	case s.halted():
		return "The job that has failed stays in asynq's archive. The jobs behind it run without it."
	case t.State == "" && s.State == joblock.StateOrphaned:
		return "If the holder lives and is only cut off, two may work at the same time."
	case t.State == "":
		return "The owner of the lock's token cannot resume it any more."
	case t.Ended():
		return ""
	case t.State == "active":
		return "The attempt that asynq shows as active may still run. Its next attempt finds the lock gone and, if its worker has the usual settings, takes the lock again."
	}
	return "If the job runs after that, its attempt finds the lock gone and, if its worker has the usual settings, takes the lock again before it works. Others may have the key in between."
}

// taskActions adds the actions on the task of the job.
func (s *story) taskActions(add func(name string, effect, danger string)) {
	t := &s.task
	if t.State == "" || t.State == TaskUnknown || t.State == TaskNoQueue || t.State == TaskAbsent || t.State == "completed" {
		return
	}
	if t.Paused {
		add(ActUnpause, "The queue's workers take tasks again, this one among them.", "")
	}
	gone := "The job is gone. " + s.afterEnd("deleted")
	archive := func() {
		add(ActArchive, "asynq keeps the task in its archive, and runs it no more by itself; it can be run later. "+s.afterArchive(), "")
	}
	switch {
	case t.State == "active":
		const asked, ignored = "The handler that runs the task is asked to stop. ", "A handler that ignores the request keeps running"
		add(ActCancelTask, asked+"The attempt then counts as failed. "+s.afterCancel(), ignored+".")
		add(ActEndArchive, asked+"When it has returned, the task goes into asynq's archive before another attempt begins; it can be run later. "+s.afterArchive(), ignored+", and the task stays.")
		add(ActEndDelete, asked+"When it has returned, the task is deleted before another attempt begins. "+s.afterEnd("deleted"), ignored+", and the task stays. "+t.undone())
	case t.Snoozed:
	case s.halted():
		add(ActRunTask, "The task runs again, under this lock. If it succeeds, the sequence goes on.", "")
		add(ActSkipJob, s.effect(), s.danger())
		add(ActDeleteTask, gone, "")
	case t.State == "archived":
		add(ActRunTask, "The task runs once more. If the lock is gone by then, the attempt takes it again.", "")
	case t.State == "pending":
		archive()
		add(ActDeleteTask, gone, t.undone())
	case t.State == "aggregating":
		archive()
		add(ActDeleteTask, gone, t.undone())
	default:
		add(ActRunTask, "asynq takes the task now, and does not wait for its time.", "")
		archive()
		add(ActDeleteTask, gone, t.undone())
	}
}

// afterCancel describes what happens to a task whose running attempt is cancelled.
func (s *story) afterCancel() string {
	t := &s.task
	if t.Attempt >= t.Attempts {
		return "This attempt is the last one: then the task has failed for good."
	}
	return fmt.Sprintf("Attempt %d of %d follows, and may hang again.", t.Attempt+1, t.Attempts)
}

// afterArchive describes what happens to the lock when the task is archived.
func (s *story) afterArchive() string {
	if s.task.Halts && s.task.carries(s.Lock) {
		return "The sequence halts until an operator runs the task, or skips the job."
	}
	return s.afterEnd("archived")
}

// afterEnd describes what happens to the lock when the task is deleted or archived.
func (s *story) afterEnd(how string) string {
	if !s.keeps() {
		return fmt.Sprintf("No keeper works, so the lock stays until %s.", s.clock(s.ReservedUntil.Time))
	}
	if s.State == joblock.StateHeld {
		return fmt.Sprintf("A keeper frees the lock at %s at the latest, unless a handler that still runs renews the lease.", s.clock(s.check(latest(s.ExpiresAt.Time, s.graceEnd())).Time))
	}
	return fmt.Sprintf("A keeper frees the lock at %s at the latest, if the task is %s now.", s.clock(s.check(latest(s.now, s.graceEnd())).Time), how)
}
