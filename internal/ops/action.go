package ops

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// ForceRelease frees a key regardless of its holder, and gives it to the next in line in the same step. If the key no
// longer has the fence that the action names, nothing changes. A live holder is not stopped: its contexts end at its next
// renewal, or at once with joblock.Config.WatchForced. Until then the fences protect the resource.
//
// Errors, after which nothing was freed:
//
//	ErrNotRecorded   the action could not be recorded, so it was not begun
//	ErrNotOwner      another holder has the key by now, or the same owner in another step
//	ErrNotFound      the key is free
//	ErrBusy          with IfIdle: the lock is held
//	ErrInvalid       the key, the fence, the reason or the operator's name is bad
//	ErrClosed
//
// After ErrUnavailable the key may have been freed. All sentinels but ErrNotRecorded are in package joblock.
type ForceRelease struct {
	Key    string `json:"key"`
	Fence  int64  `match:"lock"`             // of the holding that the operator has seen: Lock.Fence
	IfIdle bool   `json:"if_idle,omitempty"` // only while the lock is parked or orphaned: nothing runs under it
	Reason string `json:"reason"`            // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (req ForceRelease) Verb() string {
	if req.IfIdle {
		return ActFreeIdle
	}
	return ActForce
}

func (req ForceRelease) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	op := req.Verb()
	if err := d.who.check(op, req.Key, req.Reason); err != nil {
		return ActionResult{}, err
	}
	if req.Fence < 1 || req.Fence > driver.MaxFence {
		return ActionResult{}, core.Invalid(op, req.Key, "fence is %d, must be from 1 to %d", req.Fence, int64(driver.MaxFence))
	}
	before, err := d.read(ctx, op, req.Key)
	if err != nil {
		return ActionResult{}, err
	}
	seen := joblock.Status{Key: req.Key, Fence: req.Fence}
	if before.Fence == req.Fence {
		seen.Job = before.Job
	}
	e := AuditEntry{Action: op, Key: req.Key, Fence: req.Fence, IfIdle: req.IfIdle, Before: &before}
	done, err := d.record(ctx, req.Reason, e, req.refusal(op, before), func(ctx context.Context) error {
		return Force(ctx, d.cfg.Locks, seen, req.IfIdle, signed(req.Reason, d.who.by))
	})
	done.Before = &before
	if err != nil {
		return done, err
	}
	after, err := d.read(ctx, op, req.Key)
	if done.After = &after; err != nil {
		done.Problems = append(done.Problems, fmt.Sprintf("The key was freed, but could not be read afterwards: %s.", err))
	}
	return done, nil
}

// refusal returns the error with which the store would refuse the request if the lock is still as l shows it, or nil.
func (req *ForceRelease) refusal(op string, l Lock) error {
	outcome := driver.OutcomeOK
	switch {
	case l.State == joblock.StateFree:
		outcome = driver.OutcomeNotFound
	case l.State == joblock.StateForeign:
	case l.Fence != req.Fence:
		outcome = driver.OutcomeNotOwner
	case req.IfIdle && l.State == joblock.StateHeld:
		outcome = driver.OutcomeBusy
	}
	return core.Refusal(op, req.Key, driver.Reply{Outcome: outcome, Holder: l.Holder, Job: l.Job, Remaining: l.Reserved.Duration()})
}

// signature begins the part of a reason that names the operator.
const signature = " (by "

func isSigned(reason string) bool {
	return strings.Contains(reason, signature) && strings.HasSuffix(reason, ")")
}

// signed returns the reason that the record of a freed key shows. It names the operator, if there is room.
func signed(reason, by string) string {
	tail := signature + by + ")"
	if len(reason)+len(tail) <= driver.MaxLabelBytes {
		return reason + tail
	}
	cut := max(0, driver.MaxLabelBytes-len(tail))
	for cut > 0 && !utf8.RuneStart(reason[cut]) {
		cut--
	}
	if cut < driver.MaxLabelBytes/4 { // the operator's name is very long
		return reason
	}
	return strings.TrimSpace(reason[:cut]) + tail
}
