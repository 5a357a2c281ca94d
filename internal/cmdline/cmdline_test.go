package cmdline_test

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
)

// Each action that an explanation offers has a command, which is tied to what the operator has seen, and gives a reason.
func TestCommandOfEachAction(t *testing.T) {
	key, task := ops.Args{Key: "k", Fence: 7}, ops.Args{Job: "q/1", Step: "retry-1"}
	for _, c := range []struct {
		name string
		args ops.Args
		want string
		asks bool
	}{
		{ops.ActForce, key, "joblock force-release --fence 7 --reason TEXT -- k", true},
		{ops.ActFreeIdle, key, "joblock force-release --fence 7 --reason TEXT --if-idle -- k", true},
		{ops.ActSkipJob, key, "joblock jobs skip --fence 7 --reason TEXT -- k", true},
		{ops.ActRunTask, task, "joblock jobs run --step retry-1 --reason TEXT -- q/1", false},
		{ops.ActCancelTask, task, "joblock jobs cancel --step retry-1 --reason TEXT -- q/1", true},
		{ops.ActEndArchive, task, "joblock jobs cancel --then archive --step retry-1 --reason TEXT -- q/1", true},
		{ops.ActEndDelete, task, "joblock jobs cancel --then drop --step retry-1 --reason TEXT -- q/1", true},
		{ops.ActArchive, ops.Args{Job: "q/1"}, "joblock jobs archive --reason TEXT -- q/1", true},
		{ops.ActDeleteTask, task, "joblock jobs drop --step retry-1 --reason TEXT -- q/1", true},
		{ops.ActUnpause, task, "asynq queue unpause q", false},
		{ops.ActWait, ops.Args{}, "", false},
		{ops.ActStartKeep, ops.Args{}, "", false},
	} {
		o := ops.Offer{Name: c.name, Args: c.args}
		if got := cmdline.Of(o); got != c.want || cmdline.Asks(o) != c.asks {
			t.Errorf("%s: %s, asks: %t; want %s", c.name, got, cmdline.Asks(o), c.want)
		}
	}
}

// A command is safe to paste, whatever the key is.
func TestCommandsAreSafeToPaste(t *testing.T) {
	for key, want := range map[string]string{
		"export:7": " -- export:7", "it's; rm": ` -- 'it'\''s; rm'`, "-rf": ` -- '-rf'`, "a\x1b[2Jb": ` -- $'a\x1b[2Jb'`, "": " -- ''",
		"\xff'": ` -- $'\xff\''`, "$(x)": " -- '$(x)'", "geo%#1": " -- 'geo%#1'",
	} {
		got := cmdline.Of(ops.Offer{Name: ops.ActForce, Args: ops.Args{Key: key, Fence: 5}})
		if got != "joblock force-release --fence 5 --reason TEXT"+want {
			t.Errorf("%q: %s, want it to end in %s", key, got, want)
		}
	}
}

// The next step of a sequence that has halted is to run its job again, and of any other to see why it stands there.
func TestNextStepOfASequence(t *testing.T) {
	run := []ops.Offer{{Name: ops.ActWait}, {Name: ops.ActRunTask, Args: ops.Args{Job: "q/1", Step: "archived-0"}}}
	for state, want := range map[ops.SequenceState]string{
		ops.SequenceHalted: "joblock jobs run --step archived-0 --reason TEXT -- q/1", ops.SequenceStuck: "joblock explain -- k",
	} {
		s := ops.Sequence{Key: "k", State: state, Actions: run}
		if got := cmdline.Next(s); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
}
