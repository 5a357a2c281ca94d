// Package redistest starts what the tests of this module talk to: real
// redis-server processes (one, a cluster, a master with sentinels), miniredis
// instances that also work inside a testing/synctest bubble, and a proxy that
// breaks connections at a chosen command.
//
// Everything listens on 127.0.0.1, lives in a temporary directory of a test and ends with the test. A missing
// redis-server fails the test and never skips it: a suite that is green because it did not run is worse than a red
// suite. [Ran] records which back ends ran, and make test refuses a run in which a back end did not run.
//
// Only tests may import this package; package layering enforces that rule.
package redistest
