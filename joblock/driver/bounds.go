package driver

import "time"

// Bounds of what a Store is given. The caller checks them.
const (
	MaxKeyBytes   = 512      // of a key, without the store's prefix
	MaxOwnerBytes = 128      // of an owner
	MaxLabelBytes = 256      // of a holder label, a job or a reason
	MaxMemoBytes  = 64 << 10 // of a memo

	// MaxBatch is how many items one call has at most, so that no call keeps the store
	// from its other work for long.
	MaxBatch = 1000

	// MinPeriod is the shortest lease, reservation and retention.
	MinPeriod = time.Millisecond

	// MaxPeriod bounds leases, reservations and retention.
	MaxPeriod = 366 * 24 * time.Hour
)
