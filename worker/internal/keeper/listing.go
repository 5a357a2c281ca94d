package keeper

import (
	"hash/maphash"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
)

const (
	// A page has at most pageTasks tasks, and about pageBytes. Pages are small because asynq's Redis does nothing else
	// while it assembles a page.
	pageTasks = 1000
	pageBytes = 1 << 20

	// Estimates of the server's time for a task in a list, and for a task that is looked up alone. Only their ratio
	// matters. The bytes of the task come on top in both cases.
	listCost   = 3 * time.Microsecond
	lookupCost = 24 * time.Microsecond
	kibCost    = 2 * time.Microsecond

	// fewestLookups is the least number of wanted tasks for which a Keeper lists a queue. A few locks that were parked
	// after the last listing are looked up one by one.
	fewestLookups = 100

	// guess is the factor by which a Keeper expects to want more tasks than so far, if it is behind, or has just begun
	// to work and knows no earlier period.
	guess = 4

	// mostListed is the largest queue that is listed. A listed task takes some 40 bytes of memory, and twice that while
	// the next listing is read.
	mostListed = 4_000_000

	// mostQueues is how many queues a Keeper remembers.
	mostQueues = 10_000
)

// queue is what a Keeper knows of the demand for the tasks of one asynq queue.
type queue struct {
	name   string
	period time.Time // when the present period of Config.Interval began
	wanted int       // tasks that were wanted in the present period
	before int       // tasks that were wanted in the previous period
	alone  int       // of wanted: since the queue has had no listing
	size   *size     // the last one, or nil

	last   *listing      // of the last complete round, or nil if that one is too old
	reader *reader       // of the present round, or nil
	done   time.Time     // when the last complete round ended
	round  time.Duration // a task is read again after this time, as a rule
	next   time.Time     // without a reader: when the next round begins
	from   time.Time     // no round begins earlier: a list had no answer
}

// size is the size of a queue at the time measured.
type size struct {
	infos    []*asynq.QueueInfo // by the index of the inspector; nil for a database without the queue
	tasks    int64              // in the lists that a Keeper reads
	bytes    int64              // of one task, on average
	measured time.Time
}

// pays reports whether listing the queue costs asynq's Redis at most as much as the given number of lookups.
func (s *size) pays(lookups int) bool {
	each := time.Duration(s.bytes) * kibCost / 1024
	return s.tasks > 0 && s.tasks <= mostListed &&
		time.Duration(s.tasks)*(listCost+each) <= time.Duration(lookups)*(lookupCost+each)
}

// listing has the tasks that a Keeper saw when it read all lists of a queue once. A task that was seen was alive when
// its page was read. That a task was not seen proves nothing: it may have moved between lists meanwhile.
type listing struct {
	seed  maphash.Seed        // a new seed for each listing, so that two tasks do not collide forever
	tasks map[uint64]sighting // by the hash of the ID
	began time.Time
}

// sighting is a task in a list. The times are in ms since listing.began.
type sighting struct {
	seen int64 // when the page was asked for
	due  int64 // twice the time when the task is due, plus 1 if finding.waits
}

func newListing(tasks int64) *listing {
	return &listing{seed: maphash.MakeSeed(), tasks: make(map[uint64]sighting, tasks), began: time.Now()}
}

func (l *listing) add(t *asynq.TaskInfo, seen time.Time) {
	s := sighting{seen: seen.Sub(l.began).Milliseconds(), due: t.NextProcessAt.Sub(l.began).Milliseconds() << 1}
	if jobline.Waits(envelope.MayWait(t.Headers), t) {
		s.due |= 1
	}
	l.tasks[maphash.String(l.seed, t.ID)] = s
}

// at returns the sighting of the task with this ID. A nil listing has no task.
func (l *listing) at(id string) (s sighting, ok bool) {
	if l == nil {
		return s, false
	}
	s, ok = l.tasks[maphash.String(l.seed, id)]
	return s, ok
}

// time converts a field of a sighting to a time.
func (l *listing) time(ms int64) time.Time { return l.began.Add(time.Duration(ms) * time.Millisecond) }

// find returns when the task with this ID was seen, and sets f if the listing has the task.
func (l *listing) find(id string, f *finding) (seen time.Time, ok bool) {
	s, ok := l.at(id)
	if !ok {
		return time.Time{}, false
	}
	*f = finding{kind: alive, listed: true, delay: max(0, time.Until(l.time(s.due>>1))), waits: s.due&1 == 1}
	return l.time(s.seen), true
}
