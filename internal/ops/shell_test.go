package ops

import (
	"os/exec"
	"testing"
)

// A shell gets the text back from the word, whatever it is.
func TestShell(t *testing.T) {
	for _, text := range []string{"", "plain-1", "-x", "=ls", "~", "a b", "it's", `back\slash`, "$HOME `id` $(id)", "line\nbreak", "esc\x1b[31m", "\xff", "müll", "*?[a]{b,c}!#;&|<>"} {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+Shell(text)).Output()
		if err != nil || string(out) != text {
			t.Errorf("%q comes back from %s as %q: %v", text, Shell(text), out, err)
		}
	}
	if got := Shell("=ls"); got != "'=ls'" { // zsh takes =ls for the place of ls
		t.Errorf("=ls is %s", got)
	}
	if got, want := Shell("q/a\x00b"), "'(a name with a zero byte)'"; got != want {
		t.Errorf("a text with a zero byte is %s, want %s", got, want)
	}
}
