package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// probeTTL is the lease of the probe's lock. If nothing removes the lock, the lock ends with that lease.
	probeTTL = 10 * time.Second
	// probeRetain is how long the server remembers the probe's lock after its end.
	probeRetain = time.Millisecond
	// probeWait is how long a push may take.
	probeWait = 2 * time.Second
	// probeCleanUp bounds the removal of the probe's lock.
	probeCleanUp = time.Second
)

// probe asks the server what this user may do. Then probe tries the transitions of a lock, at a key that no
// application uses. The index stays as it is: a keeper would take an entry of the probe for a job's lock.
func (c *check) probe(ctx context.Context) error {
	p := &probe{s: c.s, id: "joblock-check-" + strconv.FormatUint(rand.Uint64(), 36)}
	known, usable, err := c.rights(ctx, p.id)
	if err != nil {
		return fmt.Errorf("redisstore: check: permissions: %w", err)
	}
	if !usable { // the probe might be allowed to take the lock and not to release the lock
		return nil
	}
	if err = p.transitions(ctx); err == nil {
		err = p.handOver(ctx)
	}
	p.cleanUp(ctx, err)
	switch {
	case denied(err):
		c.add(Finding{Fault, "", "permissions", "this user may not " + p.step + ": " + err.Error(), "such calls fail", c.fix(err.Error())})
		err = nil
	case errors.Is(err, errTooFew):
		c.add(Finding{Fault, "", "replicas", err.Error(), "no lock can be acquired, and held locks will be lost",
			"connect more replicas, or lower Config.Replicas"})
		err = nil
	case errors.Is(err, driver.ErrRefused): // full, a replica, loading
		if !c.has("role") {
			c.add(Finding{Fault, "", "writes", "the server refused to " + p.step + " a lock: " + err.Error(),
				"such calls fail as long as the server refuses them", "do what the server's message calls for; other findings may name the cause"})
		}
		return nil
	case err != nil:
		err = fmt.Errorf("redisstore: check: %s: %w", p.step, err)
	case p.deaf != "" && !c.has(pushRights.subject):
		c.add(Finding{pushRights.severity, "", pushRights.subject, p.deaf, pushRights.means,
			"+publish +subscribe +unsubscribe and the channels under the prefix, &" + escapeGlob(c.s.prefix) + "*"})
	}
	if err != nil {
		return err
	}
	if !c.has("permissions") && !c.has("replicas") {
		c.well("", "permissions", "this user may take a lock, renew it, hand it over and release it")
	}
	if p.deaf == "" && !c.has(pushRights.subject) {
		c.well("", pushRights.subject, "a waiter was notified at once that its lock had become free")
	}
	if known {
		return nil
	}
	// The server could not say whether this user may SCAN and ZSCAN, which no transition needs.
	_, lerr := c.s.List(ctx, driver.ListRequest{Prefix: p.id, Count: 1})
	if lerr == nil {
		_, lerr = c.s.Entries(ctx, driver.EntriesRequest{Count: 1})
	}
	if denied(lerr) {
		c.add(Finding{listRights.severity, "", listRights.subject, "this user may not list locks: " + lerr.Error(),
			listRights.means, "+scan +zscan"})
		return nil
	}
	return lerr
}

// probe is a lock on which Check tries the calls.
type probe struct {
	s    *store
	id   string // key, owner and inbox
	n    int    // number of nonces so far
	step string // the call that is being tried, for people
	deaf string // why pushes do not arrive; "" if they do
}

func (p *probe) nonce() string {
	p.n++
	return fmt.Sprintf("check-%d", p.n)
}

// want returns err if it is not nil, and otherwise an error if the outcome of r is not want.
func (p *probe) want(r driver.Reply, err error, want driver.Outcome) error {
	if err == nil && r.Outcome != want {
		err = fmt.Errorf("the outcome is %q, want %q", r.Outcome, want)
	}
	return err
}

