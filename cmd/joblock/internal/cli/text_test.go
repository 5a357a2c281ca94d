package cli

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

// What happened to a task, with the exit code, and with a command that a shell takes for any ID.
func TestTextOfAnEndedTask(t *testing.T) {
	t.Parallel()
	for became, c := range map[ops.TaskOutcome]struct {
		code int
		says []string
	}{
		ops.TaskOutcomeDropped:  {0, []string{"deleted the task"}},
		ops.TaskOutcomeArchived: {0, []string{"archived the task", `"joblock jobs run --reason TEXT -- 'q/1 a; b'" runs it later`}},
		ops.TaskOutcomeOver:     {0, []string{"ended by itself"}},
		ops.TaskOutcomeReplaced: {exitBusy, []string{"was asked to stop", "the task q/1 a; b was enqueued again"}},
		ops.TaskOutcomeRunning:  {exitBusy, []string{"was asked to stop", "has not returned within 10s", "the same command waits again"}},
		ops.TaskOutcomeSnoozed:  {exitBusy, []string{"has returned", "snoozed the task q/1 a; b, so it was not archived"}},
	} {
		var out bytes.Buffer
		cmd := new(cobra.Command)
		cmd.SetErr(&out)
		err := ended(cmd, ops.ActionResult{Outcome: became}, "q/1 a; b")
		code := 0
		if exit := new(exitError); errors.As(err, &exit) {
			code = exit.code
			out.WriteString(err.Error())
		}
		if code != c.code {
			t.Errorf("%s: %v, want code %d", became, err, c.code)
		}
		for _, want := range c.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s says %q, want something with %q", became, &out, want)
			}
		}
	}
}

// What the doctor found may have names from the store, which cannot steer a terminal in any format.
func TestDoctorShowsHostileNames(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b]0;evil\a\u202e\r"
	c := ops.Report{
		Findings: []ops.Finding{{Severity: ops.Fault, Subject: evil, Node: evil, Found: evil, Means: evil, Fix: evil}},
		Checks:   []ops.Probe{{Status: ops.Well, Subject: evil, Node: evil, Found: evil}},
	}
	for _, format := range []string{"table", "wide", "name", "json"} {
		var out, talk bytes.Buffer
		p := &printer{output: output{format: format}, out: bufio.NewWriter(&out), talk: &talk, pause: batchPause}
		if err := printReport(p, c); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		text := out.String() + talk.String()
		if strings.ContainsAny(text, "\x1b\a\u202e\r") || !strings.Contains(text, "evil") {
			t.Errorf("%s: %q", format, text)
		}
	}
}

// The first thing that doctor says is whether locks are safe.
func TestDoctorSaysFirstWhetherLocksAreSafe(t *testing.T) {
	t.Parallel()
	well := []ops.Probe{{Status: ops.Well, Subject: "appendonly", Node: "r:1", Found: "yes"}}
	find := func(s ops.Severity, subject, node string) ops.Report {
		return ops.Report{Findings: []ops.Finding{{Severity: s, Subject: subject, Node: node, Found: "found\x1b\ntwice", Means: "means", Fix: "fix"}}, Checks: well}
	}
	const nothing = "the doctor has found nothing at the servers of the locks that breaks a promise"
	for name, tc := range map[string]struct {
		checkup ops.Report
		text    string
		safe    ops.Safety
	}{
		"well": {ops.Report{Findings: []ops.Finding{}, Checks: well}, "Safe for locks: yes, because " + nothing[:30],
			ops.Safety{Word: "yes", Because: nothing}},
		"fault": {find(ops.Fault, "maxmemory-policy", "r:1"), "Safe for locks: no, because of maxmemory-policy at r:1: found\\x1b; twice.\n\nfault: maxmemory-policy at r:1\n",
			ops.Safety{Word: "no", Because: "maxmemory-policy at r:1: found\x1b\ntwice", Subject: "maxmemory-policy", Node: "r:1"}},
		"no node": {find(ops.Fault, "client", ""), "Safe for locks: no, because of client: found\\x1b; twice.\n\nfault: client\n",
			ops.Safety{Word: "no", Because: "client: found\x1b\ntwice", Subject: "client", Node: ""}},
		"a sentence": {ops.Report{Findings: []ops.Finding{{Severity: ops.Fault, Subject: "role", Found: "It is a replica.", Means: "m", Fix: "f"}}, Checks: well},
			"Safe for locks: no, because of role: It is a replica.\n", ops.Safety{Word: "no", Because: "role: It is a replica", Subject: "role", Node: ""}},
		"not the server": {find(ops.Fault, "keeper", "r:1"), "Safe for locks: yes, because the doctor", ops.Safety{Word: "yes", Because: nothing}},
		"not looked at": {ops.Report{Findings: []ops.Finding{}, Checks: []ops.Probe{}}, "Safe for locks: unknown, because this server",
			ops.Safety{Word: "unknown", Because: "this server does not look at the servers of the locks"}},
		"nothing on disk": {find(ops.Warning, "persistence", "r:1"), "Safe for locks: yes, but a restart of Redis, which is routine, frees held locks,\nbecause of persistence at r:1: found",
			ops.Safety{Word: ops.SafeButRestart, Because: "persistence at r:1: found\x1b\ntwice", Subject: "persistence", Node: "r:1"}},
		"a crash": {find(ops.Warning, "appendonly", "r:1"), "Safe for locks: yes, but a crash of Redis, which is uncommon, frees held locks,\nbecause of appendonly at r:1: found",
			ops.Safety{Word: ops.SafeButCrash, Because: "appendonly at r:1: found\x1b\ntwice", Subject: "appendonly", Node: "r:1"}},
	} {
		tc.checkup.Safe = ops.SafetyOf(tc.checkup.Findings, tc.checkup.Checks)
		said := func(format string, width int) string {
			var out bytes.Buffer
			p := &printer{output: output{format: format}, out: bufio.NewWriter(&out), talk: io.Discard, pause: batchPause}
			p.width = width
			if err := printReport(p, tc.checkup); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		if text := said("table", 85); !strings.HasPrefix(text, tc.text) {
			t.Errorf("%s: %q, want first %q", name, text, tc.text)
		}
		if text := strings.Join(strings.Fields(said("table", 24)), " "); !strings.HasPrefix(text, strings.Join(strings.Fields(tc.text), " ")) {
			t.Errorf("%s, in a narrow terminal: %q", name, text)
		}
		var doc ops.Report
		wantJSON(t, "doctor.json", said("json", 85), &doc)
		if doc.Safe != tc.safe {
			t.Errorf("%s: %+v, want %+v", name, doc.Safe, tc.safe)
		}
	}
}

// What "run" cannot stop is said where people look first, with what to do instead.
func TestHelpOfRunNamesWhatItCannotStop(t *testing.T) {
	var text strings.Builder
	if code := Main([]string{"joblock", "run", "--help"}, strings.NewReader(""), &text, &text); code != 0 {
		t.Errorf("run --help: %d", code)
	}
	for _, want := range []string{"three exceptions", "docker run IMAGE joblock run", "ssh HOST joblock run", "systemd-run --scope", "kubectl exec POD -- joblock run", "--leave"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("run --help does not say %q", want)
		}
	}
}
