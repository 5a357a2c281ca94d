// Package records reads and writes the records of a scope in the store. Nodes and operators use it in the same way.
//
//	Scope        the keys of the scope, and the locks on them
//	orders.go    pauses, triggers and backfills of all jobs
//	jobs.go      the list of jobs
//	nodes.go     the nodes that are up
//	errors.go    the errors of package scheduler
package records
