// Package core is the engine of package joblock: the locks of a process, their renewal, the waits for them and the
// clean-up after calls without an answer. Package joblock is its facade for applications, and has the documentation of
// each call. The comments here only say what the facade does not.
//
// The handles of the facade are defined types, such as joblock.Lock of Lock, so the packages of this module convert:
//
//	locks := (*core.Locker)(l) // l is a *joblock.Locker
//
// Core has calls for many locks at once, and options that an application must not have: with them it could lose a job.
package core
