package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// ErrNotRecorded means that an action was refused because it could not be recorded. Nothing was changed.
var ErrNotRecorded = errors.New("the action was refused, because it could not be recorded")

// actor is the operator who acts; see Desk.As.
type actor struct{ by, from string }

// check refuses an action without a name or a reason.
func (a actor) check(op, key, reason string) error {
	return cmp.Or(
		core.CheckText(op, key, "name of who acts", a.by, 1, driver.MaxLabelBytes),
		core.CheckText(op, key, "origin of who acts", a.from, 0, driver.MaxLabelBytes),
		core.CheckText(op, key, "reason", reason, 1, driver.MaxLabelBytes))
}

// AuditEntry is a record of an action. An action has two entries: one without an Outcome, written before it begins, and
// one with the Outcome. If the second entry is missing, the outcome is not known. After OutcomeAsked a third entry may
// have the final outcome; the newest entry counts. An action that is refused before it begins has a single entry, with
// OutcomeRefused and without Of.
type AuditEntry struct {
	ID     string `json:"id"` // set by Audit.Write
	At     Time   `json:"at"` // set by Audit.Write
	Action string `json:"action"`
	Key    string `json:"key,omitempty"` // the key of a lock, the name of a cron job, or a job of asynq as "queue/taskID"

	// Keys are the keys of the locks that the task carries, for an action on a task.
	Keys []string `json:"keys,omitempty"`

	Scope   string `json:"scope,omitempty"`
	Fence   int64  `json:"fence,omitempty"`
	IfIdle  bool   `json:"if_idle,omitempty"`
	Step    string `json:"step,omitempty"` // of an action on a task: the Task.Step that the request named
	By      string `json:"by"`
	From    string `json:"from,omitempty"`
	Reason  string `json:"reason"`
	Value   int    `json:"value,omitempty"`   // of SetLimit: the new value
	Until   Time   `json:"until,omitzero"`    // of PauseKey: when the pause ends by itself
	Before  *Lock  `json:"before,omitempty"`  // the lock before the action
	Of      string `json:"of,omitempty"`      // with an Outcome: the ID of the entry that was written before the action
	Outcome string `json:"outcome,omitempty"` // OutcomeDone or another one
	Error   string `json:"error,omitempty"`   // with OutcomeFailed, OutcomeRefused and OutcomeUnknown
}

// The outcomes of actions.
const (
	OutcomeDone    = "done"
	OutcomeAsked   = "asked"   // it was requested from another process, and its result was not observed
	OutcomeFailed  = "failed"  // it began, and failed
	OutcomeRefused = "refused" // nothing was changed
	OutcomeUnknown = "unknown" // the store did not answer

	// outcomeNotRecorded is passed to Config.Acted, and is in no entry.
	outcomeNotRecorded = "not recorded"
)

// AuditQuery says which entries Audit.Read returns.
type AuditQuery struct {
	Key   string    `query:"key"`   // only actions on this key, or on a task with a lock on it
	Since time.Time `query:"since"` // only actions at or after this time
}

func (q *AuditQuery) wants(e AuditEntry) bool {
	return q.Key == "" || q.Key == e.Key || slices.Contains(e.Keys, q.Key)
}

// Audit records actions.
type Audit interface {
	// Write records e and returns the ID of the record. After an error, e may have been recorded.
	Write(ctx context.Context, e AuditEntry) (id string, err error)

	// Read iterates over the entries, the newest first. An error ends the walk, and matches joblock.ErrUnavailable.
	Read(ctx context.Context, q AuditQuery) iter.Seq2[AuditEntry, error]
}

const (
	// auditLength is about how many entries the stream of actions keeps, and refusalsLength about how many the stream of
	// refusals.
	auditLength    = 100_000
	refusalsLength = 10_000

	auditPage  = 200
	auditField = "entry"
)

