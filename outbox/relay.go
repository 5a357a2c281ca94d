package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// longestLease is the longest lease of the relay's lock: how long the other processes wait when the relay's process
	// has died.
	longestLease = 10 * time.Second

	// cleanEvery is how often sent rows are deleted, and cleanRows how many at a time.
	cleanEvery = 10 * time.Second
	cleanRows  = 500

	// A relay pauses between rounds while the database or Redis is unreachable.
	minOutage = 100 * time.Millisecond
	maxOutage = 5 * time.Second

	mostError = 1000 // bytes of an error in the table
)

// Run works as the relay until ctx ends, and then returns nil: it enqueues the tasks of committed rows. Of the processes
// that call Run for one Config.Name, one works, and the others stand by. When it stops, the next one starts at once; if
// it dies, ten seconds later, or after the TTL of the locks if that is shorter. toolkit.Process.Go runs it:
//
//	p.Go(box.Run)
//
// Run logs outages of the database and of Redis, and goes on when they are over. It returns joblock.ErrClosed if the
// Locker is closed, and joblock.ErrInvalid if the Outbox was not made by New.
func (b *Outbox) Run(ctx context.Context) error {
	if b == nil || b.db == nil {
		return invalid("run", "the Outbox was not made by New")
	}
	locks := (*core.Locker)(b.jobs.Locks())
	o := core.Options{OwnKey: true, MaxRenew: driver.MaxPeriod, TTL: min(longestLease, locks.Settings().TTL)}
	err := locks.Singleton(ctx, keyspace.Outbox(b.cfg.Name), b.relay, o)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// relay enqueues rows until ctx ends.
func (b *Outbox) relay(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	if b.cfg.Listen != nil {
		others.Go(func() { b.listen(stopping) })
	}
	if lock, ok := core.FromContext(ctx); ok {
		others.Go(func() { b.tell(stopping, lock) })
	}
	others.Go(func() { b.clean(stopping) })
	outage := minOutage
	for ctx.Err() == nil {
		full, err := b.round(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			b.cfg.Logger.WarnContext(ctx, "outbox: a round of the relay failed; trying again after a pause", "outbox", b.cfg.Name, "pause", outage, "err", err)
			b.note(func(s *relayed) { s.LastError, s.FailedAt = shortened(err), time.Now() })
			_ = sleep.For(ctx, outage)
			outage = min(2*outage, maxOutage)
		case err == nil && !full:
			outage = minOutage
			b.idle(ctx)
		default:
			outage = minOutage
		}
	}
	return nil
}

// idle waits for a notification, for Config.Poll at most.
func (b *Outbox) idle(ctx context.Context) {
	timer := time.NewTimer(b.cfg.Poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-b.wake:
	}
}

// listen listens for notifications until ctx ends.
func (b *Outbox) listen(ctx context.Context) {
	wake := func() {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	for pause := minOutage; ctx.Err() == nil; pause = min(2*pause, maxOutage) {
		began := time.Now()
		err := b.cfg.Listen(ctx, channel, wake)
		if ctx.Err() != nil {
			return
		}
		b.cfg.Logger.WarnContext(ctx, "outbox: the relay gets no notifications, and polls until it can listen again", "outbox", b.cfg.Name, "err", err)
		if time.Since(began) > maxOutage {
			pause = minOutage
		}
		_ = sleep.For(ctx, pause)
	}
}

// row is a row that is to be enqueued.
type row struct {
	id        int64
	uid, key  string
	taskType  string
	payload   []byte
	job       string
	attempts  int
	kept      enqueue.Deferred
	err       error // why the row is not sent
	verdict   verdict
	nextTryMS int64 // from now; for rows that were tried and not sent
}

// round enqueues a batch of rows. full is true if there may be more to do. The error is the database's, or says that
// Redis is unreachable.
func (b *Outbox) round(ctx context.Context) (full bool, err error) {
	rows, err := b.due(ctx)
	if err != nil || len(rows) == 0 {
		return false, err
	}
	away := b.send(ctx, rows)
	marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := b.mark(marking, rows); err != nil {
		return false, err
	}
	return len(rows) == b.cfg.Batch, away
}

// dueRows reads the first rows that are due, except the rows of a key one of whose rows waits for its next try. The
// condition due_ms > 0 lets the database use the index of waiting rows, which has the same condition.
const dueRows = `SELECT id, uid, order_key, task_type, payload, job, attempts FROM joblock_outbox {pending}
	WHERE state = 0 AND due_ms <= {now} AND order_key NOT IN
		(SELECT order_key FROM joblock_outbox WHERE state = 0 AND due_ms > 0 AND due_ms > {now})
	ORDER BY id LIMIT ?`

// due returns the next rows to enqueue.
func (b *Outbox) due(ctx context.Context) (out []*row, err error) {
	rows, err := b.db.QueryContext(ctx, b.dialect.sql(dueRows), b.cfg.Batch)
	if err != nil {
		return nil, fmt.Errorf("outbox: read rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r := &row{verdict: away}
		if err := rows.Scan(&r.id, &r.uid, &r.key, &r.taskType, &r.payload, &r.job, &r.attempts); err != nil {
			return nil, fmt.Errorf("outbox: read a row: %w", err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// send enqueues the rows of each key in the order of their ids: each once asynq has the task of the row before it. Rows
// of different keys go together. It returns an error if Redis is unreachable.
func (b *Outbox) send(ctx context.Context, rows []*row) error {
	lines := make(map[string][]*row)
	var keys []string // in the order of their first rows
	for _, r := range rows {
		if len(lines[r.key]) == 0 {
			keys = append(keys, r.key)
		}
		lines[r.key] = append(lines[r.key], r)
	}
	for {
		var wave []*row
		for _, key := range keys {
			if len(lines[key]) > 0 {
				wave = append(wave, lines[key][0])
			}
		}
		if len(wave) == 0 {
			return nil
		}
		b.enqueue(ctx, wave)
		absent := 0
		for _, r := range wave {
			switch r.verdict {
			case sent, refused:
				lines[r.key] = lines[r.key][1:]
				continue
			case away:
				absent++
			}
			delete(lines, r.key) // the later rows of the key stay as they are
		}
		if absent == len(wave) {
			for _, r := range wave {
				r.nextTryMS = 0 // the relay pauses as a whole, so no row waits by itself
			}
			return fmt.Errorf("outbox: the tasks of %d rows could not be enqueued: %w", absent, wave[0].err)
		}
	}
}

// enqueue enqueues rows of different keys, and sets their verdicts.
func (b *Outbox) enqueue(ctx context.Context, wave []*row) {
	var reqs []enqueue.Request
	var of []*row
	for _, r := range wave {
		req, err := b.restore(ctx, r)
		if err != nil {
			b.judge(ctx, r, enqueue.Result{Err: err})
			continue
		}
		reqs, of = append(reqs, req), append(of, r)
	}
	if len(reqs) == 0 {
		return
	}
	results, err := b.jobs.EnqueueMany(ctx, reqs)
	for i, r := range of {
		if err != nil {
			b.judge(ctx, r, enqueue.Result{Err: err})
		} else {
			b.judge(ctx, r, results[i])
		}
	}
}

// restore returns the request that the row has.
func (b *Outbox) restore(ctx context.Context, r *row) (enqueue.Request, error) {
	if err := json.Unmarshal([]byte(r.job), &r.kept); err != nil {
		return enqueue.Request{}, invalid("relay", "column job of the row cannot be read: %s", err)
	}
	return b.jobs.Restore(ctx, &r.kept, r.uid, r.taskType, r.payload)
}

// judge sets the verdict on r.
func (b *Outbox) judge(ctx context.Context, r *row, done enqueue.Result) {
	r.err = done.Err
	r.verdict = judge(done.Err)
	switch {
	case r.verdict == sent && done.Duplicate:
		r.err = fmt.Errorf("not enqueued, another job has the key: %s/%s", done.Task.Queue, done.Task.ID)
	case r.verdict == lookUp:
		r.verdict = b.identify(ctx, r)
	case r.verdict == unclear && r.attempts+1 >= maxAttempts:
		r.verdict = refused
		r.err = fmt.Errorf("given up after %d tries: %w", maxAttempts, r.err)
	}
	r.nextTryMS = r.verdict.pause(r.attempts).Milliseconds()
}

// identify returns the verdict on a row for which asynq has reported a conflict.
func (b *Outbox) identify(ctx context.Context, r *row) verdict {
	conflict := r.err
	taken := errors.Is(conflict, asynq.ErrTaskIDConflict)
	task, absent, err := b.jobs.TaskInfo(ctx, r.kept.Queue, r.kept.ID)
	switch {
	case err != nil:
		r.err = fmt.Errorf("%w; and asynq's task could not be read: %w", conflict, err)
		return away
	case !absent && task.Headers[rowHeader] == r.uid, absent && !r.kept.Named && taken:
		r.err = nil
		return sent
	case absent && taken:
		return waits // the other task has just ended
	case taken:
		return refused
	}
	r.err = fmt.Errorf("not enqueued because of the option asynq.Unique: %w", conflict)
	return sent
}

// mark writes the verdicts into the table.
func (b *Outbox) mark(ctx context.Context, rows []*row) error {
	var done []any      // ids of sent rows without a note
	counts := relayed{} // of this round
	var notes []*row    // each is written by itself
	for _, r := range rows {
		switch {
		case r.verdict == sent:
			counts.Sent++
			if r.err == nil || b.cfg.Retention < 0 {
				done = append(done, r.id)
				continue
			}
			notes = append(notes, r)
		case r.verdict == refused:
			counts.Refused++
			notes = append(notes, r)
			b.cfg.Logger.ErrorContext(ctx, "outbox: a job was refused for good and stays in the table", "outbox", b.cfg.Name,
				"id", r.id, "task", r.taskType, "key", r.key, "err", r.err)
		case r.nextTryMS == 0: // not tried, or Redis is unreachable
		default:
			counts.Retried++
			notes = append(notes, r)
		}
	}
	b.note(func(s *relayed) {
		s.Sent, s.Refused, s.Retried = s.Sent+counts.Sent, s.Refused+counts.Refused, s.Retried+counts.Retried
		if counts.Sent > 0 {
			s.SentAt = time.Now()
		}
	})
	if len(done) > 0 {
		query := "DELETE FROM joblock_outbox WHERE id IN (" + marks(len(done)) + ")"
		if b.cfg.Retention > 0 {
			query = fmt.Sprintf("UPDATE joblock_outbox SET state = 1, due_ms = 0, expires_ms = {now} + %d WHERE id IN (%s)", b.cfg.Retention.Milliseconds(), marks(len(done)))
		}
		if err := b.exec(ctx, query, done...); err != nil {
			return err
		}
	}
	for _, r := range notes {
		set := fmt.Sprintf("due_ms = {now} + %d, attempts = attempts + 1", r.nextTryMS)
		switch r.verdict {
		case sent:
			set = fmt.Sprintf("state = 1, due_ms = 0, expires_ms = {now} + %d", b.cfg.Retention.Milliseconds())
		case refused:
			set = "state = 2, due_ms = 0, attempts = attempts + 1"
		case away:
			set = fmt.Sprintf("due_ms = {now} + %d", r.nextTryMS)
		}
		query := "UPDATE joblock_outbox SET " + set + ", error = ? WHERE id = ? AND state = 0"
		if err := b.exec(ctx, query, shortened(r.err), r.id); err != nil {
			return err
		}
	}
	return nil
}

func (b *Outbox) exec(ctx context.Context, query string, args ...any) error {
	if _, err := b.db.ExecContext(ctx, b.dialect.sql(query), args...); err != nil {
		return fmt.Errorf("outbox: mark rows: %w", err)
	}
	return nil
}

// clean deletes sent rows at the end of their retention, until ctx ends.
func (b *Outbox) clean(ctx context.Context) {
	for more := false; more || sleep.For(ctx, cleanEvery) == nil; {
		n, err := b.cleanOnce(ctx)
		more = n == cleanRows && ctx.Err() == nil
		if err != nil && ctx.Err() == nil {
			b.cfg.Logger.WarnContext(ctx, "outbox: could not delete old rows; will try again", "outbox", b.cfg.Name, "err", err)
		}
	}
}

// expiredRows reads which rows are to be deleted.
const expiredRows = "SELECT id FROM joblock_outbox WHERE state = 1 AND expires_ms <= {now} ORDER BY expires_ms LIMIT ?"

// cleanOnce deletes up to cleanRows rows, and returns how many. It deletes them by id, because not every database would
// use an index for the condition in a DELETE.
func (b *Outbox) cleanOnce(ctx context.Context) (n int, err error) {
	rows, err := b.db.QueryContext(ctx, b.dialect.sql(expiredRows), cleanRows)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var ids []any
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return 0, err
		}
		ids = append(ids, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = b.db.ExecContext(ctx, b.dialect.sql("DELETE FROM joblock_outbox WHERE id IN ("+marks(len(ids))+")"), ids...)
	return len(ids), err
}

// relayed counts what the relay of this process has done.
type relayed struct {
	Sent, Refused, Retried int64
	LastError              string
	SentAt, FailedAt       time.Time // by the clock of this process
}

func (b *Outbox) note(f func(*relayed)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
}

// relaysKept is how long the stats are kept after the latest write of any relay.
const relaysKept = 30 * 24 * time.Hour

// tell reports the stats of the outbox to operators, once per workerstats.RelayPeriod, until ctx ends. lock is the
// relay's lock.
func (b *Outbox) tell(ctx context.Context, lock *core.Lock) {
	began, asOf := time.Now(), lock.AsOf()
	at := func(t time.Time) time.Time { // by the store's clock
		if t.IsZero() {
			return t
		}
		return asOf.Add(t.Sub(began)).UTC()
	}
	for ctx.Err() == nil {
		s, err := b.Stats(ctx)
		if err != nil {
			b.note(func(s *relayed) { s.LastError, s.FailedAt = shortened(err), time.Now() })
		}
		b.mu.Lock()
		r := workerstats.Relay{
			At: at(time.Now()), Began: asOf.UTC(), Holder: (*core.Locker)(b.jobs.Locks()).Settings().Holder,
			Database: b.dialect.String(), Backlog: s.Backlog, Refused: s.Refused, Oldest: s.Oldest.Milliseconds(), Unread: err != nil,
			Sent: b.stats.Sent, Retried: b.stats.Retried, Gaveup: b.stats.Refused, SentAt: at(b.stats.SentAt),
			LastError: b.stats.LastError, FailedAt: at(b.stats.FailedAt),
		}
		b.mu.Unlock()
		pause := workerstats.RelayPeriod
		if err := b.report(ctx, r); errors.Is(err, joblock.ErrHeld) {
			pause = time.Second // another outbox reports
		} else if err != nil && ctx.Err() == nil {
			b.cfg.Logger.Debug("outbox: could not write the relay's stats, which are for display only", "err", err)
		}
		_ = sleep.For(ctx, pause)
	}
}

// report writes r into the record of all outboxes.
func (b *Outbox) report(ctx context.Context, r workerstats.Relay) (err error) {
	lock, err := (*core.Locker)(b.jobs.Locks()).TryAcquire(context.WithoutCancel(ctx), keyspace.Outboxes,
		core.Options{OwnKey: true, Memo: true, Silent: true, Retain: relaysKept})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx, core.Release{})) }()
	all, err := workerstats.DecodeRelays(lock.Memo())
	if err != nil {
		all = workerstats.Relays{} // stats for people: start again
	}
	all[b.cfg.Name] = r
	return lock.WriteMemo(ctx, all.Encode())
}

// shortened returns the text of err for the table and the stats.
func shortened(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for i := range text {
		if i > mostError {
			return text[:i] + "…"
		}
	}
	return cmp.Or(text, "an error without a text")
}
