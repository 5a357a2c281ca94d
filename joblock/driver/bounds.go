package driver

import "time"

// Bounds of the values in requests to a Store, and of fences. The caller of the Store checks the bounds of requests.
const (
	MaxKeyBytes   = 512      // length of a key, without the store's prefix
	MaxOwnerBytes = 128      // length of an owner
	MaxLabelBytes = 256      // length of a holder label, of a job and of a reason
	MaxMemoBytes  = 64 << 10 // length of a memo
	MaxBatch      = 1000     // items of one call: a larger call would block other calls for too long

	MaxFence = 1<<53 - 1 // largest fence: what Lua, JSON and JavaScript keep exactly

	SealKeyBytes = 32 // exact length of a SealKey's secret
	MaxSealKeys  = 16 // SealKeys that a Store keeps

	MinPeriod = time.Millisecond     // shortest lease, reservation and retention
	MaxPeriod = 366 * 24 * time.Hour // longest lease, reservation and retention
)
