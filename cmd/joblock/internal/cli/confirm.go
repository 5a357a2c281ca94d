package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// confirmation holds the flag of a command that destroys something or has a wide effect.
type confirmation struct{ yes bool }

func (c *confirmation) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask for confirmation; required without a terminal")
}

// confirm prints what is about to happen and, unless --yes was given, asks the user to type want. It returns an error if
// the command must not go on: the standard input is not a terminal, or the user typed something else.
func (c *confirmation) confirm(cmd *cobra.Command, want, format string, args ...any) error {
	if err := tell(cmd, format, args...); err != nil || c.yes {
		return err
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return usage("nothing was changed: the standard input is not a terminal, so this needs --yes")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Type %s to go on: ", safe(want))
	line, err := readLine(in)
	if err != nil {
		return &exitError{exitNo, fmt.Errorf("nothing was changed: %w", err)}
	}
	if typed := strings.TrimSpace(line); typed != want && typed != safe(want) {
		return &exitError{exitNo, fmt.Errorf("nothing was changed: %q was typed, not %q", typed, want)}
	}
	return nil
}

// readLine reads a line that the user types. The end of the input also ends the line.
func readLine(in io.Reader) (string, error) {
	const most = 4096
	line, err := bufio.NewReader(io.LimitReader(in, most)).ReadString('\n')
	if err == io.EOF {
		err = nil
	}
	return line, err
}

// tell prints a line to the standard error, with invisible characters escaped.
func tell(cmd *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), visible(fmt.Sprintf(format, args...)))
	return err
}
