package driver

import "time"

// JobKeep is how long a Store keeps an entry of the index that is due and that no Due returns. Without JobKeep the
// index would grow for ever where no keeper runs. A keeper that was away for longer does not find the dropped
// entries; their locks end with their reservations.
const JobKeep = 24 * time.Hour

// SettledFor is for how long an entry that is due remains Settled.
const SettledFor = time.Minute

// JobLock is an entry of the index: a key and a job that the key's record was bound to.
type JobLock struct {
	Key  string
	Job  string // "queue/taskID"
	Mark int64  // names the Due that returned this entry; each write, each Due and each Settle ends the Mark

	// Settled says that the last Settle had Settled, that the entry was neither written nor returned by a Due since then,
	// and that the entry has been due for SettledFor at most. So a reader can tell the next reader that the lock need not
	// be read, and the next reader knows that this was not long ago. A Due may always return false.
	Settled bool
}

// DueRequest claims entries of one part of the index that are due.
type DueRequest struct {
	Part  int           // from 0 to Parts-1
	Limit int           // the most entries that Due returns, from 1 to MaxBatch
	Claim time.Duration // from now until the returned entries are due again, unless they are settled
}

// DueReply has the entries that a Due has claimed.
type DueReply struct {
	Locks []JobLock     // the longest overdue first
	Next  time.Duration // from now until the first entry of the part is due that is not in Locks; see Store.Due
}

// Settlement says when an entry that a Due has returned is due again.
type Settlement struct {
	JobLock
	Again time.Duration // from now until the entry is due; 0 removes the entry
}
