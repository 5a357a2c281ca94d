package driver

import "time"

// JobKeep is how long a Store keeps an entry of the index that is due and that no Due
// returns. Otherwise the index would grow for ever where no keeper runs. A keeper that was
// away for longer does not find those locks; they end with their reservations.
const JobKeep = 24 * time.Hour

// JobLock is an entry of the index: a key whose record was bound to a job.
type JobLock struct {
	Key  string
	Job  string // "queue/taskID"
	Mark int64  // of the Due that returned it; every other Due or write gives the entry another
}

// DueRequest asks for entries of the index that are due.
type DueRequest struct {
	Limit int
	Later time.Duration // until the same entries are due again
}
