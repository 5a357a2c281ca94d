// Package fallback runs work under a lock of this process alone while the store does not answer. A program that does
// not import this package never falls back: a call without an answer returns joblock.ErrUnavailable.
//
//	locks, err := joblock.New(store, &joblock.Config{Observer: observer})
//	...
//	guarded, err := fallback.New(locks, &fallback.Config{Away: fallback.Warn})
//	...
//	err = guarded.Do(ctx, "import:42", func(ctx context.Context) error {
//		lock, _ := joblock.FromContext(ctx)
//		if fallback.Local(lock) {
//			// nothing keeps other processes out
//		}
//		return runImport(ctx)
//	})
//
// # What is promised
//
// Two functions that [Locker.Do] runs with the same key never run at the same time, if both calls go through the same
// Locker. The promise holds while the store answers, while the store is unreachable, and while the store comes back:
// each function has a local lock, whatever the store answers. So make one Locker of this package per process, and take
// all locks of a key either through that Locker or through the joblock.Locker.
//
// The promise ends for a function whose local lock is lost: by Close, by the options NoRenew and MaxRenew, or by a
// suspension of the process for longer than the lease. The context of a function under a local lock then ends with cause
// ErrLost.
//
// While the store answers, every promise of package joblock holds as well, because Do then holds the store's lock in
// addition to the local lock.
//
// Each run without the store's lock is reported by an event of kind event.FellBack, and the function can call Local to
// detect it. New refuses a Config under which neither an event nor a log line would report such a run.
//
// # What is not promised
//
// There is no exclusion between processes while a function runs under a local lock alone. Another process that reaches
// the store can get the key, and a process that falls back at the same time can run the same work. A local lock also
// says nothing about a lock that another process took before the outage. So fall back only for work that may run twice.
//
// # The states of a call
//
//	state                                event                              next state
//	asks the store, or waits there       gets the store's lock              waits with the store's lock
//	                                     no answer, Away is Refuse          over: ErrUnavailable
//	                                     no answer, any other Away          waits alone
//	                                     any other error, or ctx ends       over: the error of Acquire
//	waits with the store's lock          gets the local lock                runs under the store's lock
//	                                     MaxWait has passed, or ctx ends    over: ErrHeld, ErrTimeout or ctx's cause
//	                                     the store's lock is lost           over: ErrLost
//	waits alone                          gets the local lock                runs under the local lock
//	                                     MaxWait has passed, or ctx ends    over: ErrUnavailable and the reason
//	runs under the store's lock          fn returns or panics               over: both locks are released
//	                                     the store's lock is lost           the same; fn's context ends with ErrLost
//	runs under the local lock            fn returns or panics               over: the local lock is released
//	                                     the store comes back               the same; see below
//	any                                  the process dies                   the store's lock ends with its lease
//
// A function that runs never changes its lock. If the store stops answering, the store's lock is lost, at the latest at
// its trust deadline, and does not become a local lock. The local lock stays until the function has returned, so a call
// that falls back waits for that function. If the store comes back, a local lock does not become a lock of the store,
// and keeps no other process out. The next call of the same Locker gets the store's lock, and keeps that lock while
// waiting for the function under the local lock. From then on other processes are kept out.
//
// Each call asks the store first and waits for the answer for at most joblock.Config.CallTimeout. MaxWait shortens
// that time if it is not zero. A call does not remember that an earlier call had no answer. Otherwise work would run
// under a local lock although the store could have answered.
//
// # A local lock
//
// A function that runs under a local lock alone finds the local lock with joblock.FromContext. The local lock is a
// *joblock.Lock, with these differences:
//
//	Local          true
//	Fence          larger than those of earlier local locks of the key, and smaller than any fence of redisstore. So a
//	               resource that has seen a fence of the store refuses the local lock. The fence protects nothing else.
//	Park           returns ErrInvalid, and the function continues under the lock. The calls of package handoff also
//	               return ErrInvalid, and enqueue nothing.
//	Token          cannot be resumed: the store knows no such token, so joblock.Locker.Resume returns ErrNotFound, or ErrNotOwner
//	               if another owner has the key. A Resume never falls back.
//	memo.Of        no memo; memo.Write returns ErrInvalid
//	Status, List   do not show the lock
//	Done, Context  as for every lock: after a suspension for longer than the lease, the lock is lost
//
// # Overrun
//
// Config.Overrun is how long a function should run at most. A function that still runs then is reported once, by an
// event of kind event.Overran and by a warning in the log. The function continues. Overrun applies under both kinds of
// lock. A lease does not bound the function's time, because the Locker renews the lease.
package fallback
