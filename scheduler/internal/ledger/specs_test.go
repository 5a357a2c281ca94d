package ledger

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler/spec"
)

// Which of two nodes decides about the spec.
func TestTheLatestRegistrationDecides(t *testing.T) {
	a := every10(t)
	b := every10(t, func(j *Job) {
		j.Spec, _ = spec.Parse("@every 15m", nil)
		j.SpecText = j.Spec.String()
	})
	for name, tc := range map[string]struct {
		spec       string
		mine, last time.Duration // Moment.Since and Ledger.Since
		follows    bool
	}{
		"an older node":    {a.SpecText, -sec, 0, true},
		"at the same time": {a.SpecText, 0, 0, true},
		"a newer node":     {a.SpecText, sec, 0, false},
		"its own spec":     {b.SpecText, -sec, 0, false},
		"a new ledger":     {"", -sec, 0, false},
		"a node whose clock is a bit ahead decided": {a.SpecText, 0, hour + SetBack, true},
		"the clock was set back since":              {a.SpecText, 0, hour + SetBack + sec, false},
	} {
		l := &Ledger{Spec: tc.spec, Since: at(tc.last)}
		m := Moment{Now: start.Add(hour), Since: start.Add(tc.mine)}
		if got := l.Follows(b, m); got != tc.follows {
			t.Errorf("%s: follows %v, want %v", name, got, tc.follows)
		}
	}
}

// Only the decision of a node that is gone stops counting, and a node that no other can see decides nothing.
func TestWhoDecidesInThePlaceOfANodeThatIsGone(t *testing.T) {
	a := every10(t)
	b := every10(t, func(j *Job) {
		j.Spec, _ = spec.Parse("@every 15m", nil)
		j.SpecText = j.Spec.String()
	})
	gone := Decision{Decider{"late", "1"}, at(hour), at(hour)}
	for name, tc := range map[string]struct {
		change  func(*Ledger, *Moment)
		follows bool
	}{
		"in its place":        {func(l *Ledger, m *Moment) { m.Over = gone }, false},
		"it may be up":        {func(l *Ledger, m *Moment) {}, true},
		"another has decided": {func(l *Ledger, m *Moment) { m.Over, l.Decider.ID = gone, "2" }, true},
		"registered again":    {func(l *Ledger, m *Moment) { m.Over = gone; l.Since++ }, true},
		"another change":      {func(l *Ledger, m *Moment) { m.Over = gone; l.From++ }, true},
		"its own spec":        {func(l *Ledger, m *Moment) { m.Over, l.Spec = gone, b.SpecText }, false},
		"later":               {func(l *Ledger, m *Moment) { m.Since = start.Add(2 * hour) }, false},
		"later, unseen":       {func(l *Ledger, m *Moment) { m.Since, m.Unseen = start.Add(2*hour), true }, true},
		"later, clock back":   {func(l *Ledger, m *Moment) { l.Since = at(5 * hour) }, false},
		"from before that":    {func(l *Ledger, m *Moment) { l.Since, m.Since = at(5*hour), time.UnixMilli(0) }, true},
	} {
		l := &Ledger{Spec: a.SpecText, Since: gone.Since, From: gone.From, Last: at(hour), Decider: gone.Decider}
		m := Moment{Now: start.Add(3 * hour), Since: start, Spec: a.Spec, Node: "node", ID: "3"}
		tc.change(l, &m)
		if got := l.Follows(b, m); got != tc.follows {
			t.Errorf("%s: follows %v, want %v", name, got, tc.follows)
		}
		_, news := l.Update(b, m, false)
		if tc.follows != (l.Spec == a.SpecText) {
			t.Errorf("%s: %s is in force", name, l.Spec)
		}
		if decided := slices.ContainsFunc(news, func(n News) bool { return n.Kind == NewsSpec }); decided && l.Decision() != (Decision{Decider{"node", "3"}, m.Since.UnixMilli(), m.Now.UnixMilli()}) {
			t.Errorf("%s: decided by %+v", name, l.Decision())
		}
	}
}

// The ledger shows people what was in force before.
func TestFormerSpecs(t *testing.T) {
	l := new(Ledger)
	var specs []spec.Spec
	for i := range 4 {
		s, err := spec.Parse(fmt.Sprintf("@every %dm", i+1), nil)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, s)
		m := Moment{Now: start.Add(time.Duration(i) * hour), Floor: start, Since: start.Add(time.Duration(i) * hour)}
		if i > 0 {
			m.Spec = specs[i-1]
		}
		l.Update(&Job{Spec: s, SpecText: s.String()}, m, false)
	}
	want := []Former{{"@every 3m0s", at(3 * hour)}, {"@every 2m0s", at(2 * hour)}}
	if l.Spec != "@every 4m0s" || l.From != at(3*hour) || !slices.Equal(l.Former, want) {
		t.Errorf("%s from %d after %v", l.Spec, l.From, l.Former)
	}
}

