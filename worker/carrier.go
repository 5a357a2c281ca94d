package worker

import (
	"errors"
	"slices"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// carrier is an attempt of a task that carries locks.
type carrier struct {
	*attempt
	tokens     []joblock.Token // the tokens that the task carries, sorted by key
	asked      []joblock.Token // the same tokens, in the order in which the task's author handed the locks over
	untilStart []joblock.Token // subset of tokens: the task has their locks only until it starts
	fromStart  []joblock.Token // subset of tokens: an attempt acquires their locks before it calls the handler
	newest     []joblock.Token // subset of tokens: their fences say which job of a key is newer
	cooldowns  []envelope.Cooldown
	sequence   *envelope.Sequence // nil if the task is not part of a sequence
	chained    *chained           // the steps that follow
	cancel     bool               // a newer job of the key ends this one: handoff.CancelInProgress
	ownQueue   bool               // this job ends an older job only if that is in the same queue
	members    int                // how many tasks of a group were aggregated into this one; 0 if it is no aggregate

	newerJob string        // the job that has superseded this one, or ""
	locks    core.Locks    // the locks that this attempt has resumed or acquired
	taken    []string      // the keys of those fromStart locks that this attempt has acquired, and not resumed
	startsAt asynq.Handler // the handler at which the untilStart locks are released; nil: Middleware releases them
	started  bool          // the untilStart locks are released
}

// carry returns the carrier of a task whose envelope is env. The carrier's context has env, and the MaxRetry
// that the task's author asked for. The error is joblock.ErrInvalid if two tokens have the same key.
func (a *attempt) carry(env envelope.Envelope) (*carrier, error) {
	a.tries.Budget = verdict.Budget(env, a.tries.Limit)
	a.ctx = withRetries(withEnvelope(a.ctx, env), a.tries.Budget, a.tries.Limit)
	c := &carrier{
		attempt: a, tokens: slices.Clone(env.Tokens), asked: env.Tokens,
		untilStart: env.UntilStart, fromStart: env.FromStart, newest: env.Newest, cooldowns: env.Cooldowns,
		sequence: env.Sequence, members: env.Members, cancel: env.Cancel, ownQueue: env.OwnQueue,
		chained: chainOf(env),
	}
	// Attempts resume in the order of keys, so of two attempts with common keys one gets all locks, instead of each
	// getting some.
	slices.SortFunc(c.tokens, func(x, y joblock.Token) int { return strings.Compare(x.Key(), y.Key()) })
	for i, token := range c.tokens[1:] {
		if token.Key() == c.tokens[i].Key() {
			// The second token would find the lock busy at every attempt.
			return nil, verdict.Invalid("the task carries two tokens of key %q", token.Key())
		}
	}
	return c, nil
}

// handed returns c.locks in the order of c.asked. joblock.FromContext returns the first of these locks.
func (c *carrier) handed() core.Locks {
	var locks core.Locks
	for _, token := range c.asked {
		if lock, ok := c.locks.ByKey(token.Key()); ok {
			locks = append(locks, lock)
		}
	}
	return locks
}

// inSequence reports whether token is for the key of the sequence that the task is part of.
func (c *carrier) inSequence(token joblock.Token) bool {
	return c.sequence != nil && c.sequence.Token == token
}

// moveTo replaces the token of the sequence with token, which is for another slot.
func (c *carrier) moveTo(token joblock.Token) {
	replaced := func(tokens []joblock.Token) []joblock.Token {
		tokens = slices.Clone(tokens)
		if i := slices.Index(tokens, c.sequence.Token); i >= 0 {
			tokens[i] = token
		}
		return tokens
	}
	c.tokens, c.asked = replaced(c.tokens), replaced(c.asked)
	seq := *c.sequence
	seq.Token = token
	c.sequence = &seq
}

// halts reports whether a job that ends for reason keeps the key of its sequence.
func (c *carrier) halts(reason string) bool {
	return verdict.IsFailed(reason) && c.sequence != nil && c.sequence.Halt
}

// ending returns the locks to end. If kept is true, the lock of the sequence is not among them: the job keeps it because it
// has halted the sequence, or narrow has ended it.
func (c *carrier) ending(kept bool) core.Locks {
	if !kept {
		return c.locks
	}
	key := c.sequence.Token.Key()
	return slices.DeleteFunc(slices.Clone(c.locks), func(lock *core.Lock) bool { return lock.Key() == key })
}

// unsettled returns those of c.tokens whose locks neither this attempt nor the handler has released. If kept is true,
// it leaves out the token of the sequence: see ending.
func (c *carrier) unsettled(kept bool) []joblock.Token {
	var left []joblock.Token
	for _, token := range c.tokens {
		if kept && c.inSequence(token) {
			continue
		}
		lock, held := c.locks.ByKey(token.Key())
		if !held || !errors.Is(lock.Err(), joblock.ErrAlreadyReleased) {
			left = append(left, token)
		}
	}
	return left
}
