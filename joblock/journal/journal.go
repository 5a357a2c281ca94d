package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/scheduler"
)

// Config configures New. The zero value of each field means its default.
type Config struct {
	// Prefix is the prefix of the locks: redisstore.Config.Prefix. Default "joblock:".
	Prefix string

	// All keeps every event. Default: only the events that are not routine; see the package comment.
	All bool

	// Contended is the shortest wait for a lock after which its Acquired event is kept, from 1 ms to a day. Default
	// 1 s.
	Contended time.Duration

	// Length is about how many entries the stream keeps, from 100 to 1,000,000. All Journals of a prefix should have the
	// same Length. Default 10,000.
	Length int

	// Buffer is the largest number of events that wait to be written, from 16 to 1,000,000. Default 4,096.
	Buffer int

	// Source names the process that has seen an event, in at most 256 bytes. Default: host name and process ID.
	Source string

	// Timeout bounds each write, from 10 ms to a minute. Default 3 s.
	Timeout time.Duration

	// Logger gets a warning when writes begin to fail, and when events were dropped, at most once a minute. Default
	// slog.Default().
	Logger *slog.Logger
}

const (
	// gather is how long an event waits for further events, so that one round trip writes them together.
	gather = 100 * time.Millisecond

	// mostAtOnce is how many entries one round trip writes.
	mostAtOnce = 200

	// mostText bounds the text of an error. All other texts of an event are bounded already.
	mostText = 400

	firstPause, longestPause = time.Second, 15 * time.Second

	// complainEvery is the least time between two warnings.
	complainEvery = time.Minute
)

// Journal writes events to a stream. Make a Journal with New, and Close it after the Locker and the Scheduler. A Journal
// is safe for concurrent use.
type Journal struct {
	cfg   Config
	write func(ctx context.Context, texts []string) (written int, err error)
	run   string // begins each nonce

	ctx    context.Context // of the writes; ends when Close gives up
	cancel context.CancelFunc
	wake   chan struct{} // has a value if there is something to write
	done   chan struct{} // closed when work has returned

	mu      sync.Mutex
	queue   []noted
	closing chan struct{}
	closed  bool
	number  int64 // of events since New
	dropped int64 // since New
	untold  int64 // the part of dropped that no entry reports yet
	warned  time.Time
}

// noted is an event in the buffer.
type noted struct {
	eventlog.Entry
	at time.Time
}

// New returns a Journal that writes with rdb. New itself sends nothing. A nil cfg means the defaults. The error matches
// joblock.ErrInvalid, and names the field that is out of bounds.
func New(rdb redis.UniversalClient, cfg *Config) (*Journal, error) {
	if rdb == nil {
		return nil, invalid("the client is nil")
	}
	full, err := cfg.full()
	if err != nil {
		return nil, err
	}
	return begin(full, func(ctx context.Context, texts []string) (int, error) {
		return add(ctx, rdb, full, texts)
	}), nil
}

func begin(cfg Config, write func(context.Context, []string) (int, error)) *Journal {
	j := &Journal{
		cfg: cfg, write: write, run: uuid.NewString()[:8] + "-",
		wake: make(chan struct{}, 1), done: make(chan struct{}), closing: make(chan struct{}),
	}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	go j.work()
	return j
}

