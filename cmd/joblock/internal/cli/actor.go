package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock/driver"
)

// actorFlags holds the flag of a command that changes something. The change is recorded under the operator's name.
type actorFlags struct{ reason string }

func (a *actorFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.reason, "reason", "", fmt.Sprintf("why, as `TEXT` of at most %d bytes, for others who look at the record", driver.MaxLabelBytes))
}

func (a *actorFlags) why() string { return cmp.Or(a.reason, ops.NoReason) }

// operator returns the name of the user for the records: "user@host".
func operator() string { return cut(visible(whoami()), 100) + "@" + cut(visible(hostname()), 100) }

// acted prints to the standard error what was done, and what could not be recorded.
func acted(cmd *cobra.Command, done ops.ActionResult, format string, args ...any) error {
	err := tell(cmd, format, args...)
	for _, problem := range done.Problems {
		err = cmp.Or(err, tell(cmd, "%s", problem))
	}
	return err
}
