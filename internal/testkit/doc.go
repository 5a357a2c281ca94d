// Package testkit is shared by the tests of all packages: a log that can be read while others write, seeds, and checks
// of errors. Package testkit imports no package under test, so that the tests of any package can use testkit. See also
// internal/faultstore and internal/redistest.
package testkit
