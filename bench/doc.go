// Bench compares this library with its peers, all against one server that it
// starts itself:
//
//	go run . -quick                  seconds, to see that it works; figures mean nothing
//	go run . -out results            the real thing, on a quiet machine
//	go run . -only handover          one or several measurements, by comma
//	go run . -aims -runs 3           what has an aim, three times, with the range of the runs
//	go run . -against ../../older    beside another checkout of this repository
//	go run . -server PATH -busy      another server; one core of the machine kept busy
//	go run . -keepers                the keepers of several processes before a million parked locks
//
//	go run . -costs                  what each operation costs a server: results/costs.json
//	go run . -capacity -jobs 300     what a fleet needs, by a model of these costs; -h has the flags
//	go run . -capacity-check         loads on real servers beside what the model says of them
//	go run . -capacity-page          docs/capacity.md with the model's tables of today
//
// It prints its tables, and with -out writes results.md, results.json (every
// round) and handover.svg there.
//
// The measurements: uncontended (acquire and release), against (the same, beside
// another checkout), handover (latency and cost among waiters in several processes),
// waiting (what a waiter costs), order (of more than ten thousand hand-overs),
// renewal (many held locks), enqueue, jobs and work (asynq with and without the
// locks, and in sequences), succession (from the end of a job to the start of the next
// of its key), lines (sequences in which one or ten thousand wait), slots (what those
// that wait take from others), memos and records (what they cost the server), walks (a list of all locks
// beside another client, and over a cluster), operator (the command line beside another
// client), fleet (a waiter for each of many keys, on
// one server and in a cluster), growth (ten times the work), cluster (cost per call in
// clusters of 3, 6 and 12 masters; -masters has others). What each column means stands
// above its table.
//
// README.md tells what is aimed at, where it is behind, and why.
//
// It is a module of its own so that the peers do not become dependencies of the
// library. It needs redis-server in PATH, or -server, and runs where there are Unix
// system calls.
package main
