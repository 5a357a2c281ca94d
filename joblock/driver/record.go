package driver

import "time"

// Record is what a Store shows of a key to Inspect and List. Times are those of the store's clock.
type Record struct {
	Key      string
	State    State
	Owner    string        // a secret; joblock.Status has what may be shown
	Fence    int64         // of the present term; if the key is free, of the last term
	First    int64         // fence of the first term of the last ownership; later terms have larger fences
	Lease    time.Duration // what is left of the lease; 0 unless the key is held
	Reserved time.Duration // what is left of the reservation; 0 if the key is free
	Since    time.Time     // when the last ownership began
	Changed  time.Time     // time of the last Acquire, Take, Park, Resume, Renew that took a Park back, or END
	Renewed  time.Time     // when the lease began, by the last GRANT, Resume or Renew; zero if the key is parked or was released
	TTL      time.Duration // the length of that lease
	EndedAt  time.Time     // when the last ownership ended, by an END or as its reservation ran out; zero unless the key is free
	Holder   string        // label of the last holder
	Job      string        // "queue/taskID" that the record is bound to, or ""
	Ended    Ended         // how the last ownership ended
	Reason   string        // given with the release that ended the ownership
	Memo     []byte        // set only if the request asked for memos
	Waiters  int           // places in the queue
	Place    *Place        // the place that InspectRequest.Places names; nil if there is none
	Now      time.Time     // when the Store read the record; zero if the key has no record
}

// Place is a place in the queue of a key, as Inspect and Line show it.
type Place struct {
	Holder string    // label of the waiter
	Job    string    // the job that waits, or "" for an Acquire
	Since  time.Time // when the place was taken, by the store's clock
	Until  time.Time // when the place ends, by the store's clock
	Ahead  int       // as Reply.Ahead
}
