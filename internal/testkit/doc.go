// Package testkit has what the tests of all packages share: a log that can be read while
// it is written, seeds, and checks of errors. It imports no package under test, so that
// the tests of any package can use it. See also internal/faultstore and internal/redistest.
package testkit
