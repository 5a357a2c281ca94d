// Package testkit is what the tests of all packages share: a log that can be read while
// it is written, and the shortest ways to say which error is wanted. It knows no package
// under test, so that tests of any may use it. What takes a store away is in
// internal/faultstore, what starts servers in internal/redistest.
package testkit
