package event

import "slices"

// Observer receives every Event of a Locker.
//
// The Locker calls the Observer in the goroutine in which the event happens, while no mutex of package joblock is
// locked. An Observer must be safe for concurrent use. It must not block: while it runs, a call of the Locker or the
// renewal of all leases waits. The Locker recovers each panic of its Observer and logs the first one, so that a caller
// does not lose a lock that the store has just granted.
type Observer func(Event)

// Observers returns an Observer that calls all given Observers in order, except nil Observers. If all are nil or
// there are none, Observers returns nil.
func Observers(all ...Observer) Observer {
	some := slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return o == nil })
	if len(some) == 0 {
		return nil
	}
	return func(e Event) {
		for _, o := range some {
			o(e)
		}
	}
}
