// Bench compares this library with its peers, all against one redis-server that
// it starts itself, in one run:
//
//	go run . -short            seconds, to see that it works; figures mean nothing
//	go run . -out results      the real thing, ten minutes on a quiet machine
//	go run . -only handover    one or several measurements, by comma
//
// It prints its tables, and with -out writes results.md, results.json (every
// round) and handover.svg there.
//
// The measurements: uncontended (acquire and release), handover (latency and
// cost among waiters in several processes), order (of more than ten thousand hand-overs),
// renewal (many held locks), jobs
// (asynq with and without the locks), growth (ten times the work). What each
// column means stands above its table.
//
// README.md tells where it is behind, and why.
//
// It is a module of its own so that the peers do not become dependencies of the
// library. It needs redis-server in PATH and runs where there are Unix system
// calls.
package main
