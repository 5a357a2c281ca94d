// Package internal has no code, only the tests of the small packages below it: a test binary for each of them would cost
// more to link than all of their tests cost to run. A package that has more to test, or tests of what it does not export,
// has its tests where the package is.
package internal_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