// stream is an Audit in two Redis streams.
type stream struct {
	rdb      redis.UniversalClient
	key      string
	refusals string
	timeout  time.Duration
}

// NewAudit returns an Audit in two Redis streams. Their keys are the prefix of the locks, followed by "%audit", and by
// "%refusals" for actions that were refused before they began, so that refusals never displace actions. The stream of
// actions keeps about the latest 100,000 entries, the stream of refusals about 10,000. A call takes at most the given
// timeout. An ACL user needs XADD and XREVRANGE in addition to the rights of package redisstore.
func NewAudit(rdb redis.UniversalClient, prefix string, timeout time.Duration) Audit {
	return &stream{rdb, prefix + "%audit", prefix + "%refusals", timeout}
}

// refused reports whether e is about an action that was refused before it began.
func (e *AuditEntry) refused() bool { return e.Outcome == OutcomeRefused && e.Of == "" }

// Write implements Audit, with one XADD.
func (s *stream) Write(ctx context.Context, e AuditEntry) (string, error) {
	e.ID, e.At = "", Time{}
	text, err := json.Marshal(e)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key, most := s.key, int64(auditLength)
	if e.refused() {
		key, most = s.refusals, refusalsLength
	}
	return s.rdb.XAdd(ctx, &redis.XAddArgs{Stream: key, MaxLen: most, Approx: true, Values: []any{auditField, text}}).Result()
}

// Read implements Audit, with an XREVRANGE for every 200 entries of each stream.
func (s *stream) Read(ctx context.Context, q AuditQuery) iter.Seq2[AuditEntry, error] {
	return newestFirst(s.read(ctx, s.key, q), s.read(ctx, s.refusals, q))
}

// newestFirst merges two walks that each yield the newest entry first. The first error ends the walk.
func newestFirst(a, b iter.Seq2[AuditEntry, error]) iter.Seq2[AuditEntry, error] {
	return func(yield func(AuditEntry, error) bool) {
		next, stop := iter.Pull2(b)
		defer stop()
		other, err, more := next()
		others := func(until time.Time) bool { // yields the entries of b that are newer than until
			for more && (err != nil || other.At.After(until)) {
				if !yield(other, err) || err != nil {
					return false
				}
				other, err, more = next()
			}
			return true
		}
		for e, aerr := range a {
			if aerr == nil && !others(e.At.Time) {
				return
			}
			if !yield(e, aerr) || aerr != nil {
				return
			}
		}
		others(time.Time{})
	}
}

// read iterates over one of the streams.
func (s *stream) read(ctx context.Context, key string, q AuditQuery) iter.Seq2[AuditEntry, error] {
	return func(yield func(AuditEntry, error) bool) {
		from, to := "-", "+"
		if !q.Since.IsZero() {
			from = strconv.FormatInt(q.Since.UnixMilli(), 10)
		}
		for {
			page, err := s.page(ctx, key, from, to)
			if err != nil {
				yield(AuditEntry{}, unread(key, err))
				return
			}
			for _, m := range page {
				e, ok := entryOf(m)
				if ok && q.wants(e) && !yield(e, nil) {
					return
				}
			}
			if len(page) < auditPage {
				return
			}
			to = "(" + page[len(page)-1].ID
		}
	}
}

func (s *stream) page(ctx context.Context, key, from, to string) ([]redis.XMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.rdb.XRevRangeN(ctx, key, to, from, auditPage).Result()
}

// unread returns the error of a failed read of the stream at key. It matches joblock.ErrInvalid if the value at key is
// not a stream, and joblock.ErrUnavailable otherwise.
func unread(key string, err error) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return core.Invalid("audit", "", "the value at %q is not a record of actions", key)
	}
	return &refused{"the record of actions could not be read: " + err.Error(), joblock.ErrUnavailable, err}
}

