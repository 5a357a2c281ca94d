package driver

import (
	"math"
	"slices"
)

// State is the state of a key at an instant of the store's clock.
type State uint8

// The states of a key.
const (
	StateFree     State = iota // any caller may take the key
	StateHeld                  // the key has a lease that has not run out
	StateParked                // reserved for its owner, without a lease
	StateOrphaned              // reserved for its owner, whose lease has run out
	StateForeign               // the value at the key is not a lock record
)

var stateNames = [...]string{"free", "held", "parked", "orphaned", "foreign"}

// String returns the state's name in lower case.
func (s State) String() string { return nameOf(stateNames[:], int(s)) }

// MarshalText returns the name that String returns.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the reverse of MarshalText. A name that this version does not know is not an error: the value is
// then none of the constants above, and its String is "unknown".
func (s *State) UnmarshalText(text []byte) error {
	*s = State(indexOf(stateNames[:], text))
	return nil
}

// Ended says how the last ownership of a key ended.
type Ended uint8

// The ways in which an ownership ends.
const (
	EndedNone     Ended = iota // the ownership has not ended, or there was none
	EndedReleased              // its owner released the key
	EndedForced                // a forced release
	EndedLapsed                // its reservation ran out
	EndedDone                  // its owner released the key because the job is done
)

var endedNames = [...]string{"", "released", "forced", "lapsed", "done"}

// String returns the name in lower case; the name of EndedNone is "".
func (e Ended) String() string { return nameOf(endedNames[:], int(e)) }

// MarshalText returns the name that String returns.
func (e Ended) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is the reverse of MarshalText. A name that this version does not know is not an error: the value is
// then none of the constants above, and its String is "unknown".
func (e *Ended) UnmarshalText(text []byte) error {
	*e = Ended(indexOf(endedNames[:], text))
	return nil
}

// indexOf returns the index of a name, or math.MaxUint8 for a name of a later version.
func indexOf(names []string, text []byte) uint8 {
	if i := slices.Index(names, string(text)); i >= 0 {
		return uint8(i)
	}
	return math.MaxUint8
}

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}
