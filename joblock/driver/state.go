package driver

// State is what a key is at an instant of the store's clock.
type State uint8

// The states of a key.
const (
	StateFree     State = iota // anybody's
	StateHeld                  // a lease stands
	StateParked                // reserved for its owner; nobody runs, and nobody is meant to
	StateOrphaned              // reserved for its owner, whose lease has run out
	StateForeign               // not a lock: a value of another kind stands at the key
)

var stateNames = [...]string{"free", "held", "parked", "orphaned", "foreign"}

// String returns the state's name in lower case.
func (s State) String() string { return nameOf(stateNames[:], int(s)) }

// MarshalText returns the same as String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Ended tells how the last ownership of a key ended.
type Ended uint8

// The ways an ownership ends.
const (
	EndedNone     Ended = iota // it has not, or there was none
	EndedReleased              // by its owner
	EndedForced                // by somebody other than its owner
	EndedLapsed                // its time ran out
	EndedDone                  // by its owner: the job that it was bound to is done
)

var endedNames = [...]string{"", "released", "forced", "lapsed", "done"}

// String returns the name in lower case, "" for EndedNone.
func (e Ended) String() string { return nameOf(endedNames[:], int(e)) }

// MarshalText returns the same as String.
func (e Ended) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}
