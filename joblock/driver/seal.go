package driver

import "time"

const (
	// SealKeyBytes is the length of a SealKey's secret.
	SealKeyBytes = 32
	// MaxSealKeys is the most SealKeys that a Store keeps. The oldest are dropped first.
	MaxSealKeys = 16
)

// SealKey is a key that is stored beside the locks. Packages handoff and worker use it to
// seal what tasks carry. Who can read the locks can read it; who can only enqueue tasks
// cannot. The first SealKeys makes it. Usually there is one. If the Store has lost it, a
// second may be made before somebody who knows the first puts it back.
type SealKey struct {
	Secret [SealKeyBytes]byte
	Since  time.Time // when a Store first stored it, by that Store's clock, to the microsecond
}

// SealKeysRequest asks for the SealKeys.
type SealKeysRequest struct {
	Known []SealKey          // those that earlier calls have returned
	Fresh [SealKeyBytes]byte // random; becomes the first key if there is none
}
