package driver

import "time"

const (
	// SealKeyBytes is the length of a SealKey's secret.
	SealKeyBytes = 32
	// MaxSealKeys is how many SealKeys a Store keeps.
	MaxSealKeys = 16
)

// SealKey is a key that lives with the locks. Packages handoff and worker seal with it
// what tasks carry: whoever may read the locks can read the key, and whoever may only
// enqueue tasks cannot. Whoever needs it first makes it. There is one, unless the Store
// has lost it: then somebody may make a second before those who know the first put it
// back.
type SealKey struct {
	Secret [SealKeyBytes]byte
	Since  time.Time // when a Store took it in for the first time, by the Store's clock, in µs
}

// SealKeysRequest asks for the SealKeys.
type SealKeysRequest struct {
	Known []SealKey          // those that earlier calls have returned
	Fresh [SealKeyBytes]byte // random: the first key, where there is none
}
