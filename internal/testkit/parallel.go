package testkit

import (
	"sync"
	"testing"
)

var inParallel sync.Map // of *testing.T

// Parallel is t.Parallel, which may be called only once, for helpers that a test calls several times.
func Parallel(t *testing.T) {
	t.Helper()
	if _, already := inParallel.LoadOrStore(t, true); already {
		return
	}
	t.Cleanup(func() { inParallel.Delete(t) })
	t.Parallel()
}
