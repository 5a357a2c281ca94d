// Package journal keeps what happens to locks and cron jobs in a Redis stream, so that people can look it up later and
// from anywhere: "joblock events", "joblock history" and the lock server show the stream.
//
//	events, err := journal.New(rdb, nil)
//	...
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: event.Observers(events.Observe, slogobserver.New(logger, nil)),
//	})
//	...
//	cron, err := scheduler.New(locks, &scheduler.Config{Observe: events.ObserveCron("cron")})
//	...
//	err = locks.Close(ctx)
//	err = events.Close(ctx) // the last one: it writes what is left
//
// # What is kept
//
// By default a Journal keeps what is not routine. Such events are few, however many locks there are:
//
//	event                                        kept by default
//	acquired                                     after a wait of Config.Contended or longer; or if the lease of the
//	                                             previous holder has run out
//	resumed                                      if the reservation had run out
//	released                                     if the store has not answered
//	gave up, lost, renewed late, renewal         always
//	unanswered, freed, forced, cleanup failed,
//	fell back, overran
//	contended, reclaimed, parked, released by    never
//	token, rate limited, held back
//	cron: started, done, enqueued, paused        never
//	cron: all others                             always
//
// With Config.All the Journal keeps all events: for small systems, or to look for something. The stream has about
// Config.Length entries, and Redis forgets the oldest ones.
//
// No entry has an owner token. An entry has the key, the labels of holders, the reasons of releases and the texts of
// errors.
//
// # What it costs
//
// Observe never waits: it puts the event into a buffer of Config.Buffer events, which a goroutine writes in batches, one
// round trip for up to 200 events. If Redis does not answer, the goroutine tries again, after a second and then more
// rarely. When the buffer is full, the Journal drops events. It counts them (Dropped) and writes an entry of kind
// "dropped" with the number, in the place of the events, as soon as there is room.
//
// An entry takes some 300 bytes in Redis, so the default stream some 3 MB. After a write without an answer the same
// entries may come twice; readers of this toolkit show such an entry once.
//
// # In Redis
//
// The stream is at the prefix of the locks plus "%events" ("joblock:%events"); no lock has that name. An ACL user needs
// XADD, and a reader XRANGE and XREVRANGE. A server that is configured to evict keys may evict the stream.
package journal
