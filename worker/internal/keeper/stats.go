package keeper

import "time"

// Stats has the fields of worker.KeeperStats, which are explained there.
type Stats struct {
	Working    bool
	Asked      time.Time
	Behind     bool
	Checked    int64
	Held       int64
	Kept       int64
	Listed     int64
	Extended   int64
	Over       int64
	Foreign    int64
	Unanswered int64
	Freed      map[string]int64
}
