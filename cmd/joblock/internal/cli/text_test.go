package cli

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

// What has become of a task, with the exit code, and with a command that a shell takes for any ID.
func TestTextOfAnEndedTask(t *testing.T) {
	t.Parallel()
	for became, c := range map[ops.Became]struct {
		code int
		says []string
	}{
		ops.BecameDropped:  {0, []string{"deleted the task"}},
		ops.BecameArchived: {0, []string{"archived the task", `"joblock jobs run --reason TEXT -- 'q/1 a; b'" runs it later`}},
		ops.BecameOver:     {0, []string{"ended by itself"}},
		ops.BecameAnew:     {exitBusy, []string{"was told to end", "enqueued the task q/1 a; b anew"}},
		ops.BecameRunning:  {exitBusy, []string{"was told to end", "has not returned within 10s", "the same command waits again"}},
		ops.BecameSnoozed:  {exitBusy, []string{"has returned", "snoozed the task q/1 a; b, which comes back"}},
	} {
		var out bytes.Buffer
		cmd := new(cobra.Command)
		cmd.SetErr(&out)
		err := ended(cmd, ops.Acted{Became: became}, "q/1 a; b")
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
	c := ops.Checkup{
		Findings: []ops.Finding{{Severity: ops.Fault, Subject: evil, Node: evil, Found: evil, Means: evil, Fix: evil}},
		Checks:   []ops.Checked{{Status: ops.Well, Subject: evil, Node: evil, Found: evil}},
	}
	for _, format := range []string{"table", "wide", "name", "json"} {
		var out, talk bytes.Buffer
		p := &printer{output: output{format: format}, out: bufio.NewWriter(&out), talk: &talk, pause: batchPause}
		if err := printCheckup(p, c); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		text := out.String() + talk.String()
		if strings.ContainsAny(text, "\x1b\a\u202e\r") || !strings.Contains(text, "evil") {
			t.Errorf("%s: %q", format, text)
		}
	}
}
