// Package ledger has the state of a job in the cluster and the rules by which that state changes. It has plain values:
// no I/O, no clock, no goroutines. Package scheduler reads a ledger from the memo of the job's lock, changes the ledger
// here, and writes it back.
//
//	Decode    memo → Ledger
//	Update    due ticks and triggers go to Ledger.Due; other ticks are skipped
//	Begin     the next waiting tick becomes Ledger.Execution
//	End       the execution gets its result and is counted
//	Encode    Ledger → memo
//
// Only the holder of the job's lock may write the ledger. Any node may call Update and Begin on a copy, to see whether
// anything is due.
//
// Pauses and triggers are in Orders, the memo of another lock. They cannot be in the ledger: the node that executes the
// job holds the job's own lock, perhaps for hours.
package ledger
