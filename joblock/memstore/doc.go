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
// A Store starts no goroutine. It drops a record whose retention is over when somebody
// asks for it. It drops all of them when the number of records has doubled, so memory
// stays within twice of what is to be remembered. The index of jobs loses an entry by
// Forget, or when it has been due for driver.JobKeep.
//
// transition.go has what each call does to a record, as pure functions that read like
// the table in package driver. The rest is a map, a clock and a mutex round them.
package memstore
