// Package memstore keeps lock records in the memory of one process. Its states, answers and fences are those of
// package redisstore, without a server. Use package memstore in tests, in command line tools, and in programs that
// run exactly once.
//
// Two processes with a memstore each do not see each other's locks. A store logs a warning about this limit at its
// first use, unless Config.Silent is set.
//
// A store's clock is the process's monotonic clock, counted from the wall time at which New was called. So a step of
// the wall clock neither ends a lease nor prolongs one. Config.Now replaces the clock: a test can move its own clock
// and need not wait. A test in a testing/synctest bubble need not wait either.
//
// A store starts no goroutine. A call for a key drops the key's record if the retention of that record is over. Each
// time the number of records has doubled, the store drops all such records.
package memstore
