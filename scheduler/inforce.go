package scheduler

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/spec"
)

// maxParsed bounds Scheduler.parsed. Specs in ledgers differ from those of this node only during deploys.
const maxParsed = 1000

// parse parses the text of a spec that has its zone. parse remembers the result, because loading a zone takes long.
func (s *Scheduler) parse(text string) (spec.Spec, error) {
	s.mu.Lock()
	parsed, ok := s.parsed[text]
	s.mu.Unlock()
	if ok {
		return parsed, nil
	}
	parsed, err := spec.Parse(text, nil)
	if err != nil {
		return parsed, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parsed) >= maxParsed {
		clear(s.parsed)
	}
	s.parsed[text] = parsed
	return parsed, nil
}

// inForce returns the rules of j with the spec in force. If this node cannot parse that spec, the rules have no ticks.
func (s *Scheduler) inForce(j *job, l *ledger.Ledger) *ledger.Job {
	if l.Spec == "" || l.Spec == j.SpecText {
		return &j.Job
	}
	parsed, _ := s.parse(l.Spec) // momentOf reports the error
	return l.InForce(&j.Job, parsed)
}

// momentOf returns the present moment, for Ledger.Update. momentOf returns an error if this node must follow a spec that
// this node cannot parse.
func (s *Scheduler) momentOf(j *job, l *ledger.Ledger) (ledger.Moment, error) {
	var parsed spec.Spec
	var err error
	if l.Spec != "" && l.Spec != j.SpecText {
		parsed, err = s.parse(l.Spec)
	}
	now := s.clock.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	j.register(now)
	if j.since.After(now.Add(ledger.SetBack)) {
		j.since = time.UnixMilli(0) // the store's clock was set back: any later registration wins
	}
	if j.floor.IsZero() {
		j.floor = now
	}
	if last := l.LastTick(); last.After(j.floor) && last.Before(now) {
		j.floor = last // in case the store loses the ledger
	}
	order := s.orders.For(j.name)
	j.order = order.Fence
	m := ledger.Moment{
		Now: now, Floor: j.floor, Since: j.since, Spec: parsed, Order: order, Node: s.cfg.Node, ID: s.nodeID,
		Over: j.over, Unseen: j.decided && !s.seen(),
	}
	s.noteSpec(j, l, m)
	if err != nil && l.Follows(&j.Job, m) {
		return m, fmt.Errorf("scheduler: newer nodes execute the job, by a spec that this node cannot parse: %w", err)
	}
	return m, nil
}
