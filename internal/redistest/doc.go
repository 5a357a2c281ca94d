// Package redistest starts what the tests of this module talk to: real
// redis-server processes (one, a cluster, a master with sentinels), miniredis
// instances that also work inside a testing/synctest bubble, and a proxy that
// breaks connections at a chosen command.
//
// Everything listens on 127.0.0.1, lives in a temporary directory of its test
// and ends with it. A missing redis-server fails the test and never skips it: a
// suite that is green because it did not run is worse than a red one. [Ran]
// records which back ends ran, and make test refuses a run in which one did not.
//
// Only tests may import it; package layering enforces that.
package redistest
