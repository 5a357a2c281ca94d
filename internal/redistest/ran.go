package redistest

import (
	"fmt"
	"os"
	"testing"
)

// BackendsEnv names the environment variable with the path of the file to which
// [Ran] appends.
const BackendsEnv = "JOBLOCK_BACKENDS"

// Ran records that the test really exercised the back end. When the test has ended, and has neither failed nor been
// skipped, Ran appends a line "backend<TAB>test name" to the file named by $JOBLOCK_BACKENDS. Without that variable Ran
// does nothing.
//
// backend is a name and, if there is one, a version: "memstore", [MiniBackend] or [Server.Backend].
func Ran(t testing.TB, backend string) {
	t.Helper()
	path := os.Getenv(BackendsEnv)
	if path == "" {
		return
	}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		if err := appendLine(path, backend+"\t"+t.Name()); err != nil {
			t.Errorf("record that %s ran: %v", backend, err)
		}
	})
}

// appendLine adds one line in a single write: test binaries of several packages
// append to the same file at the same time.
func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
