package ops

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Sequence is the line of jobs of a key: the job that has the key was enqueued in a sequence, or jobs wait for the key.
type Sequence struct {
	Key   string        `json:"key"`
	State SequenceState `json:"state"`
	Why   string        `json:"why"`            // in sentences: what the job in front does, or why it does not proceed
	Since Time          `json:"since,omitzero"` // since when Why has been true; of a halted sequence: when its job failed

	Job     string `json:"job,omitempty"`   // the job in front, as "queue/taskID"; empty if a process has the key or the key is free
	Error   string `json:"error,omitempty"` // the last error of that job
	Task    *Task  `json:"task,omitempty"`  // of that job
	Lock    Lock   `json:"lock"`            // of the key, or of the slot that has been taken longest; without Line, Permits and Task
	Running int    `json:"running"`         // how many jobs and processes have the key or one of its slots
	Limit   int    `json:"limit,omitempty"` // how many jobs may run at a time; 0 if it is not known
	Waiting int    `json:"waiting"`         // how many jobs and callers wait; for a while this includes waiters that have died

	// Actions are what an operator may do, the mildest first.
	Actions []Offer `json:"actions"`
}

// SequenceState says whether the jobs of a Sequence proceed.
type SequenceState string

// The states, the worst first.
const (
	SequenceHalted  SequenceState = "halted"  // the job in front has failed for good, and the others wait until an operator decides
	SequenceStuck   SequenceState = "stuck"   // nothing starts the next job by itself, or nothing in time
	SequenceWaiting SequenceState = "waiting" // the job in front waits for a worker, for its start time or for its next attempt
	SequenceRunning SequenceState = "running" // an attempt runs
)

var sequenceStates = []SequenceState{SequenceHalted, SequenceStuck, SequenceWaiting, SequenceRunning}

// SequencesQuery says which sequences Desk.Sequences shows. The zero value shows all sequences.
type SequencesQuery struct {
	Prefix string `query:"prefix"` // of the key
	Halted bool   `query:"halted"` // only sequences that have halted; then the tasks of running jobs are not looked up

	Share    float64 // as in JobsQuery
	Progress func(done float64)
}

// CompareSequences orders sequences: first those that have halted, then those that are stuck, both with the oldest
// trouble first; then all others, the longest line first.
func CompareSequences(a, b Sequence) int {
	rank := func(s Sequence) int { return min(slices.Index(sequenceStates, s.State), 2) }
	if n := cmp.Compare(rank(a), rank(b)); n != 0 {
		return n
	}
	if rank(a) < 2 {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Key, b.Key))
	}
	return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), strings.Compare(a.Key, b.Key))
}

// Sequences iterates over the sequences, in no particular order: see CompareSequences. It reads the whole index of jobs
// before it yields the first sequence. After that it reads only the records of the keys and the tasks of the jobs in
// front, so a long line costs little more than a short one. A sequence of one job without waiters is included. Errors are
// those of Jobs.
func (d *Desk) Sequences(ctx context.Context, q SequencesQuery) iter.Seq2[Sequence, error] {
	return func(yield func(Sequence, error) bool) {
		keeper, err := d.Keeper(ctx)
		if err != nil {
			yield(Sequence{}, err)
			return
		}
		lines, err := d.index().lines(ctx, q)
		if err != nil {
			yield(Sequence{}, err)
			return
		}
		keys, read := slices.Sorted(maps.Keys(lines)), 0
		for some := range slices.Chunk(keys, lookedUp) {
			began := time.Now()
			found, err := d.sequencesOf(ctx, some, lines, keeper, q.Halted)
			if err != nil {
				yield(Sequence{}, err)
				return
			}
			took := time.Since(began)
			if read += len(some); q.Progress != nil {
				q.Progress(0.5 + 0.5*float64(read)/float64(len(keys)))
			}
			for _, s := range found {
				if (s.State == SequenceHalted || !q.Halted) && !yield(s, nil) {
					return
				}
			}
			if err := sleep.For(ctx, time.Duration(float64(took)*(1/cmp.Or(q.Share, defaultShare)-1))); err != nil {
				yield(Sequence{}, err)
				return
			}
		}
	}
}

// jobLine is what the index of jobs has about the line of a key.
type jobLine struct {
	entries int                 // jobs that have the key or a slot, and jobs that wait
	slots   map[string]struct{} // the keys of the slots that jobs have or had
}

// jobLines maps keys to their lines of jobs.
type jobLines map[string]*jobLine

// note adds an entry of the index of jobs to its line, if the key of the line begins with the prefix.
func (lines jobLines) note(l driver.Entry, prefix string) {
	line, slot := driver.LineOf(l.Key)
	if role, _, _ := roleOf(line); role != RoleLock || !strings.HasPrefix(line, prefix) {
		return
	}
	at := lines[line]
	if at == nil {
		at = new(jobLine)
		lines[line] = at
	}
	at.entries++
	if slot {
		if at.slots == nil {
			at.slots = make(map[string]struct{})
		}
		at.slots[l.Key] = struct{}{}
	}
}

