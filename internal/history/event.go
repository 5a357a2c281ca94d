package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Kind says what an Event is about.
type Kind string

// The kinds of events.
const (
	Acquired     Kind = "acquired"      // TryAcquire or Acquire brought a lock
	Resumed      Kind = "resumed"       // Resume brought a lock
	Reclaimed    Kind = "reclaimed"     // Reclaim brought a lock
	ReclaimBegun Kind = "reclaim begun" // Reclaim was called by the holder that had parked; without Answered or Refused after it, its outcome is unknown
	Answered     Kind = "answered"      // the ReclaimBegun was answered, by the grant in Reclaimed
	Trusted      Kind = "trusted"       // at Call the lock was held, and trusted until Trust
	Lost         Kind = "lost"          // at At the user knew of the loss
	ParkBegun    Kind = "park begun"    // Park was called; without Parked or Refused after it, its outcome is unknown
	Parked       Kind = "parked"        // Park succeeded
	ReleaseBegun Kind = "release begun" // Release was called; otherwise as ParkBegun
	Released     Kind = "released"      // Release succeeded
	Refused      Kind = "refused"       // the call that was begun before, or its re-send, was refused
	Forced       Kind = "forced"        // ForceRelease has taken the key from its owner
	FreeBegun    Kind = "free begun"    // jobs.Free was called; without Freed after it, its outcome is unknown
	Freed        Kind = "freed"         // jobs.Free has freed the key
	Reserved     Kind = "reserved"      // jobs.Reserve has kept the key for its job
	TakeBegun    Kind = "take begun"    // a job takes the key or a place in the line; without Taken, Waiting or Refused after it, its outcome is unknown
	Taken        Kind = "taken"         // the key is parked for the job
	Waiting      Kind = "waiting"       // the job has a place in the line
	Passed       Kind = "passed"        // the call that freed the key says that it has given the key to the job, which waited
)

// Event is one thing that a user of a lock saw. Times are UnixNano.
type Event struct {
	Kind    Kind          `json:"kind"`
	Key     string        `json:"key"`
	Holding string        `json:"holding,omitempty"` // one per grant and per FreeBegun; "" for Forced, Reserved and jobs in line
	Chain   string        `json:"chain,omitempty"`   // digest of the owner token, which holdings of one chain share; TakeBegun, Taken and Waiting too
	Call    int64         `json:"call"`              // when the call was made
	At      int64         `json:"at"`                // when its answer was there
	Job     string        `json:"job,omitempty"`     // ParkBegun, Resumed, Reclaimed, FreeBegun, Reserved, TakeBegun, Taken, Waiting, Passed
	Back    string        `json:"back,omitempty"`    // ParkBegun, ReclaimBegun, Reclaimed: the lock's job if the Park is undone
	Fence   int64         `json:"fence,omitempty"`   // Acquired, Resumed, Reclaimed, Parked, Taken; FreeBegun: the fence to free, 0 for any
	Since   int64         `json:"since,omitempty"`   // Waiting: when the place was taken, by the store's clock
	Trust   int64         `json:"trust,omitempty"`   // Acquired, Resumed, Reclaimed, Trusted: the deadline
	TTL     time.Duration `json:"ttl,omitempty"`     // Acquired, Resumed, Reclaimed
	Reserve time.Duration `json:"reserve,omitempty"` // Resumed, Reclaimed: reserved beyond the lease; ParkBegun, Reserved: from the call on; TakeBegun: from the grant on
}

// Read reads what a Recorder wrote. It leaves out an incomplete last line: its writer was
// killed.
func Read(r io.Reader) ([]Event, error) {
	var out []Event
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("event %d: %w", len(out)+1, err)
		}
		out = append(out, e)
	}
}
