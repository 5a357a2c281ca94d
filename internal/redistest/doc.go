// Package redistest starts what the tests of this module talk to: one redis-server that the fast tests share, servers
// of a test's own (one, a cluster, a master with sentinels), miniredis instances that also work inside a
// testing/synctest bubble, and a proxy that breaks connections at a chosen command.
//
// [Shared] gives a test a database of the shared server. [Start] and its variants work only in test files with the
// build tag servers, so that the fast tests stay fast.
//
// Everything listens on 127.0.0.1 and ends with the test. [Ran] records which back ends ran, and make all refuses
// a run in which a back end is missing.
//
// Only tests may import this package; package layering enforces that rule.
package redistest
