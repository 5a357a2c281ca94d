// Package core is the engine of package joblock: the locks of a process, their renewal, the waits for them and the
// clean-up after calls without an answer. Package joblock is its facade for applications, and documents each call. The
// comments here say only what the facade's comments do not.
//
// The handles of the facade are defined types, as in type Locker core.Locker, so the packages of this module can
// convert them:
//
//	locks := (*core.Locker)(l) // l is a *joblock.Locker
//
// Package core has calls for many locks at once, and options that an application must not have, because with them it
// could lose a job.
package core
