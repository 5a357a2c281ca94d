package joblock

import "github.com/joblock/toolkit/joblock/driver"

// State is the state of a key at an instant of the store's clock; see the package
// comment.
type State = driver.State

// The states of a key.
const (
	StateFree     = driver.StateFree
	StateHeld     = driver.StateHeld
	StateParked   = driver.StateParked
	StateOrphaned = driver.StateOrphaned
	StateForeign  = driver.StateForeign
)

// Ended tells how the last ownership of a key ended.
type Ended = driver.Ended

// The ways an ownership ends.
const (
	EndedNone     = driver.EndedNone
	EndedReleased = driver.EndedReleased
	EndedForced   = driver.EndedForced
	EndedLapsed   = driver.EndedLapsed
	EndedDone     = driver.EndedDone
)
