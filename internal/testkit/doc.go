// Package testkit is shared by the tests of all packages: a log that can be read while others write, seeds, and checks
// of errors. It imports no package under test, so that the tests of any package can use it. See also
// internal/faultstore and internal/redistest.
package testkit
