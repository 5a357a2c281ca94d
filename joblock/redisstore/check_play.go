package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock"
)

const (
	// probeTTL is the lease of the lock that is played with, and how long it is
	// remembered if nothing removes it.
	probeTTL = 10 * time.Second
	// probeWait is how long a push may take.
	probeWait = 2 * time.Second
)

// play goes through all that may happen to a lock, at a key of its own: what this
// user may not do shows here, and nowhere else for certain.
func (c *check) play(ctx context.Context) error {
	p := &probe{s: c.s, id: "joblock-check-" + strconv.FormatUint(rand.Uint64(), 36)}
	err := p.transitions(ctx)
	if err == nil {
		err = p.handOver(ctx)
	}
	switch {
	case denied(err):
		fix := "give it what the documentation of package redisstore lists under Permissions"
		if missing := c.missing(ctx, c.s.prefix+p.id, recordCommands); len(missing) > 0 {
			fix = "ACL SETUSER … +" + strings.Join(missing, " +")
		}
		c.add(Finding{Fault, "", "permissions", "this user may not " + p.step + ": " + err.Error(), "such calls fail", fix})
		err = nil
	case errors.Is(err, errTooFew):
		c.add(Finding{Fault, "", "replicas", err.Error(), "no lock can be had, and those that are held will be lost",
			"connect more replicas, or lower Config.Replicas"})
		err = nil
	case err != nil:
		err = fmt.Errorf("redisstore: check: %s: %w", p.step, err)
	case p.deaf != "":
		c.add(Finding{Warning, "", "pub/sub", p.deaf,
			"waiters find their grants only by asking, once per joblock.Config.Poll",
			"+publish +subscribe +unsubscribe and the channels under the prefix, &" + c.s.prefix + "*"})
	}
	if err != nil {
		return err
	}
	// Not played, for an entry in the index is for the keeper to look at.
	if missing := c.missing(ctx, c.s.index(), indexCommands); len(missing) > 0 {
		c.add(Finding{Fault, "", "permissions", "this user may not keep the index of jobs' locks: " + strings.Join(missing, ", "),
			"locks cannot be handed to jobs", "ACL SETUSER … ~" + c.s.index() + " +" + strings.Join(missing, " +")})
	}
	// Everything but the listing works without SCAN.
	if _, lerr := c.s.List(ctx, joblock.ListRequest{Prefix: p.id, Count: 1}); denied(lerr) {
		c.add(Finding{Warning, "", "permissions", "this user may not list locks: " + lerr.Error(),
			"List fails, all else works", "+scan"})
	} else if lerr != nil {
		return lerr
	}
	return nil
}

// The commands of the scripts, at a record and at the index of jobs' locks, with as
// many arguments as each needs.
const (
	recordCommands = `{'TIME'}, {'EXISTS', KEYS[1]}, {'HGET', KEYS[1], 'f'}, {'HMGET', KEYS[1], 'f'},
  {'HSET', KEYS[1], 'f', 'v'}, {'HDEL', KEYS[1], 'f'}, {'PEXPIRE', KEYS[1], '1'}, {'PTTL', KEYS[1]}`
	indexCommands = `{'ZADD', KEYS[1], '1', 'm'}, {'ZREM', KEYS[1], 'm'}, {'ZSCORE', KEYS[1], 'm'},
  {'ZRANGEBYSCORE', KEYS[1], '1', '2'}`
)

// missing names those of commands that this user may not run at key. Redis 7 tells
// a script what it may; before, nothing is found, and an error names the command.
func (c *check) missing(ctx context.Context, key, commands string) []string {
	missing, err := c.s.ops.Eval(ctx, `
local missing = {}
for _, call in ipairs({`+commands+`}) do
  if not redis.acl_check_cmd(unpack(call)) then missing[#missing + 1] = string.lower(call[1]) end
end
return missing`, []string{key}).StringSlice()
	if err != nil {
		return nil // an older server, or EVAL itself is what may not be run: play finds that
	}
	return missing
}

