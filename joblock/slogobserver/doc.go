// Package slogobserver writes the events of a joblock.Locker to a log.
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: slogobserver.New(logger, nil),
//		Logger:   slog.New(slog.DiscardHandler), // or losses are logged twice
//	})
//
// The message is "joblock: " and the name of the event's kind, such as "joblock:
// lost". An event has those of these attributes that apply to it:
//
//	key        the lock's key
//	owner      digest of the owner token
//	fence      fence of the holding
//	holder     label of the holder; of a refusal, that of who has the key
//	job        "queue/taskID" that the lock is bound to
//	reason     given with a release
//	waited     how long an acquire had waited
//	held       how long the lock was held
//	late       how much too late a renewal was answered
//	remaining  of a refusal: what is left of the lease or reservation
//	prior      how the previous ownership ended: released, forced, lapsed, done
//	recovered  true if even the reservation had run out
//	locks      how many renewals had no answer
//	err        why
//
// Level says which level an event has. A Locker also reports the worst, such as a lost
// lock, to its joblock.Config.Logger, with or without an Observer.
package slogobserver
