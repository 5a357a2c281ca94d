package cli

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/ops"
)

// An explanation says that a command needs --yes without a terminal, if it names one that asks.
func TestExplanationsSayWhatNeedsYes(t *testing.T) {
	for name, want := range map[string]bool{
		ops.ActWait: false, ops.ActUnpause: false, ops.ActRunTask: false, ops.ActCancelTask: true, ops.ActDeleteTask: true, ops.ActSkipJob: true, ops.ActForce: true,
	} {
		text := explanationText(ops.Explanation{Actions: []ops.Offer{{Name: name}}})
		if got := strings.Contains(text[len(text)-1], "needs --yes"); got != want {
			t.Errorf("%q: %q", name, text)
		}
	}
}
