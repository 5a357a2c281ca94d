package core

import (
	"cmp"
	"context"

	"github.com/joblock/toolkit/joblock/driver"
)

// Renew is joblock.Lock.Renew.
func (k *Lock) Renew(ctx context.Context) error { return k.renewNow(ctx, "renew", nil) }

func (k *Lock) renewNow(ctx context.Context, op string, memo []byte) error {
	if err := k.open(op); err != nil {
		return err
	}
	k.check()
	k.mu.Lock()
	req, err := k.h.renewalAsked(op)
	k.mu.Unlock()
	if err != nil {
		return err
	}
	req.Memo = memo
	a := renewalAnswer{op: op, term: req.Term, sent: k.l.now()}
	replies, failed := ask(ctx, k.l, op, k.h.key, k.l.store.Renew, []driver.RenewRequest{req})
	a.reply, a.now = only(replies), k.l.now()
	return cmp.Or(failed, k.renewed(a, memo))
}

// renewed applies the answer to a renewal. memo is the memo in the renewal, or nil.
func (k *Lock) renewed(a renewalAnswer, memo []byte) error {
	k.mu.Lock()
	if memo != nil && a.reply.Outcome == driver.OutcomeOK {
		k.memo = memo
	}
	if a.term.Grant != "" && k.answered != nil {
		close(k.answered)
		k.answered = nil
	}
	s, err := k.h.renewalAnswered(a)
	span := k.span
	k.unlock(s)
	if s.tell == 0 && a.reply.Outcome == driver.OutcomeOK {
		span.Renewed()
	}
	return err
}

// StopRenewing ends the renewal of the lock: the lease expires by itself.
func (k *Lock) StopRenewing() {
	if k.none() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.h.renewingStopped()
}
