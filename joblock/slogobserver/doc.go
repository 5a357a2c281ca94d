// Package slogobserver writes the events of a joblock.Locker to a log.
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: slogobserver.New(logger, nil),
//		Logger:   slog.New(slog.DiscardHandler), // or losses are logged twice
//	})
//
// The message is "joblock: " and the name of the event's kind, such as "joblock:
// lost". The attributes are, each only where the event has it:
//
//	key        the lock's key
//	owner      digest of the owner token
//	fence      fence of the holding
//	holder     label of the holder, or of whoever is in the way
//	job        "queue/taskID" that the lock is bound to
//	reason     given with a release
//	waited     how long an acquire had waited
//	held       how long the lock was held
//	late       how long after it was due a renewal was answered
//	remaining  what is left of the lease or reservation in the way
//	prior      how the previous ownership ended: released, forced, lapsed, done
//	recovered  true when even the reservation had run out
//	locks      how many renewals had no answer
//	err        why
//
// Level says which level an event has. A Locker reports what is worst, lost locks
// above all, to its joblock.Config.Logger in any case.
package slogobserver