func (p *probe) acquire(ctx context.Context, owner, nonce, inbox string) (driver.Reply, error) {
	return p.s.Acquire(ctx, driver.AcquireRequest{
		Key: p.id, Owner: owner, Nonce: nonce, TTL: probeTTL, Retain: probeRetain,
		Inbox: inbox, Patience: probeTTL,
	})
}

func (p *probe) release(ctx context.Context, owner string) error {
	rs, err := p.s.Release(ctx, []driver.ReleaseRequest{{
		Term: driver.Term{Key: p.id, Owner: owner}, Nonce: p.nonce(), Retain: probeRetain,
	}})
	if err != nil {
		return err
	}
	return p.want(rs[0], nil, driver.OutcomeOK)
}

// transitions tries the calls for a lock without waiters, except the release.
func (p *probe) transitions(ctx context.Context) error {
	p.step = "acquire"
	r, err := p.acquire(ctx, p.id, p.nonce(), "")
	if err = p.want(r, err, driver.OutcomeOK); err != nil {
		return err
	}
	term := driver.Term{Key: p.id, Owner: p.id, Fence: r.Fence}

	p.step = "renew" // without a memo, with which the record may outlast its end by more than probeRetain
	rs, err := p.s.Renew(ctx, []driver.RenewRequest{{Term: term, TTL: probeTTL, Retain: probeRetain}})
	if err == nil {
		err = p.want(rs[0], nil, driver.OutcomeOK)
	}
	if err != nil {
		return err
	}

	p.step = "park"
	rs, err = p.s.Park(ctx, []driver.ParkRequest{{Term: term, Nonce: p.nonce(), Reserve: probeTTL, Retain: probeRetain}})
	if err == nil {
		err = p.want(rs[0], nil, driver.OutcomeOK)
	}
	if err != nil {
		return err
	}

	p.step = "resume"
	rs, err = p.s.Resume(ctx, []driver.ResumeRequest{{Key: p.id, Owner: p.id, Nonce: p.nonce(), TTL: probeTTL, Retain: probeRetain}})
	if err == nil {
		err = p.want(rs[0], nil, driver.OutcomeOK)
	}
	if err != nil {
		return err
	}

	p.step = "inspect"
	_, err = p.s.Inspect(ctx, driver.InspectRequest{Keys: []string{p.id}, Memo: true})
	return err
}

// handOver makes a second owner wait for the lock, until a push announces the grant.
func (p *probe) handOver(ctx context.Context) error {
	p.step = "subscribe"
	const waiter = "waiter"
	pushed := make(chan string, 1)
	// own is false: the probe is about pushes that go through the server, as pushes of other processes
	// do.
	stop, err := p.s.subscribe(ctx, p.id, false, func(push driver.Push) {
		select {
		case pushed <- push.Nonce:
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
	if err = p.want(r, err, driver.OutcomeHeld); err != nil {
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

// cleanUp waits until the probe's lock is gone, also after the end of ctx. If the probe has failed with err, cleanUp
// removes the lock first. cleanUp returns no error, because the errors of Check say more. If the server does not
// answer, or the user may not release locks, the lock ends with its lease.
func (p *probe) cleanUp(ctx context.Context, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanUp)
	defer cancel()
	if err != nil {
		for range 2 { // the first release may give the key to the probe's own waiter
			_, _ = p.s.Release(ctx, []driver.ReleaseRequest{{
				Term: driver.Term{Key: p.id}, Nonce: p.nonce(), Retain: probeRetain, Kind: driver.ReleaseForced,
			}})
		}
	}
	p.gone(ctx)
}

// gone waits until the server has forgotten the probe's lock: a list of the locks after a check, such as that of package
// ops, must not show it. That takes twice probeRetain, unless the server's clock stands still.
func (p *probe) gone(ctx context.Context) {
	for range 20 {
		if recs, err := p.s.Inspect(ctx, driver.InspectRequest{Keys: []string{p.id}}); err != nil || recs[0].Fence == 0 {
			return
		}
		time.Sleep(probeRetain)
	}
}
