package ops

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The names of the actions on keys whose jobs are held back.
const (
	ActPauseKey  = "pause key"
	ActResumeKey = "resume key"
)

// PauseKey holds back all jobs with a lock on Key, or on a key below Key, which begins with Key and ":". That covers
// unique jobs, jobs of sequences, jobs that carry locks, and tasks of WithoutOverlapping. A job that already runs
// continues. A job that is held back occupies no worker, is charged no retry, keeps its locks and its place in line, and
// starts when the pause ends. Every process applies the pause within a second. Enqueues and direct acquires are not
// affected. A second pause of the same key replaces the first. All pauses and limits together may have 64 KiB; the pauses
// of the keys that a Viewer with Key may see 16 KiB, so that one tenant's pauses leave room for those of the others.
//
// A pause does not stop the clock of a job's asynq.Deadline or of worker.Config.MaxHold. A job whose Deadline passes
// fails when it is next delivered, after the pause at the latest.
//
// Errors, after which nothing was changed: ErrNotRecorded, and ErrInvalid for a key that no application may have or that
// ends in "*" or ":", and for a For that is neither 0 nor from a second to 366 days. After ErrUnavailable the key may be
// paused.
type PauseKey struct {
	Key    string `json:"key"`
	For    Millis `json:"for_ms,omitempty"` // the pause ends by itself after this time; 0: never
	Reason string `json:"reason"`           // the note of the pause, from 1 to 256 bytes
}

// Verb implements Action.
func (PauseKey) Verb() string { return ActPauseKey }

func (req PauseKey) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	if err := errors.Join(d.who.check(ActPauseKey, req.Key, req.Reason), checkPaused(ActPauseKey, req.Key)); err != nil {
		return ActionResult{}, err
	}
	length := req.For.Duration()
	if length != 0 && (length < time.Second || length > driver.MaxPeriod) {
		return ActionResult{}, core.Invalid(ActPauseKey, req.Key, "the length of the pause is %s, must be from 1s to %s, or 0 for no end", length, driver.MaxPeriod)
	}
	set, err := d.in.Controls().Fresh(ctx)
	if err != nil {
		return ActionResult{}, err
	}
	see := viewerOf(ctx).Key
	add := func(set *controls.Set, fence int64, now time.Time) error {
		p := controls.Pause{ID: fence, Key: req.Key, Note: req.Reason, By: d.who.by, Since: now.UTC()}
		if length > 0 {
			p.Until = now.Add(length).UTC()
		}
		set.Remove(req.Key)
		set.Pauses = append(set.Pauses, p)
		return checkShare(set, see)
	}
	e := AuditEntry{Action: ActPauseKey, Key: req.Key}
	if length > 0 {
		e.Until = Time{set.Now().Add(length)}
	}
	tried := &controls.Set{Pauses: slices.Clone(set.Pauses)}
	return d.record(ctx, req.Reason, e, add(tried, driver.MaxFence, set.Now()), func(ctx context.Context) error {
		return d.in.ChangeControls(ctx, d.who.by, add)
	})
}

// maxShare is how many bytes of the registry the pauses of the keys that one Viewer may see can use.
const maxShare = driver.MaxMemoBytes / 4

// checkShare refuses pauses that use more than maxShare. If see is nil, the operator may see all keys, and nothing is
// refused.
func checkShare(set *controls.Set, see func(key string) bool) error {
	if see == nil {
		return nil
	}
	own := controls.Set{Pauses: slices.DeleteFunc(slices.Clone(set.Pauses), func(p controls.Pause) bool { return !see(p.Key) })}
	if n := len(own.Encode()); n > maxShare {
		return core.Invalid(ActPauseKey, "", "all pauses of the caller's keys together have %d bytes, at most %d are allowed: end some pauses", n, maxShare)
	}
	return nil
}

// ResumeKey ends the pause of Key. The jobs that were held back start at once, in the order in which they came, as far as
// each one's own key or limit allows; a worker with a keeper starts them. Pauses of other keys above or below Key stay.
//
// Errors: joblock.ErrNotFound if Key itself is not paused, ErrInvalid, ErrUnavailable, and ErrNotRecorded.
type ResumeKey struct {
	Key    string `json:"key"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (ResumeKey) Verb() string { return ActResumeKey }

func (req ResumeKey) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	if err := errors.Join(d.who.check(ActResumeKey, req.Key, req.Reason), checkPaused(ActResumeKey, req.Key)); err != nil {
		return ActionResult{}, err
	}
	set, err := d.in.Controls().Fresh(ctx)
	if err != nil {
		return ActionResult{}, err
	}
	find := func(set *controls.Set, now time.Time) (*controls.Pause, error) {
		if p := set.Find(req.Key); p != nil && !p.Ended(now) {
			return p, nil
		}
		return nil, &joblock.Error{Code: joblock.CodeOf(joblock.ErrNotFound), Op: ActResumeKey, Key: req.Key, Detail: "the key is not paused"}
	}
	_, refused := find(set, set.Now())
	return d.record(ctx, req.Reason, AuditEntry{Action: ActResumeKey, Key: req.Key}, refused, func(ctx context.Context) error {
		return d.in.ChangeControls(ctx, d.who.by, func(set *controls.Set, _ int64, now time.Time) error {
			p, err := find(set, now)
			if err == nil {
				p.Resumed = now.UTC()
			}
			return err
		})
	})
}

// checkPaused refuses a key that cannot be paused.
func checkPaused(op, key string) error {
	if err := core.CheckKey(op, key); err != nil {
		return err
	}
	switch detail := keyspace.CheckApplication(key); {
	case detail != "":
		return core.Invalid(op, key, "%s", detail)
	case strings.HasSuffix(key, "*"):
		return core.Invalid(op, key, "the key ends in \"*\": leave it out, a pause covers all keys that begin with the key and \":\"")
	case strings.HasSuffix(key, ":"):
		return core.Invalid(op, key, "the key ends in \":\": leave it out, a pause covers all keys that begin with the key and \":\"")
	case len(key) > keyspace.MaxPausedBytes:
		return core.Invalid(op, key, "key has %d bytes, at most %d can be paused", len(key), keyspace.MaxPausedBytes)
	}
	return nil
}
