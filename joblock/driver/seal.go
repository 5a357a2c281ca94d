package driver

import "time"

// SealKey is a key that a Store keeps next to the locks. Packages handoff and worker use the seal keys to seal the
// locks that tasks carry. A program that can read the locks can read the seal keys; a program that can only enqueue
// tasks cannot. Usually there is one SealKey, which the first call of Store.SealKeys makes. If a Store loses that key,
// Store.SealKeys may make a second key before a caller that knows the first key sends it again.
type SealKey struct {
	Secret [SealKeyBytes]byte
	Since  time.Time // when a Store first stored the key, by that Store's clock, in whole microseconds
}

// SealKeysRequest asks for the SealKeys.
type SealKeysRequest struct {
	Known []SealKey          // the keys that earlier calls have returned
	Fresh [SealKeyBytes]byte // random bytes; the secret of a new SealKey if there is none
}
