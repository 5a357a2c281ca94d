// Package roster has the jobs and the nodes of a scope. It works on plain values: no I/O, no clock, no goroutines.
// Package scheduler keeps the values in the memos of locks.
//
//	Names   a page of the names of all jobs: a job's name is on the page of its hash; also the list of all scopes
//	Nodes   the IDs of the nodes
//	Node    a node, and which jobs the node has; its lock is held as long as the node is up
//
// A name is on its page before the job has a ledger, so a list of jobs reads the pages and the ledgers of these jobs,
// whatever else the store has. The pages are ordinary records, not an index of the store: a list reads a few records
// more, but stores need no support for it. In a cluster the pages are on different nodes.
package roster
