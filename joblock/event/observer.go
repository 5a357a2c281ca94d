package event

// Observer is told of every Event of a Locker.
//
// It is called in the goroutine in which the event happens, without a mutex of package
// joblock held. Several goroutines may call it at a time. It must not block: either the
// call in question or the goroutine that renews all leases waits for it. A panic is
// recovered, because the caller would lose the lock that it has just been given. The
// first panic of a Locker's Observer is logged.
type Observer func(Event)

// Observers returns an Observer that calls all of those given, in order, and skips nil
// ones. It returns nil if none is left.
func Observers(all ...Observer) Observer {
	var some []Observer
	for _, o := range all {
		if o != nil {
			some = append(some, o)
		}
	}
	switch len(some) {
	case 0:
		return nil
	case 1:
		return some[0]
	}
	return func(e Event) {
		for _, o := range some {
			o(e)
		}
	}
}
