//go:build linux

package cli

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
)

// placeholder finds arguments that stand for others, such as KEY, QUEUE/ID and SPEC.
var placeholder = regexp.MustCompile(`^[A-Z]+(/[A-Z]+)?$`)

// inTraces are names of spans in traces that look like commands.
var inTraces = []string{"joblock enqueue", "joblock hold"}

// Each command of joblock on a page has a name, flags and arguments that there are. If it only reads, it also runs, on a
// Redis with nothing in it. TestCommandsExist of internal/readme has the other commands.
func TestCommandsOfThePages(t *testing.T) {
	redis := redistest.Shared(t)
	t.Setenv(envRedis, fmt.Sprintf("redis://%s/%d", redis.Addr(), redis.Number()))
	found, ran := 0, 0
	for _, c := range testkit.Commands(t, "../../../..") {
		if c.Words[0] != "joblock" || slices.Contains(inTraces, strings.Join(c.Words, " ")) {
			continue
		}
		found++
		cmd, args, err := parse(c.Words[1:])
		if err == nil && (c.Whole || len(args) > 0) {
			err = cmd.ValidateArgs(args)
		}
		if err != nil {
			t.Errorf("%s: %v", c, err)
			continue
		}
		elsewhere := c.Page == "docs/server.md" // TestServerPage runs these, at a lock server
		follows := cmd.Name() == "watch" || cmd.Name() == "top" || slices.Contains(c.Words, "--follow")
		if !reads(cmd) || elsewhere || follows || slices.ContainsFunc(args, placeholder.MatchString) || cmd.ValidateArgs(args) != nil {
			continue
		}
		ran++
		if r := call(c.Words[1:]...); r.code == exitUsage {
			t.Errorf("%s: %s", c, r.stderr)
		}
	}
	if found < 150 || ran < 50 {
		t.Errorf("found %d commands, of which %d ran", found, ran)
	}
}

// parse returns the command that args name, and its arguments without flags.
func parse(args []string) (*cobra.Command, []string, error) {
	root := newRoot(new(server))
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return nil, nil, err
	}
	rest = cmd.Flags().Args()
	if cmd.HasSubCommands() && len(rest) > 0 {
		return nil, nil, usage("there is no command %q", rest[0])
	}
	return cmd, rest, nil
}

// The flags that the Helm chart gives to the lock server, or names, are there.
func TestFlagsOfTheChart(t *testing.T) {
	serve, _, err := parse([]string{"serve"})
	testkit.WantNil(t, "parse", err)
	found := 0
	for _, file := range []string{"templates/deployment.yaml", "values.yaml"} {
		text, err := os.ReadFile("../../../../deploy/helm/joblock/" + file)
		testkit.WantNil(t, "ReadFile", err)
		for _, m := range regexp.MustCompile(`--([a-z][a-z-]+)`).FindAllSubmatch(text, -1) {
			found++
			if serve.Flag(string(m[1])) == nil {
				t.Errorf("%s: joblock serve has no flag --%s", file, m[1])
			}
		}
	}
	if found < 12 {
		t.Errorf("found only %d flags", found)
	}
}
