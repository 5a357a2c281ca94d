package event

// Observer is told of every Event of a Locker.
//
// It is called at once, in the goroutine in which the event happens, by several
// goroutines at a time, and while no lock of package joblock is held. It must not
// block: the call that it is about waits for it, or the goroutine that keeps all
// leases does. A panic is recovered, because the caller would lose the lock that it has
// just been given; the first one of a Locker is logged.
type Observer func(Event)

// Observers returns an Observer that tells all of those given, in order. Nil ones are
// left out. Without any it returns nil.
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
