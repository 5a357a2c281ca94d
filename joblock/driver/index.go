package driver

import "time"

// JobKeep is how long a Store keeps an entry of the index that is due and that no Due returns. Without JobKeep the
// index would grow forever where no keeper runs. A keeper that starts again after a longer time does not find the
// dropped entries; the locks of those entries end with their reservations.
const JobKeep = 24 * time.Hour

// SettledFor is how long a due entry remains Settled.
const SettledFor = time.Minute

// Entry is an entry of the index: a key and a job that the key's record was bound to.
type Entry struct {
	Key  string
	Job  string // "queue/taskID"
	Mark int64  // names the Due that returned this entry; each write, each Due and each Settle ends the Mark

	// Settled reports that the last Settle of the entry set Settled, that the entry has been neither written nor
	// returned by a Due since, and that it has been due for at most SettledFor. So a reader that has looked at a lock
	// can let the next readers skip the lock for a while. A Store may always report false.
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
	Entries []Entry       // the longest overdue first
	Next    time.Duration // from now until the first entry of the part that is not in Entries is due; see Store.Due
}

// Settlement says when an entry that a Due has returned is due again.
type Settlement struct {
	Entry
	Again time.Duration // from now until the entry is due; 0 removes the entry
}

// EntriesRequest asks for a page of the entries of one part of the index.
type EntriesRequest struct {
	Part   int    // from 0 to Parts-1
	Cursor string // "" for the first page, then the previous EntriesPage.Next
	Count  int    // about how many entries the Store looks at for the page
}

// EntriesPage is a page of entries, without Mark and Settled. Only the last page has an empty Next. Any page may have no
// entries, and the page of a small part may have more than Count.
type EntriesPage struct {
	Entries []Entry
	Next    string

	// Due is when the first of Entries is due, or was, by the store's clock; zero without Entries. It shows how far the
	// readers of the index are behind.
	Due time.Time

	// Progress says how much of the part this page covers, from 0 to 1. The sum over all pages of a part is about 1. If
	// the Store does not know, Progress is 0.
	Progress float64
}
