package driver

import "time"

const (
	// SealKeyBytes is the length of a SealKey's secret.
	SealKeyBytes = 32
	// MaxSealKeys is how many SealKeys a Store keeps.
	MaxSealKeys = 16
)

// SealKey is a key that lives with the locks. Packages handoff and worker seal with
// it what tasks carry: whoever may read the locks can read it, and whoever may only
// enqueue tasks cannot. There is one, made by the first who needs it, unless the Store
// has lost it: then others may have made another before those who knew it put it back.
type SealKey struct {
	Secret [SealKeyBytes]byte
	Since  time.Time // when a Store took it in for the first time, by the Store's clock, in µs
}

// SealKeysRequest asks for the SealKeys.
type SealKeysRequest struct {
	Known []SealKey          // those that an earlier call has returned
	Fresh [SealKeyBytes]byte // random: the first key, where there is none
}
