package worker

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// ownerInLine returns the owner under which job waits for key. The task does not carry the owner, so each delivery must
// find the same owner again.
func ownerInLine(key, job string) string {
	sum := sha256.Sum256([]byte("joblock in line\x00" + key + "\x00" + job))
	return "line-" + base32.HexEncoding.EncodeToString(sum[:])[:26]
}

// lineUp takes the lock on key for the attempt's job, or a place in line. If the job waits, the error snoozes the task.
func (o *overlap) lineUp(a *attempt, key string) (*core.Lock, error) {
	in := (*core.Locker)(a.w.locks)
	token, err := joblock.NewToken(key, ownerInLine(key, a.job), in.Settings().TTL)
	if err != nil {
		return nil, err
	}
	taken := in.Take(a.ctx, "line up", []core.Take{{
		Key: key, Job: a.job, Reserve: a.w.cfg.Reserve, Patience: envelope.Patience, Token: (*core.Token)(&token),
	}})[0]
	switch {
	case taken.Err == nil && taken.Waits != nil:
		if lock, err := o.turnInSlot(a, token); lock != nil || err != nil {
			return lock, err
		}
		return nil, a.waitForTurn(key)
	case taken.Err != nil && (taken.Full || !errors.Is(taken.Err, joblock.ErrHeld)):
		return nil, taken.Err
	}
	// The key is parked for the job, or an earlier attempt has left the key behind.
	locks, errs := a.resume(a.ctx, []joblock.Token{token})
	return locks[0], errs[0]
}

// turnInSlot looks for a turn of a job that has just got a place in line. If the job had waited before, and meanwhile
// got a slot other than the first, turnInSlot gives the new place up, and resumes the lock of that slot. Otherwise both
// results are nil. In a line with one slot, this costs a job one lookup of its task, once.
func (o *overlap) turnInSlot(a *attempt, token joblock.Token) (*core.Lock, error) {
	if last := a.lastErr(); !strings.Contains(last, jobline.WaitText) && !strings.Contains(last, jobline.PauseText) {
		return nil, nil
	}
	got, err := jobline.SlotsOf(a.ctx, a.w.locks, token, a.job, jobline.SlotKeys(token.Key(), 2, driver.MaxSlots))
	if err != nil || len(got) == 0 {
		return nil, err
	}
	a.leaveLine(a.ctx, token, verdict.ReasonStarted)
	locks, errs := a.resume(a.ctx, []joblock.Token{joblock.Token(core.Token(token).OfSlot(got[0].Key))})
	return locks[0], errs[0]
}

// canLineUp reports whether the locks' store accepts the name of the job.
func canLineUp(a *attempt) bool {
	return core.CheckText("line up", "", "job", a.job, 1, driver.MaxLabelBytes) == nil
}
