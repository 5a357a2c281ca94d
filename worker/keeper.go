package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// keeperBatch is how many locks are read and acted on together.
	keeperBatch = 500

	// wakeups is how often within Config.Every the keeper asks what is due, or more
	// often: at least once in longestNap, as a lock with a short reservation is due
	// after half of that. An idle question is one command, and the work comes in small
	// helpings.
	wakeups    = 10
	longestNap = time.Second
)

// keeper is the part of a Worker that Run works with.
type keeper struct {
	w          *Worker
	inspectors []*asynq.Inspector // the Worker's own first
	running    atomic.Bool

	mu     sync.Mutex      // guards what follows
	queues map[string]bool // that an inspector was seen to know
	stats  KeeperStats
}

func newKeeper(w *Worker) *keeper {
	return &keeper{
		w: w, inspectors: append([]*asynq.Inspector{w.inspector}, w.cfg.Inspectors...),
		queues: make(map[string]bool), stats: KeeperStats{Freed: make(map[string]int64)},
	}
}

// Run is the keeper: it keeps the locks of tasks reserved for as long as the tasks
// exist, and frees those of tasks that have ended where no code of this package
// ran. Start it in every process that has a Worker:
//
//	go w.Run(ctx)
//
// One of them works at a time. When it stops, the next one takes over at once; when
// it dies, within one TTL of its Locker. The package comment says what is freed and
// what is left alone.
//
// Run returns nil when ctx ends or the Worker is closed, promptly, whatever it was
// doing. Errors: joblock.ErrClosed when the Worker or its Locker was closed before;
// joblock.ErrInvalid for a nil Worker, while an earlier Run of this Worker has not
// returned, and where the value at the keeper's key, "%keeper", is no lock. An outage
// of either Redis is waited out.
func (w *Worker) Run(ctx context.Context) error {
	if w == nil {
		return invalid("the Worker is nil")
	}
	if !w.keeper.running.CompareAndSwap(false, true) {
		return invalid("Run was called while an earlier one has not returned")
	}
	defer w.keeper.running.Store(false)
	if !w.open.begin() {
		return workerClosed()
	}
	defer w.open.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.open.closing, cancel)()

	// Whatever the Locker has for a bound on holding a lock, this one is not
	// forgotten.
	err := w.locks.Singleton(ctx, keyspace.Keeper, w.keeper.lead,
		keyspace.Own[joblock.Option](), joblock.MaxHold(driver.MaxPeriod))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lead works until ctx ends, with the caller's or with the lock on the keeper's key.
func (k *keeper) lead(ctx context.Context) error {
	k.leading(true)
	defer k.leading(false)
	tick := k.nap()
	for pause := tick; ; {
		err := k.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			pause = tick
		default:
			// What was due has been put off and comes again. In an outage that lasts,
			// there is no point in asking as often as otherwise.
			pause = min(2*pause, k.w.cfg.Every)
			k.w.cfg.Logger.Warn("worker: the keeper got no answer and left the locks concerned alone", "err", err, "pause", pause)
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// nap is the pause between two questions for what is due.
func (k *keeper) nap() time.Duration { return min(k.w.cfg.Every/wakeups, longestNap) }

// pass looks at all that is due. After an error what it has not come to is due
// again when it would have been otherwise.
func (k *keeper) pass(ctx context.Context) error {
	later := k.w.cfg.Every - k.nap() // it takes up to a nap to find that something is due
	for {
		due, err := k.w.locks.DueJobs(ctx, keeperBatch, later)
		if err != nil {
			return err
		}
		if err := k.look(ctx, due); err != nil {
			return err
		}
		if len(due) < keeperBatch {
			return nil
		}
	}
}
