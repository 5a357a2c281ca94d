package testkit

import (
	"fmt"
	"slices"
	"testing"
)

func TestCommandsOfAPage(t *testing.T) {
	const page = "Run `make\nall` or `joblock` or `x y`.\n\n" +
		"```sh\ntrap 'joblock release; rm x' EXIT\nA=1 curl -d '{\"a\": 1}' \"$B/c d\" >file | joblock ls \\\n  -o json   # joblock get\n```\n" +
		"```console\n$ joblock explain k && go run .\nTry \"joblock ls\", or:\n   joblock get k\n```\n" +
		"```go\njoblock run\n```\n\n    make b   # c\n\nExecStart=/usr/bin/joblock serve\nENTRYPOINT [\"/usr/bin/joblock\", \"run\"]\n"
	want := []string{
		"p:1: make all false", "p:5: trap joblock release; rm x EXIT true", "p:5: joblock release true", "p:5: rm x true",
		`p:6: curl -d {"a": 1} $B/c d true`, "p:6: joblock ls -o json true", "p:10: joblock explain k true", "p:10: go run . true",
		"p:11: joblock ls false", "p:12: joblock get k false", "p:18: make b true", "p:20: joblock serve true", "p:21: joblock run true",
	}
	var got []string
	for _, c := range commandsOf("p", page) {
		got = append(got, fmt.Sprint(c, " ", c.Whole))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}
