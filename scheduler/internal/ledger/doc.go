// Package ledger is the state of a job in the cluster and the rules by which it changes, as
// plain values: no I/O, no clock, no goroutines. Package scheduler reads a ledger from the
// memo of the job's lock, changes it here, and writes it back.
//
//	Decode    memo → Ledger
//	Update    ticks that are due wait in Ledger.Due or are written off; triggers wait there
//	Begin     the next waiting tick becomes Ledger.Execution
//	End       the execution is settled and counted
//	Encode    Ledger → memo
//
// Whoever holds the lock of the job may write its ledger. Everybody may call Update and
// Begin on a copy, to see whether there is anything to do.
//
// What people ask for (pause, resume, trigger) is in Orders, the memo of another record: a
// job's own ledger belongs to whoever runs the job, perhaps for hours.
package ledger