// modelNode is a node of the model. A dead node has no job.
type modelNode struct {
	name  string
	id    string // another one after each start
	job   *Job
	over  Decision
	round time.Time // when the node looks around next
	floor time.Time
	since time.Time
	looks time.Time // when the node reads the ledger next
}

// model is nodes that share one ledger, with the job's lock and a clock.
type model struct {
	*testing.T
	dice    *rand.Rand
	now     time.Time
	memo    []byte
	held    time.Time // until when no node can get the lock
	nodes   []*modelNode
	runs    map[int64]int // the executions that nodes have begun and not taken over, by tick
	changes []Former      // of the spec, in order; the last one is in force
	since   time.Time     // the greatest since of all nodes that have read the ledger
	latest  string        // the spec of that node
	overs   int           // how often a node has decided in the place of one that was gone

	died map[string]time.Time // when the node with the ID was killed
}

// boot starts a node.
func (m *model) boot(n *modelNode, job *Job) {
	if n.job != nil {
		m.kill(n)
	}
	n.id = fmt.Sprint(n.name, " at ", m.now)
	n.job, n.floor, n.since, n.looks, n.over, n.round = job, m.now, m.now, m.now, Decision{}, m.now.Add(30*time.Second)
}

func (m *model) kill(n *modelNode) {
	n.job = nil
	m.died[n.id] = m.now
}

// up reports whether other nodes see that the node with this ID is up.
func (m *model) up(id string) bool {
	at, dead := m.died[id]
	return !dead || m.now.Sub(at) < 90*time.Second
}

// around is what a node does every 30 s: as Scheduler.lookAround.
func (m *model) around(n *modelNode) {
	n.over, n.round = Decision{}, m.now.Add(30*time.Second)
	l, err := Decode(m.memo)
	if err != nil {
		m.Fatal(err)
	}
	d := l.Decision()
	if l.Spec == "" || l.Spec == n.job.SpecText || m.up(d.ID) || m.now.Sub(d.Latest()) < 30*time.Second {
		return
	}
	for _, other := range m.nodes {
		if other.id != "" && m.up(other.id) && other.since.After(n.since) {
			return
		}
	}
	n.over, n.looks = d, m.now.Add(time.Duration(m.dice.IntN(2000))*time.Millisecond) // whatever happens in between
}

// look is what a node does when it reads the ledger: as Scheduler.consider, claim and executeDue. If dies is true, the
// node is killed with that chance at each step.
func (m *model) look(n *modelNode, kill float64) {
	dies := func() bool {
		dead := m.dice.Float64() < kill
		if dead {
			m.kill(n)
		}
		return dead
	}
	if n.since.After(m.since) {
		m.since, m.latest = n.since, n.job.SpecText
	}
	if m.now.Before(m.held) {
		n.looks = m.now.Add(time.Second)
		return
	}
	for {
		l, err := Decode(m.memo)
		if err != nil {
			m.Fatal(err)
		}
		was := l.Spec
		moment := Moment{Now: m.now, Floor: n.floor, Since: n.since, Node: n.name, ID: n.id, Over: n.over}
		overruled := l.overruled(moment)
		if was != "" {
			if moment.Spec, err = spec.Parse(was, nil); err != nil {
				m.Fatal(err)
			}
		}
		changed, _ := l.Update(n.job, moment, false)
		x, more, lost := begin(l, n.job, moment)
		if len(lost) > 0 {
			m.Fatalf("lost: %v", lost)
		}
		if !changed && !more {
			now, _ := spec.Parse(l.Spec, nil)
			n.looks = l.InForce(n.job, now).NextDue(l.LastTick()).Add(time.Duration(m.dice.IntN(50)) * time.Millisecond)
			return
		}
		if dies() { // before the write
			m.held = m.now.Add(10 * time.Second)
			return
		}
		m.memo = l.Encode()
		if l.Spec != was {
			if overruled {
				m.overs++
			}
			if was != "" {
				m.changes[len(m.changes)-1].Until = l.From
			} else if l.From != n.floor.UnixMilli() {
				m.Errorf("counts from %d, want %d", l.From, n.floor.UnixMilli())
			}
			m.changes = append(m.changes, Former{Spec: l.Spec})
		}
		if x == nil {
			continue
		}
		if x.Broken == 0 {
			m.runs[x.At]++
		}
		if dies() { // during the execution
			m.held = m.now.Add(10 * time.Second)
			return
		}
		l.End(n.job, 0, 0, Done, m.now, 1, nil)
		m.memo = l.Encode()
		if dies() { // before the release
			m.held = m.now.Add(10 * time.Second)
			return
		}
	}
}