// probe is the lock that is played with.
type probe struct {
	s    *Store
	id   string // key, owner and inbox
	n    int    // of calls
	step string // what is being tried, for people
	deaf string // why pushes do not arrive; "" if they do
}

func (p *probe) nonce() string {
	p.n++
	return fmt.Sprintf("check-%d", p.n)
}

// want passes an error on, and turns an answer that is not the expected one into one.
func (p *probe) want(r joblock.Reply, err error, want joblock.Outcome) error {
	if err == nil && r.Outcome != want {
		err = fmt.Errorf("outcome %d where %d was to be expected", r.Outcome, want)
	}
	return err
}

func (p *probe) acquire(ctx context.Context, owner, nonce, inbox string) (joblock.Reply, error) {
	return p.s.Acquire(ctx, joblock.AcquireRequest{
		Key: p.id, Owner: owner, Nonce: nonce, TTL: probeTTL, Retain: time.Millisecond,
		Inbox: inbox, Patience: probeTTL,
	})
}

func (p *probe) release(ctx context.Context, owner string) error {
	rs, err := p.s.Release(ctx, []joblock.ReleaseRequest{{
		Term: joblock.Term{Key: p.id, Owner: owner}, Nonce: p.nonce(), Retain: time.Millisecond,
	}})
	if err != nil {
		return err
	}
	return p.want(rs[0], nil, joblock.OutcomeOK)
}

// transitions are those of a lock that nobody waits for.
func (p *probe) transitions(ctx context.Context) error {
	p.step = "acquire"
	r, err := p.acquire(ctx, p.id, p.nonce(), "")
	if err = p.want(r, err, joblock.OutcomeOK); err != nil {
		return err
	}
	term := joblock.Term{Key: p.id, Owner: p.id, Fence: r.Fence}

	p.step = "renew"
	rs, err := p.s.Renew(ctx, []joblock.RenewRequest{{Term: term, TTL: probeTTL, Retain: time.Millisecond, Memo: []byte("check")}})
	if err == nil {
		err = p.want(rs[0], nil, joblock.OutcomeOK)
	}
	if err != nil {
		return err
	}

	p.step = "park"
	r, err = p.s.Park(ctx, joblock.ParkRequest{Term: term, Nonce: p.nonce(), Hold: probeTTL, Retain: time.Millisecond})
	if err = p.want(r, err, joblock.OutcomeOK); err != nil {
		return err
	}

	p.step = "resume"
	r, err = p.s.Resume(ctx, joblock.ResumeRequest{Key: p.id, Owner: p.id, Nonce: p.nonce(), TTL: probeTTL, Retain: time.Millisecond})
	if err = p.want(r, err, joblock.OutcomeOK); err != nil {
		return err
	}

	p.step = "inspect"
	_, err = p.s.Inspect(ctx, []string{p.id})
	return err
}

// handOver has a second owner wait for the lock, and get it by a push.
func (p *probe) handOver(ctx context.Context) error {
	p.step = "subscribe"
	const waiter = "waiter"
	pushed := make(chan joblock.Grant, 1)
	stop, err := p.s.Listen(ctx, p.id, func(g joblock.Grant) {
		select {
		case pushed <- g:
		default:
		}
	})
	switch {
	case denied(err):
		p.deaf = err.Error()
		p.step = "release"
		return p.release(ctx, p.id)
	case err != nil:
		return err
	}
	defer stop()

	p.step = "wait"
	r, err := p.acquire(ctx, p.id+waiter, p.nonce(), p.id)
	if err = p.want(r, err, joblock.OutcomeHeld); err != nil {
		return err
	}
	p.step = "release"
	if err := p.release(ctx, p.id); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	select {
	case <-pushed:
	case <-wait.Done():
		p.deaf = "a push did not arrive within " + probeWait.String()
	}
	return errors.Join(context.Cause(ctx), p.release(ctx, p.id+waiter))
}
