// Package workerstats has what workers report for operators: package worker writes it, and package ops reads it. Each
// report is the memo of a key; see keyspace.Keepers and keyspace.Durations.
package workerstats

import (
	"encoding/json"
	"fmt"
	"time"
)

// KeeperPeriod is how often a working keeper writes its Keeper.
const KeeperPeriod = 10 * time.Second

// KeeperReason begins the reason with which a keeper frees a lock, as the record of the lock shows it.
const KeeperReason = "keeper: "

// MostQueues is the largest number of names in Keeper.Strangers.
const MostQueues = 20

// Keeper has the stats of a working keeper. Times are by the clock of the locks' store, as far as the keeper's process
// knows that clock. Durations are in milliseconds.
type Keeper struct {
	At    time.Time `json:"at"`             // when the stats were written
	Began time.Time `json:"began"`          // when the keeper began to work
	Asked time.Time `json:"asked,omitzero"` // when the keeper last got the list of locks that are due

	// Behind says that more locks were due then than one answer holds, or that the keeper was late with some checks. Late
	// is the largest delay of a check since the previous stats.
	Behind bool  `json:"behind,omitempty"`
	Late   int64 `json:"late_ms,omitempty"`

	// Some of worker.Config. Databases is the number of its Inspectors.
	Every     int64   `json:"every_ms"`
	Reserve   int64   `json:"reserve_ms"`
	Share     float64 `json:"share"`
	Keepers   int     `json:"keepers"`
	Databases int     `json:"databases"`
	DryRun    bool    `json:"dry_run,omitempty"`

	// The counts of worker.KeeperStats, since the process began.
	Checked    int64            `json:"checked"`
	Held       int64            `json:"held"`
	Kept       int64            `json:"kept"`
	Listed     int64            `json:"listed"`
	Extended   int64            `json:"extended"`
	Over       int64            `json:"over"`
	Foreign    int64            `json:"foreign"`
	Unanswered int64            `json:"unanswered"`
	Freed      map[string]int64 `json:"freed,omitempty"`

	// Strangers are queues that have jobs with locks and are in none of the keeper's databases. The keeper leaves the locks
	// of these jobs alone.
	Strangers []string `json:"strangers,omitempty"`
}

// Encode returns the text of k.
func (k Keeper) Encode() []byte {
	text, err := json.Marshal(k)
	if err != nil {
		panic(fmt.Sprintf("workerstats: %v", err)) // only a Share that is NaN or infinite cannot be encoded
	}
	return text
}

// DecodeKeeper reverses Keeper.Encode.
func DecodeKeeper(text []byte) (k Keeper, err error) {
	if err := json.Unmarshal(text, &k); err != nil {
		return Keeper{}, fmt.Errorf("the figures of a keeper cannot be read: %w", err)
	}
	return k, nil
}
