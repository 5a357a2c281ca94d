package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// A holding whose calls are answered in any order, or never, by a store that knows
// no more than the latest fence.
func TestHoldingNeverGoesBack(t *testing.T) {
	for seed := range uint64(2000) {
		newHoldingPlay(t, seed).run(60)
		if t.Failed() {
			return
		}
	}
}

// holdingPlay feeds a holding with random events.
type holdingPlay struct {
	*testing.T
	seed uint64
	rand *rand.Rand
	h    holding
	was  holding
	now  time.Time
	best time.Time // when the latest call was sent that a lease was granted to

	renewals []playedRenewal
	parking  bool
	reclaims []time.Time
	trace    []played
}

// played is an event, and the holding before and after it.
type played struct {
	now    time.Time
	event  string
	was, h holding
	step   step
}

type playedRenewal struct {
	req  driver.RenewRequest
	sent time.Time
	due  bool
}

func newHoldingPlay(t *testing.T, seed uint64) *holdingPlay {
	return &holdingPlay{T: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), h: testHolding(), now: begun, best: begun}
}

func (p *holdingPlay) run(events int) {
	for n := range events {
		p.now = p.now.Add(time.Duration(p.rand.Int64N(int64(4 * time.Second))))
		p.was = p.h
		s := p.h.timePassed(p.now)
		if p.h.live() && p.h.expired(p.now) {
			p.fail("is live past its deadline")
		}
		p.check("timePassed", s)
		p.was = p.h
		name, s := p.event(fmt.Sprint("n", n))
		p.check(name, s)
	}
}

// reply is OK, a refusal, or no answer.
func (p *holdingPlay) reply(fence int64) driver.Reply {
	return []driver.Reply{ok(fence), ok(fence), refused, silence, silence}[p.rand.IntN(5)]
}

func (p *holdingPlay) event(nonce string) (name string, s step) {
	switch p.rand.IntN(14) {
	case 0, 1:
		req, send := p.h.renewalDue(p.now)
		if send {
			p.renewals = append(p.renewals, playedRenewal{req, p.now, true})
		}
		return "renewalDue", s
	case 2:
		if req, err := p.h.renewalAsked("renew"); err == nil {
			p.renewals = append(p.renewals, playedRenewal{req, p.now, false})
		}
		return "renewalAsked", s
	case 3, 4, 5:
		if len(p.renewals) == 0 {
			break
		}
		i := p.rand.IntN(len(p.renewals))
		r := p.renewals[i]
		p.renewals = slices.Delete(p.renewals, i, i+1)
		fence := p.h.fence
		if r.req.Grant != "" && r.req.Grant == p.h.parkNonce {
			fence++
		}
		a := renewalAnswer{op: "renew", term: r.req.Term, sent: r.sent, now: p.now, reply: p.reply(fence)}
		if r.due {
			a.again = p.now.Add(time.Second)
		}
		if a.reply.Outcome == driver.OutcomeOK && p.h.live() && r.sent.After(p.best) {
			p.best = r.sent
		}
		s, _ = p.h.renewalAnswered(a)
		return fmt.Sprint("renewalAnswered ", a.reply.Outcome), s
	case 6:
		_, wait, err := p.h.parkBegun("park", nonce, "q/1", time.Minute, time.Second)
		if err == nil && !wait {
			p.parking = true
			for _, r := range p.renewals {
				if r.req.Grant == p.h.parkNonce {
					p.fail("a Park has begun that a renewal under way would undo")
				}
			}
		}
		return "parkBegun", s
	case 7, 8:
		if p.parking {
			p.parking = false
			s, _ = p.h.parkAnswered("park", "q/1", p.reply(p.h.fence+1))
			return "parkAnswered", s
		}
	case 9:
		if _, sent, err := p.h.reclaimBegun("reclaim", nonce, p.now, time.Second); err == nil {
			p.reclaims = append(p.reclaims, sent)
		}
		return "reclaimBegun", s
	case 10:
		if len(p.reclaims) > 0 {
			sent := p.reclaims[0]
			p.reclaims = p.reclaims[1:]
			s, _ = p.h.reclaimAnswered("reclaim", sent, p.now, p.reply(p.h.fence+1))
			if s.tell == event.Reclaimed {
				p.best = sent
			}
			return "reclaimAnswered", s
		}
	case 11:
		if p.rand.IntN(10) == 0 {
			_, _ = p.h.releaseBegun("release", driver.ReleaseRequest{Nonce: nonce}, 0)
			return "releaseBegun", s
		}
	case 12:
		p.h.doubted(p.h.fence)
		return "doubted", s
	case 13:
		if fence, check := p.h.verifyBegun(); check {
			return "verified", p.h.verified("watch", fence, record(fence, driver.StateHeld))
		}
	}
	return "nothing", s
}

// check holds what the latest event has made of the holding against the rules.
func (p *holdingPlay) check(name string, s step) {
	h, was := &p.h, &p.was
	p.trace = append(p.trace, played{p.now, name, *was, *h, s})
	switch {
	case h.terms != was.terms:
		p.fail("its terms have changed")
	case was.state == lockReleased && h.state != lockReleased:
		p.fail("it was released")
	case was.state == lockLost && h.state != lockLost && (h.state != lockParked || !s.found):
		p.fail("it was lost")
	case h.fence < was.fence, h.trust.Before(was.trust), h.since.Before(was.since):
		p.fail("it goes back")
	case h.live() && h.trust.After(p.best.Add(h.ttl-h.margin)):
		p.fail("it is trusted beyond its lease")
	case h.live() != (h.over == nil):
		p.fail("it is over without a reason, or the other way round")
	case (s.lost != nil) != (was.live() && h.state == lockLost), (s.tell == event.Lost) != (s.lost != nil):
		p.fail("a loss is not reported once")
	case (h.state == lockParking) != (p.parking && h.state != lockLost):
		p.fail("it is parking, and no Park is under way, or the other way round")
	}
	before, live := was.next()
	if after, lives := h.next(); (!before.Equal(after) || live != lives) && after.Before(before) && !s.moved {
		p.fail("it is due earlier and does not say so")
	}
	undoing, due := 0, 0
	for _, r := range p.renewals {
		if r.req.Grant != "" {
			undoing++
		}
		if r.due {
			due++
		}
	}
	if undoing != h.takingBack || (due == 1) != h.underWay || due > 1 {
		p.fail(fmt.Sprintf("%d renewals due and %d that undo a Park are under way", due, undoing))
	}
}

func (p *holdingPlay) fail(why string) {
	p.Helper()
	var story strings.Builder
	for _, e := range p.trace {
		fmt.Fprintln(&story, text(e.now), e.event, show(&e.was, &e.h, []any{e.step}))
	}
	p.Errorf("seed %d: %s\n%snow %s", p.seed, why, &story, show(new(holding), &p.h, nil))
}