func (cfg *Config) full() (Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.Prefix = cmp.Or(c.Prefix, keyspace.DefaultPrefix)
	c.Contended, c.Timeout = cmp.Or(c.Contended, time.Second), cmp.Or(c.Timeout, 3*time.Second)
	c.Length, c.Buffer = cmp.Or(c.Length, 10_000), cmp.Or(c.Buffer, 4096)
	if c.Source == "" {
		host, _ := os.Hostname() // on an error the host is ""
		c.Source = host + ":" + strconv.Itoa(os.Getpid())
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	for _, d := range []struct {
		name           string
		d, least, most time.Duration
	}{
		{"Contended", c.Contended, time.Millisecond, 24 * time.Hour},
		{"Timeout", c.Timeout, 10 * time.Millisecond, time.Minute},
	} {
		if d.d < d.least || d.d > d.most {
			return c, invalid("Config.%s is %s, must be from %s to %s", d.name, d.d, d.least, d.most)
		}
	}
	for _, n := range []struct {
		name           string
		n, least, most int
	}{{"Length", c.Length, 100, 1_000_000}, {"Buffer", c.Buffer, 16, 1_000_000}} {
		if n.n < n.least || n.n > n.most {
			return c, invalid("Config.%s is %d, must be from %d to %d", n.name, n.n, n.least, n.most)
		}
	}
	if len(c.Source) > driver.MaxLabelBytes {
		return c, invalid("Config.Source has %d bytes, at most %d are allowed", len(c.Source), driver.MaxLabelBytes)
	}
	return c, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("journal: %s: %w", fmt.Sprintf(format, args...), joblock.ErrInvalid)
}

// add appends entries to the stream, in one round trip. written is how many entries, counted from the first, are
// certainly in the stream.
func add(ctx context.Context, rdb redis.UniversalClient, cfg Config, texts []string) (written int, err error) {
	pipe := rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(texts))
	for i, text := range texts {
		cmds[i] = pipe.XAdd(ctx, &redis.XAddArgs{
			Stream: cfg.Prefix + eventlog.Name, MaxLen: int64(cfg.Length), Approx: true, Values: []any{eventlog.Field, text},
		})
	}
	if _, err = pipe.Exec(ctx); err == nil {
		return len(texts), nil
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil || cmd.Val() == "" {
			break
		}
		written++
	}
	return written, err
}

// Observe is the event.Observer of the Journal. It never waits.
func (j *Journal) Observe(e event.Event) {
	if !j.cfg.All && routine(e, j.cfg.Contended) {
		return
	}
	n := eventlog.Entry{
		Kind: e.Kind.String(), Key: e.Key, Owner: e.Owner, Fence: e.Fence, Holder: e.Holder, Job: e.Job, Reason: e.Reason,
		Waited: e.Waited.Milliseconds(), Held: e.Held.Milliseconds(), Late: e.Late.Milliseconds(), Remaining: e.Remaining.Milliseconds(),
		Prior: e.Prior.String(), Recovered: e.Recovered, Locks: e.Locks,
	}
	n.Error, n.Code = textOf(e.Err)
	j.note(n)
}

// routine reports whether e is left out by default.
func routine(e event.Event, contended time.Duration) bool {
	switch e.Kind {
	case event.Acquired:
		return e.Waited < contended && e.Prior != driver.EndedLapsed
	case event.Resumed:
		return !e.Recovered
	case event.Released:
		return e.Err == nil
	case event.Contended, event.Reclaimed, event.Parked, event.ReleasedByToken, event.RateLimited, event.HeldBack:
		return true
	}
	return false
}

// ObserveCron returns a function for scheduler.Config.Observe. The function never waits. scope is the Config.Scope of
// that Scheduler.
func (j *Journal) ObserveCron(scope string) func(scheduler.Event) {
	return func(e scheduler.Event) {
		switch e.Kind {
		case scheduler.Started, scheduler.Done, scheduler.Enqueued, scheduler.Paused:
			if !j.cfg.All {
				return
			}
		}
		n := eventlog.Entry{
			Kind: eventlog.CronKind(string(e.Kind)), Key: cronKey(scope, e.Tick.Name), Scope: scope, Name: e.Tick.Name,
			Tick: e.Tick.At.UTC(), Node: e.Node, Late: e.Late.Milliseconds(), Took: e.Took.Milliseconds(), Attempts: e.Attempts, Count: e.Count,
		}
		n.Error, n.Code = textOf(e.Err)
		j.note(n)
	}
}

func textOf(err error) (text, code string) {
	if err == nil {
		return "", ""
	}
	if text = err.Error(); len(text) > mostText {
		text = strings.ToValidUTF8(text[:mostText], "") + "…"
	}
	return text, joblock.CodeOf(err)
}

// note puts an entry into the buffer.
func (j *Journal) note(e eventlog.Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.number++
	if j.closed || len(j.queue) >= j.cfg.Buffer {
		j.dropped++
		j.untold++
		return
	}
	j.tellDropped()
	j.push(e)
}

