package scheduler

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// Remove takes a job away from this Scheduler. No execution begins here after Remove has returned. An execution that has
// begun goes on, with its retries. The other nodes that have the job still execute its ticks. So a job ends when the last node has removed
// the job, and Forget then removes the job's record. A job that is registered again later goes on where its record ends:
// ticks in between are missed ticks, unless Forget was called.
//
// Errors: joblock.ErrNotFound if this Scheduler does not have the job, and joblock.ErrInvalid for a bad name.
func (s *Scheduler) Remove(name string) error {
	const op = "remove"
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[name]
	if j == nil {
		return unregistered(op, name)
	}
	delete(s.jobs, name)
	s.jobsChanged()
	s.drop(j)
	if j.busy {
		s.leaving[name] = j
	}
	return nil
}

// SetSpec gives a job of this Scheduler another spec. Function and options stay. The spec is read in the job's zone,
// unless the spec names a zone. The package documentation, under Deploys, says when the new spec is in force, also on the
// other nodes.
//
// Errors: joblock.ErrNotFound if this Scheduler does not have the job, and joblock.ErrInvalid for a bad name or spec. The
// job then stays as it is.
func (s *Scheduler) SetSpec(name, spec string) error {
	const op = "set the spec of"
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.jobs[name]
	if old == nil {
		return unregistered(op, name)
	}
	j, err := s.newJob(op, name, spec, old.fn, old.options)
	if err != nil {
		return err
	}
	s.add(j)
	return nil
}

// add registers j and makes j due. If this node is busy with a job of the same name, also with one that Remove has taken
// away, j is due when the node is no longer busy with that job. Executions in lanes do not make a job busy: the ledger
// counts them, so j goes on beside them. The caller has locked s.mu.
func (s *Scheduler) add(j *job) {
	if s.running && s.clock.synced() {
		j.register(s.clock.now())
	} else {
		s.undated = true
	}
	old := s.jobs[j.name]
	if old != nil {
		j.floor, j.order, j.behind = old.floor, old.order, old.behind
		if old.SpecText == j.SpecText {
			j.registration = old.registration // the spec of another node that was registered later stays in force
		}
		s.drop(old)
	} else if old = s.leaving[j.name]; old != nil {
		delete(s.leaving, j.name)
	}
	s.jobs[j.name] = j
	s.jobsChanged()
	if old != nil && old.busy {
		old.next, j.busy = j, true
		return
	}
	s.due.put(j, time.Time{})
	s.wake()
}

// drop ends what the job waits for. The caller has locked s.mu.
func (s *Scheduler) drop(j *job) {
	j.gone = true
	if j.index >= 0 {
		heap.Remove(&s.due, j.index)
	}
	if j.giveUp != nil {
		j.giveUp()
	}
}

// passOn makes the job due that has replaced j. The caller has locked s.mu.
func (s *Scheduler) passOn(j *job) {
	for ; j != nil; j = j.next {
		j.busy = false
		if s.leaving[j.name] == j {
			delete(s.leaving, j.name)
		}
		if !j.gone {
			s.due.put(j, time.Time{})
			s.wake()
			return
		}
	}
}

// isGone reports whether j was removed or replaced.
func (s *Scheduler) isGone(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.gone
}

func unregistered(op, job string) error {
	return &ownError{fmt.Sprintf("%s %q: this Scheduler does not have the job", op, job), joblock.ErrNotFound}
}
