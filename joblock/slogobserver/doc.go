// Package slogobserver writes the events of a joblock.Locker to a log.
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: slogobserver.New(logger, nil),
//		Logger:   slog.New(slog.DiscardHandler), // or losses are logged twice
//	})
//
// The message is "joblock: " and the name of the event's kind, such as "joblock:
// lost". These are the attributes; an event has only those that it sets:
//
//	key        the lock's key
//	owner      digest of the owner token
//	fence      fence of the holding
//	holder     label of the holder; for contended and gave up, of who has the key
//	job        "queue/taskID" that the lock is bound to
//	reason     given with a release
//	waited     how long an acquire had waited
//	held       how long the lock was held
//	late       how long after it was due a renewal was answered
//	remaining  for contended: what is left of the lease or reservation in the way
//	prior      how the previous ownership ended: released, forced, lapsed, done
//	recovered  true if the lock was resumed after even its reservation had run out
//	locks      how many renewals had no answer
//	err        why
//
// Level says which level an event has. With or without an Observer, a Locker logs the worst
// events, such as a lost lock, to its joblock.Config.Logger.
package slogobserver
