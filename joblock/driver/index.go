package driver

import "time"

// JobKeep is how long a Store keeps an entry of the index that is due and that no Due returns. Without JobKeep the
// index would grow for ever where no keeper runs. A keeper that was away for longer does not find the dropped
// entries; their locks end with their reservations.
const JobKeep = 24 * time.Hour

// JobLock is an entry of the index: a key and a job that the key's record was bound to.
type JobLock struct {
	Key  string
	Job  string // "queue/taskID"
	Mark int64  // names the Due that returned this entry; each write and each Due gives the entry another Mark
}

// DueRequest asks for entries of the index that are due.
type DueRequest struct {
	Limit int           // the most entries that Due returns
	Later time.Duration // from now until the returned entries are due again
}
