package driver

import "time"

// JobKeep is how long after its time has come a Store keeps an entry of the index
// that nobody looks at: where no keeper runs the index would grow for ever
// otherwise. A keeper that was away for longer leaves the locks that it no longer
// finds to the end of their reservations.
const JobKeep = 24 * time.Hour

// JobLock is an entry of the index: a key whose record was bound to a job.
type JobLock struct {
	Key  string
	Job  string // "queue/taskID"
	Mark int64  // identifies the look that returned it
}

// DueRequest asks for entries of the index whose time has come.
type DueRequest struct {
	Limit int
	Later time.Duration // until the same entries are due again
}

// ReserveRequest keeps a key reserved for the job that its record is bound to.
type ReserveRequest struct {
	Key    string
	Job    string
	Hold   time.Duration // from now on; a reservation that lasts longer stays
	Retain time.Duration // how long the record outlives the reservation
}
