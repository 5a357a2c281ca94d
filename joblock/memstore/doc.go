// Package memstore keeps lock records in the memory of one process: the same
// states, answers and fences as package redisstore, without a server. It is for
// tests, for command line tools, and for programs of which there is exactly one.
//
// Two processes with a memstore each do not see each other's locks. A Store logs a
// warning about that when it is first used. [NoticeRefuse] makes joblock.New fail instead.
//
// Time is the process's monotonic clock, counted from the wall time at which the
// Store was made. A step of the wall clock neither ends a lease nor prolongs one.
// Config.Now replaces the clock. A test that moves it by hand waits for nothing, nor
// does one in a testing/synctest bubble.
//
// A Store starts no goroutine. It drops a record whose retention is over when somebody asks
// for that record. Each time the number of records has doubled it drops all such records.
//
// transition.go has a pure function for each call, which reads like the table in package
// driver. The rest is a map, a clock and a mutex around them.
package memstore
