package cli

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/ops"
)

// An explanation says that a command needs --yes without a terminal, if it names one that asks.
func TestExplanationsSayWhatNeedsYes(t *testing.T) {
	for command, want := range map[string]bool{
		"": false, "asynq queue unpause q": false, "joblock jobs run --reason TEXT -- q/1": false,
		"joblock jobs cancel --reason TEXT -- q/1": true, "joblock jobs drop --reason TEXT -- q/1": true,
		"joblock jobs skip --fence 7 --reason TEXT -- k": true, "joblock force-release --fence 7 --reason TEXT -- k": true,
	} {
		text := explanationText(ops.Explanation{Actions: []ops.Action{{Command: command}}})
		if got := strings.Contains(text[len(text)-1], "needs --yes"); got != want {
			t.Errorf("%q: %q", command, text)
		}
	}
}
