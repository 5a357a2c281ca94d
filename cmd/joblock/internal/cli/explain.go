package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
)

func newExplain(s *server) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "explain [flags] KEY",
		Short: "say in sentences who has a key, why, what frees it, and what you may do",
		Long: `Explain says who has the lock on KEY and since when, and whether the holder still renews its lease; what its job is doing
in asynq, what operators have done about KEY, and who is next; what frees KEY by itself, and when if the holder is dead;
and what an operator may do, the mildest first, each with its command.

Explain changes nothing. If asynq uses a different Redis from the locks, --asynq says which.

With -o json: {"v":1, "key", "text": [sentences], "frees": {"by", "text", "latest", "within_ms", "if"}, "actions":
[{"name", the arguments "key", "fence", "job", "step", "effect", "danger"}], "lock", "acts"}. The sentences are for
people, and may change.

Exit codes:
  0   the key was read
  64  wrong usage
  69  Redis did not answer
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock explain export:acct-7
  joblock explain export:acct-7 -o json
  joblock explain --asynq redis://queues.example:6379/2 export:acct-7`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.withDesk(cmd, &out, func(ctx context.Context, d *desk, p *printer) error {
				e, err := d.Explain(ctx, args[0])
				if err != nil {
					return err
				}
				if !p.forPeople() {
					return printOne(p, []column[ops.Explanation]{{head: "KEY", text: func(e ops.Explanation) string { return e.Key }}}, e)
				}
				p.out.WriteString(p.paint(safe(e.Key), strong) + "\n")
				for _, paragraph := range explanationText(e) {
					p.out.WriteByte('\n')
					for line := range strings.SplitSeq(visible(paragraph), "\n") {
						if strings.HasPrefix(line, " ") { // a command, which people copy
							p.out.WriteString(line + "\n")
							continue
						}
						p.out.WriteString(wrap(line, min(p.width, 100)) + "\n")
					}
				}
				err = p.out.Flush()
				if err == nil && len(e.Acts) == 0 {
					s.hint(ctx, d, p, e.Lock)
				}
				return err
			})
		},
	}
	out.flags(cmd.Flags())
	return cmd
}

// explanationText returns the paragraphs of an explanation. A line feed begins a line within a paragraph.
func explanationText(e ops.Explanation) []string {
	text := slices.Clone(e.Text)
	if label := e.Frees.Label(); label != "" {
		frees := label + ": " + e.Frees.Text
		if !e.Frees.Latest.IsZero() {
			frees += fmt.Sprintf(" (If %s: in %s.)", e.Frees.If, span(e.Frees.Within.Duration()))
		}
		text = append(text, frees)
	}
	if len(e.Actions) > 0 {
		text = append(text, "What you may do:")
	}
	asks := false
	for i, a := range e.Actions {
		paragraph := fmt.Sprintf("%d. %s: %s", i+1, a.Name, a.Effect)
		if a.Danger != "" {
			paragraph += " Danger: " + a.Danger
		}
		if text := cmdline.Of(a); text != "" {
			paragraph += "\n   " + text
		}
		text = append(text, paragraph)
		asks = asks || cmdline.Asks(a)
	}
	if asks {
		text = append(text, "TEXT is your reason, for the record of actions. A command that ends or deletes something asks first; without a terminal it needs --yes.")
	}
	return text
}
