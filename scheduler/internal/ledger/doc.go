// Package ledger has the state of a job in the cluster and the rules by which that state changes. It works on plain
// values: no I/O, no clock, no goroutines. Package policy decides by these rules what a node does; package scheduler
// reads a ledger from the memo of the job's lock and writes it back.
//
//	Decode    memo → Ledger
//	Update    due ticks and triggers go to Ledger.Due; other ticks are skipped
//	Begin     the next waiting tick goes to Ledger.Running
//	TakeOver  an execution that was broken off begins again
//	End       the execution gets its result, is counted, and becomes Ledger.Latest
//	Encode    Ledger → memo
//
// Only the holder of the job's lock may write the ledger. Any node may change a copy, to see whether anything is due.
//
// Pauses and triggers are in Orders, the memo of another lock. They cannot be in the ledger: the node that executes the
// job holds the job's own lock, perhaps for hours.
package ledger
