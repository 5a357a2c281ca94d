package ops

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// The names of the actions on named limits.
const (
	ActSetLimit   = "set limit"
	ActClearLimit = "clear limit"
)

// SetLimit sets the value of a named limit, in place of the value in the program. The limit is a
// worker.OverlapConfig.LimitName, a handoff.Sequence.LimitName, or the name of a rate. Every process uses the new value
// within a second, also after a restart. SetLimit does not check whether any program uses the name.
//
// Errors, after which nothing was changed: ErrNotRecorded, and ErrInvalid for a name that is not from 1 to 128 bytes, or
// a value that is not from 1 to 1,000,000. A limit of concurrent tasks is at most 256, even with a larger value. After
// ErrUnavailable the value may have been set.
type SetLimit struct {
	Limit  string `path:"limit"` // the name
	Value  int    `json:"value"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (SetLimit) Verb() string { return ActSetLimit }

func (req SetLimit) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	if err := errors.Join(d.who.check(ActSetLimit, "", req.Reason), core.CheckText(ActSetLimit, "", "the name of the limit", req.Limit, 1, controls.MaxName)); err != nil {
		return ActionResult{}, err
	}
	if req.Value < 1 || req.Value > controls.MaxValue {
		return ActionResult{}, core.Invalid(ActSetLimit, "", "the value is %d, must be from 1 to %d; to start no more jobs at all, pause their key", req.Value, controls.MaxValue)
	}
	if _, err := d.in.Controls().Fresh(ctx); err != nil {
		return ActionResult{}, err
	}
	return d.record(ctx, req.Reason, AuditEntry{Action: ActSetLimit, Key: req.Limit, Value: req.Value}, nil, func(ctx context.Context) error {
		return d.in.ChangeControls(ctx, d.who.by, func(set *controls.Set, _ int64, now time.Time) error {
			set.Clear(req.Limit)
			set.Limits = append(set.Limits, controls.Limit{Name: req.Limit, Value: req.Value, Note: req.Reason, By: d.who.by, Since: now.UTC()})
			return nil
		})
	})
}

// ClearLimit removes the value of a named limit, so that the value in the program applies again.
//
// Errors: joblock.ErrNotFound if no value is set, ErrInvalid, ErrUnavailable, and ErrNotRecorded.
type ClearLimit struct {
	Limit  string `path:"limit"`  // the name
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (ClearLimit) Verb() string { return ActClearLimit }

func (req ClearLimit) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	if err := errors.Join(d.who.check(ActClearLimit, "", req.Reason), core.CheckText(ActClearLimit, "", "the name of the limit", req.Limit, 1, controls.MaxName)); err != nil {
		return ActionResult{}, err
	}
	set, err := d.in.Controls().Fresh(ctx)
	if err != nil {
		return ActionResult{}, err
	}
	isSet := func(set *controls.Set) error {
		if set.Named(req.Limit) == nil {
			return &joblock.Error{Code: joblock.CodeOf(joblock.ErrNotFound), Op: ActClearLimit, Detail: "no value is set for this limit"}
		}
		return nil
	}
	return d.record(ctx, req.Reason, AuditEntry{Action: ActClearLimit, Key: req.Limit}, isSet(set), func(ctx context.Context) error {
		return d.in.ChangeControls(ctx, d.who.by, func(set *controls.Set, _ int64, _ time.Time) error {
			err := isSet(set)
			if err == nil {
				set.Clear(req.Limit)
			}
			return err
		})
	})
}
