package driver

import "time"

// SealKey is a key that a Store keeps beside the locks. Packages handoff and worker seal with it what tasks carry.
// Who can read the locks can read the SealKeys; who can only enqueue tasks cannot. Usually there is one SealKey,
// which the first call of SealKeys makes. If a Store has lost that key, a second one may be made before a caller that
// knows the first puts the first back.
type SealKey struct {
	Secret [SealKeyBytes]byte
	Since  time.Time // when a Store first stored the key, by that Store's clock, in whole microseconds
}

// SealKeysRequest asks for the SealKeys.
type SealKeysRequest struct {
	Known []SealKey          // the keys that earlier calls have returned
	Fresh [SealKeyBytes]byte // random bytes; the secret of a new SealKey if there is none
}