// Three nodes over half an hour: a deploy of another spec, nodes that are killed at every step and start again with the
// old spec or the new one. Then a fourth node with the old spec starts late and is killed. Each tick of the spec in force is
// executed once, the rule of doc.go says which spec is in force, and in the end that is the new one.
func TestRollingChangeOfASpecInTheModel(t *testing.T) {
	pairs := [][2]string{
		{"@every 10s", "@every 15s"}, {"@every 1m", "* * * * *"}, {"*/7 * * * * *", "*/7 * * * * 1-5"},
		{"@every 3s", "CRON_TZ=Europe/Berlin 0 0 1 1 *"}, {"*/20 * * * * *", "5/20 * * * * *"}, {"@every 1s", "@every 1h"},
	}
	all := CatchUp{Most: MaxBacklog, Window: math.MaxInt64}
	ticks, changes, overs := 0, 0, 0
	for seed := range testkit.Size[uint64](12, 60) { // all pairs, with and without a Delay, with many deaths and with few
		m := &model{T: t, dice: rand.New(rand.NewPCG(seed, 1)), now: start.Add(time.Duration(seed) * 7777 * time.Microsecond), runs: map[int64]int{}, died: map[string]time.Time{}}
		begin := m.now
		var jobs [2]*Job
		for i, text := range pairs[seed%uint64(len(pairs))] {
			s, err := spec.Parse(text, nil)
			if err != nil {
				t.Fatal(err)
			}
			jobs[i] = &Job{Spec: s, SpecText: s.String(), CatchUp: all, Program: "shop", Fingerprint: fmt.Sprintf("%016d", i)}
			if seed%5 == 0 {
				jobs[i].Delay = time.Duration(i+1) * 1500 * time.Millisecond
			}
		}
		for i := range 3 {
			m.nodes = append(m.nodes, &modelNode{name: fmt.Sprint("node", i)})
			m.boot(m.nodes[i], jobs[0])
		}
		step := func(kill float64) {
			for _, n := range m.nodes {
				if n.job != nil && !n.round.After(m.now) {
					m.around(n)
				}
				if n.job != nil && !n.looks.After(m.now) {
					m.look(n, kill)
				}
			}
			m.now = m.now.Add(time.Duration(m.dice.IntN(200)) * time.Millisecond)
		}
		first := begin.Add(10 * time.Minute)
		upgraded := 0
		for m.now.Sub(begin) < 30*time.Minute {
			if upgraded < 3 && m.now.After(first.Add(time.Duration(upgraded)*5*time.Minute)) {
				m.boot(m.nodes[upgraded], jobs[1])
				upgraded++
			}
			for i, n := range m.nodes {
				if n.job == nil && m.dice.IntN(map[bool]int{true: 20, false: 2000}[seed%2 == 0]) == 0 {
					m.boot(n, jobs[b2i(i < upgraded)])
				}
			}
			step(0.02)
		}
		calm := func(d time.Duration) {
			for end := m.now.Add(d); m.now.Before(end); {
				step(0)
			}
		}
		inForce := func(want string) {
			t.Helper()
			if got := m.changes[len(m.changes)-1].Spec; got != want {
				t.Errorf("seed %d: %s is in force, want %s", seed, got, want)
			}
		}
		for _, n := range m.nodes { // no other node dies
			m.boot(n, jobs[1])
			m.now = m.now.Add(time.Millisecond)
		}
		calm(time.Minute)
		inForce(jobs[1].SpecText)
		late := &modelNode{name: "late"}
		m.nodes = append(m.nodes, late)
		m.boot(late, jobs[0])
		calm(time.Minute)
		inForce(jobs[0].SpecText)
		if m.latest != jobs[0].SpecText {
			t.Errorf("seed %d: the node that started last has %s", seed, m.latest)
		}
		m.kill(late)
		m.nodes = m.nodes[:3]
		calm(3 * time.Minute)
		inForce(jobs[1].SpecText)
		for _, n := range m.nodes {
			n.looks = m.now.Add(20 * time.Second)
		}
		for m.now = m.now.Add(20 * time.Second); slices.ContainsFunc(m.nodes, func(n *modelNode) bool { return !n.looks.After(m.now) }); {
			for _, n := range m.nodes {
				if !n.looks.After(m.now) {
					m.look(n, 0)
				}
			}
		}
		want := make(map[int64]int)
		from := begin
		m.changes[len(m.changes)-1].Until = m.now.UnixMilli()
		for _, c := range m.changes {
			s, err := spec.Parse(c.Spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			until := time.UnixMilli(c.Until)
			if c.Until == m.now.UnixMilli() {
				until = until.Add(-jobs[1].Delay)
			}
			for tick := range s.Ticks(from, until) {
				want[tick.UnixMilli()] = 1
			}
			from = time.UnixMilli(c.Until)
		}
		if !maps.Equal(m.runs, want) {
			t.Errorf("seed %d: %d ticks, %d of %v executed", seed, len(want), len(m.runs), m.changes)
		}
		inForce(jobs[1].SpecText)
		if n := len(m.changes) - 1; n > 40 {
			t.Errorf("seed %d: %d changes", seed, n)
		}
		ticks, changes, overs = ticks+len(want), changes+len(m.changes)-1, overs+m.overs
	}
	if t.Logf("%d ticks, %d changes of the spec, %d of them because a node had gone", ticks, changes, overs); overs <= testkit.Size(9, 60) {
		t.Error("this proves little")
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
