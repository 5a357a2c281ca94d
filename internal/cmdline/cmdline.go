// Package cmdline has the command lines for what operators may do. The command line shows them, and so do the pages.
package cmdline

import (
	"fmt"
	"slices"

	"github.com/joblock/toolkit/internal/ops"
)

// Of returns the command that does what is offered, "" if there is none.
func Of(o ops.Offer) string {
	switch queue, _, _ := ops.ParseJob(o.Job); o.Name {
	case ops.ActForce:
		return holding("force-release", o.Args) + key(o.Key)
	case ops.ActFreeIdle:
		return holding("force-release", o.Args) + " --if-idle" + key(o.Key)
	case ops.ActPauseKey:
		return "joblock jobs pause --reason TEXT" + key(o.Key)
	case ops.ActResumeKey:
		return "joblock jobs resume --reason TEXT" + key(o.Key)
	case ops.ActSkipJob:
		return holding("jobs skip", o.Args) + key(o.Key)
	case ops.ActRunTask:
		return task("jobs run", o.Args)
	case ops.ActCancelTask:
		return task("jobs cancel", o.Args)
	case ops.ActEndArchive:
		return task("jobs cancel --then archive", o.Args)
	case ops.ActEndDelete:
		return task("jobs cancel --then drop", o.Args)
	case ops.ActArchive:
		return task("jobs archive", o.Args)
	case ops.ActDeleteTask:
		return task("jobs drop", o.Args)
	case ops.ActUnpause:
		return "asynq queue unpause " + ops.Shell(queue)
	}
	return ""
}

// Asks reports whether the command of an offer asks for confirmation.
func Asks(o ops.Offer) bool {
	return Of(o) != "" && o.Name != ops.ActRunTask && o.Name != ops.ActResumeKey && o.Name != ops.ActUnpause
}

// Next returns the command with which an operator goes on with a sequence: to run the job again that halts it, or to see why
// it stands where it does.
func Next(s ops.Sequence) string {
	if i := slices.IndexFunc(s.Actions, func(o ops.Offer) bool { return o.Name == ops.ActRunTask }); s.State == ops.SequenceHalted && i >= 0 {
		return Of(s.Actions[i])
	}
	return "joblock explain" + key(s.Key)
}

func holding(verb string, a ops.Args) string {
	return fmt.Sprintf("joblock %s --fence %d --reason TEXT", verb, a.Fence)
}

func task(verb string, a ops.Args) string {
	step := ""
	if a.Step != "" {
		step = " --step " + ops.Shell(a.Step)
	}
	return "joblock " + verb + step + " --reason TEXT" + key(a.Job)
}

func key(name string) string { return " -- " + ops.Shell(name) }