// sequencesOf reads the records of some lines, and the tasks of the jobs in front.
func (d *Desk) sequencesOf(ctx context.Context, keys []string, lines jobLines, keeper Keeper, halted bool) ([]Sequence, error) {
	var all []string
	for _, key := range keys {
		all = append(append(all, key), slices.Sorted(maps.Keys(lines[key].slots))...)
	}
	recs, err := d.inspect(ctx, "list sequences", "", all)
	if err != nil {
		return nil, err
	}
	type line struct {
		Sequence
		jobsWait bool
	}
	var found []*line
	var jobs []string
	var tasks []*Task
	for _, key := range keys {
		own := recs[:1+len(lines[key].slots)]
		recs = recs[len(own):]
		s := &line{Sequence: Sequence{Key: key, Lock: lockOf(own[0]), Waiting: own[0].Waiters}}
		held := 0 // keys and slots that jobs have
		for i, rec := range own {
			l := lockOf(rec)
			if !l.Locked() {
				continue
			}
			if s.Running++; l.Job != "" {
				held++
			}
			if i > 0 && (!s.Lock.Locked() || l.Since.Before(s.Lock.Since.Time)) {
				s.Lock = l
			}
		}
		s.jobsWait = s.Waiting > 0 && lines[key].entries > held
		switch l := s.Lock; {
		case halted && (l.Job == "" || l.State != joblock.StateParked && l.State != joblock.StateOrphaned):
			continue
		case l.Job != "" && l.Locked():
			s.Job, s.Task = l.Job, new(Task)
			jobs, tasks = append(jobs, s.Job), append(tasks, s.Task)
		case !s.jobsWait:
			continue // the entries are of locks that have ended
		}
		found = append(found, s)
	}
	d.asynq().lookUpAll(ctx, jobs, tasks)
	var sequences []Sequence
	for _, s := range found {
		if s.Task != nil {
			s.Limit = s.Task.Limit
		}
		if s.Limit == 0 && !s.jobsWait {
			continue // the key is the lock of a job that is in no sequence
		}
		s.judge(keeper)
		sequences = append(sequences, s.Sequence)
	}
	return sequences, nil
}

// judge sets State, Why and the fields that follow from the lock and the task.
func (s *Sequence) judge(keeper Keeper) {
	st := story{Lock: s.Lock, keeper: keeper, known: true, now: s.Lock.Now.Time}
	if s.Waiting > 0 {
		st.Line = []Waiter{{}} // the sentences depend only on whether there are waiters
	}
	s.Since, s.State = s.Lock.Changed, SequenceRunning
	if s.Job == "" {
		s.ofNoJob(&st)
	} else {
		st.task = *s.Task
		s.Error = s.Task.LastError
		s.ofJob(&st)
	}
	s.Actions = st.actions(st.frees())
}

// ofNoJob judges a sequence whose key is free, or is locked by a process.
func (s *Sequence) ofNoJob(st *story) {
	switch l := s.Lock; {
	case l.State == joblock.StateHeld:
		s.Why = fmt.Sprintf("%s has the key, and no job.", visibleOr(l.Holder, "A process without a label"))
	case l.Locked():
		s.State, s.Why = SequenceWaiting, "The key is kept for the owner of its token, and not for a job."
	case !st.keeps():
		s.State, s.Since, s.Why = SequenceStuck, l.EndedAt, "The key is free, jobs wait, and no keeper works to start the first of them."
	default:
		s.State, s.Since = SequenceWaiting, l.EndedAt
		s.Why = fmt.Sprintf("The key is free, and a keeper gives it to the first job within %s.", length(st.keeper.every()))
	}
}

// ofJob judges a sequence whose key is locked for a job.
func (s *Sequence) ofJob(st *story) {
	s.Why = st.doing()
	t := &st.task
	switch suspect := st.suspect(nil); {
	case st.halted():
		s.State = SequenceHalted
		if !t.LastFailedAt.IsZero() {
			s.Since = t.LastFailedAt
		}
	case suspect != "":
		s.State = SequenceStuck
		s.Why += " " + suspect
	case s.Lock.State == joblock.StateHeld:
		if long := st.long(); long != "" {
			s.State = SequenceStuck
			s.Why += " " + long
		}
	case t.Paused && !t.Ended():
		s.State = SequenceStuck
	case t.Waits && !st.keeps():
		s.State = SequenceStuck
		s.Why = "The job has its turn, but its task does not start: no keeper works to start it."
	case t.Waits:
		s.State = SequenceWaiting
		s.Why = fmt.Sprintf("The job has its turn, and a keeper starts its task within %s, if no other process does.", length(st.keeper.every()))
	default:
		s.State = SequenceWaiting
	}
}
