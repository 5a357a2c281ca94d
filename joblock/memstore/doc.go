// Package memstore keeps lock records in the memory of one process: the same
// states, answers and fences as package redisstore, without a server. It is for
// tests, for command line tools, and for programs of which there is exactly one.
//
// Two processes with a memstore each do not see each other's locks. So that
// nobody learns this in production, a Store logs a warning when it is first
// used, and [NoticeRefuse] makes joblock.New fail instead.
//
// Time is the process's monotonic clock, counted from the wall time at which the
// Store was made: a step of the wall clock neither ends a lease nor prolongs one.
// Config.Now replaces the clock; a test that moves it by hand, or that runs in a
// testing/synctest bubble, waits for nothing.
//
// A Store starts no goroutine. Records whose retention is over are dropped when
// somebody asks for them, and all together whenever the number of records has
// doubled, so that memory stays within twice of what is remembered on purpose. Of
// the index of jobs' locks nothing is dropped but by Forget, and what nobody looks
// at for driver.JobKeep.
package memstore