// entryOf decodes an entry of the stream. ok is false for an entry that Write did not write.
func entryOf(m redis.XMessage) (e AuditEntry, ok bool) {
	text, _ := m.Values[auditField].(string)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return e, false
	}
	ms, _, _ := strings.Cut(m.ID, "-")
	at, err := strconv.ParseInt(ms, 10, 64)
	e.ID, e.At = m.ID, Time{time.UnixMilli(at).UTC()}
	return e, err == nil
}

// Audit iterates over the actions of operators, the newest first. Without Config.Audit there are no entries.
func (d *Desk) Audit(ctx context.Context, q AuditQuery) iter.Seq2[AuditEntry, error] {
	if d.cfg.Audit == nil {
		return func(func(AuditEntry, error) bool) {}
	}
	return d.cfg.Audit.Read(ctx, q)
}

// Actions merges the entries of an audit, and returns one entry for each action: the entry from before the action began,
// with the action's Outcome and Error. If no Outcome was recorded, the Outcome is OutcomeUnknown.
func Actions(entries iter.Seq2[AuditEntry, error]) iter.Seq2[AuditEntry, error] {
	return func(yield func(AuditEntry, error) bool) {
		outcomes := make(map[string]AuditEntry) // by AuditEntry.Of; the walk has the outcome of an action before the action
		for e, err := range entries {
			switch {
			case err != nil:
				yield(AuditEntry{}, err)
				return
			case e.Of != "":
				if _, newer := outcomes[e.Of]; !newer {
					outcomes[e.Of] = e
				}
				continue
			}
			if !e.refused() {
				is, ok := outcomes[e.ID]
				delete(outcomes, e.ID)
				if e.Outcome, e.Error = is.Outcome, is.Error; !ok {
					e.Outcome = OutcomeUnknown
				}
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// record writes an entry about the action e, calls do to perform it, and writes an entry with the outcome. done has the
// ID of the first entry. If that entry cannot be written, record does not call do, and the error matches ErrNotRecorded.
// If the second entry cannot be written, done.Problems says so. If refusal is not nil, record refuses the action with it,
// and writes a single entry that says so.
func (d *Desk) record(ctx context.Context, reason string, e AuditEntry, refusal error, do func(context.Context) error) (done ActionResult, err error) {
	e.By, e.From, e.Reason = d.who.by, d.who.from, reason
	acted := d.cfg.Acted
	if acted == nil {
		acted = func(string, string) {}
	}
	if d.cfg.Audit == nil {
		acted(e.Action, outcomeNotRecorded)
		return done, fmt.Errorf("%w: there is no place for records", ErrNotRecorded)
	}
	if refusal != nil {
		e.Before, e.Outcome, e.Error = nil, OutcomeRefused, refusal.Error()
	}
	if done.Audit, err = d.cfg.Audit.Write(ctx, e); err != nil {
		acted(e.Action, outcomeNotRecorded)
		return done, fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	if refusal != nil {
		acted(e.Action, OutcomeRefused)
		return done, refusal
	}
	err = do(ctx)
	e.Of, e.Before, e.Outcome = done.Audit, nil, OutcomeDone
	var is *outcome
	switch {
	case errors.As(err, &is):
		e.Outcome, e.Error, err = is.outcome, is.text, nil
	case errors.Is(err, joblock.ErrUnavailable), err != nil && ctx.Err() != nil:
		e.Outcome, e.Error = OutcomeUnknown, err.Error()
	case err != nil:
		e.Outcome, e.Error = OutcomeRefused, err.Error()
	}
	acted(e.Action, e.Outcome)
	if _, werr := d.cfg.Audit.Write(context.WithoutCancel(ctx), e); werr != nil {
		done.Problems = append(done.Problems, fmt.Sprintf("The outcome of the action could not be recorded: %s.", werr))
	}
	return done, err
}

// outcome is an error of an action that neither succeeded nor was refused: it sets the entry's Outcome. The caller of the
// action gets no error.
type outcome struct{ outcome, text string }

func (o *outcome) Error() string { return o.outcome + ": " + o.text }
