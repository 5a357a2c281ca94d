package driver

import "time"

// Record is a lock record as read.
type Record struct {
	Key      string
	State    State
	Owner    string        // a secret: joblock.Status has what may be shown
	Fence    int64         // of the present term; if the key is free, of the last one
	First    int64         // fence under which this owner acquired it; the later ones are larger
	Lease    time.Duration // what is left of the lease; 0 unless held
	Reserved time.Duration // what is left of the reservation; 0 when free
	Since    time.Time     // when this owner acquired it, by the store's clock
	Changed  time.Time     // when it was last acquired, parked, taken back, resumed or ended, by the same clock
	Holder   string
	Job      string
	Ended    Ended
	Reason   string
	Memo     []byte    // on request
	Waiters  int       // places in the queue
	Now      time.Time // the store's clock at the read; zero where there is no record
}
