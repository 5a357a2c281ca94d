package joblock

import "github.com/joblock/toolkit/joblock/driver"

// State is what a key is at an instant of the store's clock. The package comment
// explains the states.
type State = driver.State

// The states of a key.
const (
	StateFree     = driver.StateFree
	StateHeld     = driver.StateHeld
	StateParked   = driver.StateParked
	StateOrphaned = driver.StateOrphaned
	StateForeign  = driver.StateForeign
)

// Ended tells how the last ownership of a key came to its end.
type Ended = driver.Ended

// The ways an ownership ends.
const (
	EndedNone     = driver.EndedNone
	EndedReleased = driver.EndedReleased
	EndedForced   = driver.EndedForced
	EndedLapsed   = driver.EndedLapsed
	EndedDone     = driver.EndedDone
)
