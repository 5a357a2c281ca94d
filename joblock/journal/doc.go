// Package journal writes what happens to locks and cron jobs to a Redis stream, so that people can look it up later and
// from any machine. The commands joblock events and joblock history, and the lock server, show the stream.
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
// By default a Journal keeps only the events that are not routine. There are few of them, however many locks there are:
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
// With Config.All the Journal keeps all events. Use it for small systems, or while you look for the cause of a problem.
// The stream has about Config.Length entries, and Redis forgets the oldest ones.
//
// No entry has an owner token. An entry has the key, the labels of holders, the reasons of releases and the texts of
// errors.
//
// # What it costs
//
// Observe never waits: it puts the event into a buffer of Config.Buffer events, which a goroutine writes in batches,
// one round trip for up to 200 events. If Redis does not answer, the goroutine tries again, after a second and then
// more rarely. When the buffer is full, the Journal drops events. It counts them (see Dropped), and as soon as there is
// room it writes one entry of kind "dropped", with their number, in their place.
//
// An entry takes about 300 bytes in Redis, so a stream of the default length takes about 3 MB. After a write without an
// answer, an entry may be in the stream twice; the toolkit's readers show it once.
//
// # In Redis
//
// The Redis key of the stream is the prefix of the locks followed by "%events": "joblock:%events" by default. No lock
// has that key. With ACLs, the user that writes the stream needs XADD, and the user that reads it needs XRANGE and
// XREVRANGE. A server that is configured to evict keys may evict the stream.
package journal