// push appends an entry. The caller holds j.mu.
func (j *Journal) push(e eventlog.Entry) {
	e.Source, e.Nonce = j.cfg.Source, j.run+strconv.FormatInt(j.number, 36)
	j.queue = append(j.queue, noted{e, time.Now()})
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// tellDropped adds an entry with the number of dropped events to the buffer, in their place. The buffer may then have
// one entry more than Config.Buffer. The caller holds j.mu.
func (j *Journal) tellDropped() {
	if j.untold == 0 {
		return
	}
	j.number++
	j.push(eventlog.Entry{Kind: eventlog.KindDropped, Dropped: j.untold})
	j.untold = 0
}

// Dropped returns how many events since New were not written, because the buffer was full or the Journal closed, or
// because Close could not write them in time.
func (j *Journal) Dropped() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dropped
}

// Close writes what is in the buffer, and returns when that is done. If ctx ends first, the rest is dropped, and the
// error matches joblock.ErrUnavailable and says how many events were dropped. Events that come after Close are dropped.
// A second Close waits as the first one does.
func (j *Journal) Close(ctx context.Context) error {
	j.mu.Lock()
	if !j.closed {
		j.closed = true
		close(j.closing)
	}
	j.mu.Unlock()
	select {
	case <-j.done:
	case <-ctx.Done():
		j.cancel()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	left := 0
	for _, n := range j.queue {
		if n.Kind != eventlog.KindDropped {
			left++
		}
	}
	j.dropped += int64(left)
	j.queue = nil
	if left == 0 {
		return nil
	}
	return fmt.Errorf("journal: close: %d events were not written: %w: %w", left, context.Cause(ctx), joblock.ErrUnavailable)
}

// work writes what comes into the buffer, until Close.
func (j *Journal) work() {
	defer close(j.done)
	defer j.cancel()
	for {
		select {
		case <-j.wake:
		case <-j.closing:
		}
		j.pause(gather)
		if !j.writeAll() {
			return
		}
	}
}

// pause returns after d, or when Close begins.
func (j *Journal) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-j.closing:
	}
}

// writeAll writes until the buffer is empty. more is false if the Journal is closed and writeAll need not be called
// again.
func (j *Journal) writeAll() (more bool) {
	for wait := firstPause; ; {
		texts, closed := j.next()
		if len(texts) == 0 {
			return !closed
		}
		ctx, cancel := context.WithTimeout(j.ctx, j.cfg.Timeout)
		written, err := j.write(ctx, texts)
		cancel()
		j.forget(written, err)
		switch {
		case err == nil:
			wait = firstPause
		case j.ctx.Err() != nil:
			return false
		case closed: // Close waits, and ends j.ctx when it gives up
			t := time.NewTimer(gather)
			select {
			case <-t.C:
			case <-j.ctx.Done():
			}
			t.Stop()
		default:
			j.pause(wait)
			wait = min(2*wait, longestPause)
		}
	}
}

// next returns the texts of the first entries in the buffer.
func (j *Journal) next() (texts []string, closed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		j.tellDropped()
	}
	for _, n := range j.queue[:min(len(j.queue), mostAtOnce)] {
		n.Ago = time.Since(n.at).Milliseconds()
		text, err := n.Encode()
		if err != nil { // an Entry has nothing that cannot be encoded
			text = fmt.Sprintf(`{"kind":%q,"dropped":1,"error":%q}`, eventlog.KindDropped, err)
		}
		texts = append(texts, text)
	}
	return texts, j.closed
}

// forget removes what was written from the buffer, and logs err as a warning, at most once in complainEvery.
func (j *Journal) forget(written int, err error) {
	j.mu.Lock()
	written = min(written, len(j.queue)) // Close may have given up meanwhile
	clear(j.queue[:written])
	if j.queue = j.queue[written:]; len(j.queue) == 0 {
		j.queue = nil // frees the memory that a burst of events has used
	}
	waiting, dropped := len(j.queue), j.dropped
	complain := err != nil && !errors.Is(err, context.Canceled) && time.Since(j.warned) >= complainEvery
	if complain {
		j.warned = time.Now()
	}
	j.mu.Unlock()
	if complain {
		j.cfg.Logger.Warn("journal: events could not be written; trying again", "err", err, "waiting", waiting, "dropped", dropped)
	}
}
