// Package slogobserver writes the events of a joblock.Locker to a log.
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: slogobserver.New(logger, nil),
//		Logger:   slog.New(slog.DiscardHandler), // without this, the log has each loss twice
//	})
//
// The message is "joblock: " and the name of the event's kind, such as "joblock: lost". These are the attributes; an
// attribute that the event does not set is left out:
//
//	key        the lock's key
//	owner      digest of the owner token
//	fence      fence of the holding
//	holder     label of the holder; with "contended" and "gave up", of the holder in the way
//	job        "queue/taskID" that the lock is bound to
//	reason     given with a release
//	waited     how long an acquire had waited
//	held       how long this process had the lock
//	late       how long after its due time a renewal was answered
//	remaining  with "contended": what is left of the lease or reservation of the holder in the way; with "rate limited":
//	           the time until the start; with "held back": the time until the pause ends
//	prior      how the previous ownership ended: released, forced, lapsed, done
//	recovered  true if the lock was resumed although its reservation had run out
//	locks      number of renewals that got no answer
//	err        why the event happened
//
// Level returns the default level of an event. Even without an Observer, a Locker logs the worst events,
// such as a lost lock, to joblock.Config.Logger.
package slogobserver
