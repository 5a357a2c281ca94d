package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Report is what a run has measured.
type Report struct {
	Settings     Settings        `json:"settings"`
	Server       string          `json:"server"`
	Enqueued     time.Duration   `json:"enqueued"`
	EnqueueCPU   time.Duration   `json:"enqueueCPU"` // of the enqueuing process
	Memory       [2]float64      `json:"memory"`     // bytes per lock: of the locks' Redis, and of asynq's
	Rounds       []Round         `json:"rounds"`
	Freed        []time.Duration `json:"freed"` // after the deletion of the task, sorted
	TakenOver    time.Duration   `json:"takenOver"`
	LateAtDeath  time.Duration   `json:"lateAtDeath"`  // the longest that a lock was due after the death
	FreedAtDeath []time.Duration `json:"freedAtDeath"` // as Freed, around the death
}

// Round is a round of checks.
type Round struct {
	Wall     time.Duration    `json:"wall"`
	Checked  int64            `json:"checked"`
	Listed   int64            `json:"listed"`
	Late     time.Duration    `json:"late"`     // the longest that a lock was due
	Own      []time.Duration  `json:"own"`      // processor time, by process
	Heap     int64            `json:"heap"`     // the largest of a process
	Commands [2]int64         `json:"commands"` // by server; without those that scripts run
	Inner    [2]int64         `json:"inner"`    // with those that scripts run
	Busy     [2]int64         `json:"busy"`     // µs that the server says its commands took
	CPU      [2]time.Duration `json:"cpu"`      // processor time of the server
	Working  int              `json:"working"`
	Behind   bool             `json:"behind"`
}

func roundOf(before, after sight, late time.Duration) Round {
	r := Round{Wall: after.at.Sub(before.at), Checked: after.checked() - before.checked(), Late: late}
	for i, s := range after.states {
		r.Listed += s.Stats.Listed - before.states[i].Stats.Listed
		r.Own = append(r.Own, s.CPU-before.states[i].CPU)
		r.Heap = max(r.Heap, s.Heap)
		if s.Stats.Working {
			r.Working++
			r.Behind = r.Behind || s.Stats.Behind
		}
	}
	for i := range r.CPU {
		r.CPU[i] = after.usage[i].CPU - before.usage[i].CPU
		all := after.usage[i].All().Sub(before.usage[i].All())
		top := after.usage[i].Of(topLevel...).Sub(before.usage[i].Of(topLevel...))
		r.Inner[i], r.Commands[i], r.Busy[i] = all.Number, top.Number, top.Time.Microseconds()
	}
	return r
}

// topLevel are the commands that keepers send. The question for a queue's size is a few more.
var topLevel = []string{"evalsha", "eval", "sismember"}

func perLock(n float64, r Round) float64 { return n / float64(max(1, r.Checked)) }

func (r Round) own() (sum time.Duration) {
	for _, d := range r.Own {
		sum += d
	}
	return sum
}

func (r Round) String() string {
	var own []string
	for _, d := range r.Own {
		own = append(own, fmt.Sprintf("%.2f", d.Seconds()))
	}
	return fmt.Sprintf("round: %.1f s, %d checks (%d listed), at most %.1f s late, working %d, behind %t; own CPU s %v, heap %d MB; "+
		"µs per check: own %.2f, locks' Redis %.2f (scripts %.2f), asynq's %.2f (scripts %.2f); commands per check %.4f and %.4f, with inner %.2f and %.2f",
		r.Wall.Seconds(), r.Checked, r.Listed, r.Late.Seconds(), r.Working, r.Behind, own, r.Heap>>20,
		perLock(float64(r.own().Microseconds()), r),
		perLock(float64(r.CPU[0].Microseconds()), r), perLock(float64(r.Busy[0]), r),
		perLock(float64(r.CPU[1].Microseconds()), r), perLock(float64(r.Busy[1]), r),
		perLock(float64(r.Commands[0]), r), perLock(float64(r.Commands[1]), r),
		perLock(float64(r.Inner[0]), r), perLock(float64(r.Inner[1]), r))
}

// WriteMarkdown writes the report for people.
func (r *Report) WriteMarkdown(w io.Writer) error {
	s := r.Settings
	var failed error
	p := func(format string, args ...any) {
		if _, err := fmt.Fprintf(w, format+"\n", args...); err != nil {
			failed = err
		}
	}
	p("# Keepers before %d parked locks\n", s.Locks)
	p("%d processes, Keepers %d, Every %s, Share %g, two servers (%s).\n", s.Processes, s.Keepers, s.Every, s.Share, r.Server)
	p("| what | figure |")
	p("|---|---:|")
	p("| enqueue, with the lock | %.0f a second, %.1f µs own CPU each |", float64(s.Locks)/r.Enqueued.Seconds(), float64(r.EnqueueCPU.Microseconds())/float64(s.Locks))
	p("| memory of the locks' Redis | %.0f bytes a lock |", r.Memory[0])
	p("| memory of asynq's Redis | %.0f bytes a task |", r.Memory[1])
	for _, f := range []struct {
		name string
		took []time.Duration
	}{{"lock freed after the task's deletion", r.Freed}, {"the same, around the death of the keeper", r.FreedAtDeath}} {
		if n := len(f.took); n > 0 {
			p("| %s: median, longest of %d | %.1f s, %.1f s |", f.name, n, f.took[n/2].Seconds(), f.took[n-1].Seconds())
		}
	}
	p("| another keeper works after the death | %.1f s |", r.TakenOver.Seconds())
	p("| a check was late after the death | %.1f s at most |", r.LateAtDeath.Seconds())
	p("")
	p("A round is at least one check of each lock. Per check:\n")
	p("| wall time of the round | latest check | own CPU | locks' Redis: CPU | scripts | commands | asynq's Redis: CPU | scripts | commands | heap |")
	p("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, q := range r.Rounds {
		p("| %.1f s | %.1f s | %.2f µs | %.2f µs | %.2f µs | %.4f | %.2f µs | %.2f µs | %.4f | %d MB |",
			q.Wall.Seconds(), q.Late.Seconds(), perLock(float64(q.own().Microseconds()), q),
			perLock(float64(q.CPU[0].Microseconds()), q), perLock(float64(q.Busy[0]), q), perLock(float64(q.Commands[0]), q),
			perLock(float64(q.CPU[1].Microseconds()), q), perLock(float64(q.Busy[1]), q), perLock(float64(q.Commands[1]), q), q.Heap>>20)
	}
	return failed
}

// WriteJSON writes everything that was measured.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
