package core

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// holdingStates are the states, some of them with a call under way, and how they come about.
var holdingStates = []struct {
	name string
	make func(h *holding)
}{
	{"held", func(*holding) {}},
	{"asking", func(h *holding) { h.renewalDue(at(10 * time.Second)) }}, // held, a renewal is under way
	{"owed", func(h *holding) { // held, the answer to a Park is owed
		h.parkBegun("park", "p0", "q/0", time.Minute, time.Second)
		h.parkAnswered("park", "q/0", silence)
	}},
	{"undoing", func(h *holding) { // owed, and a renewal is under way that takes the Park back
		h.parkBegun("park", "p0", "q/0", time.Minute, time.Second)
		h.parkAnswered("park", "q/0", silence)
		h.renewalDue(at(10 * time.Second))
	}},
	{"shared", func(h *holding) { h.ownerShared() }},                    // held, others may know the owner
	{"stopped", func(h *holding) { h.renewingStopped() }},               // held, no longer renewed
	{"capped", func(h *holding) { h.renewUntil = at(9 * time.Second) }}, // held, renewed for 9 s
	{"pushed", func(h *holding) { h.doubted(10) }},                      // held, said to be taken away
	{"checking", func(h *holding) { h.doubted(10); h.verifyBegun() }},   // held, a check is under way
	{"resumed", func(h *holding) { h.resumed, h.resumedBy, h.reserve, h.job = true, "q/9", time.Minute, "q/9" }},
	{"parking", func(h *holding) { h.parkBegun("park", "p0", "q/0", time.Minute, time.Second) }},
	{"parked", func(h *holding) {
		h.parkBegun("park", "p0", "q/0", time.Minute, time.Second)
		h.parkAnswered("park", "q/0", ok(11))
	}},
	{"reclaiming", func(h *holding) { // parked, the answer to a Reclaim is owed
		h.parkBegun("park", "p0", "q/0", time.Minute, time.Second)
		h.parkAnswered("park", "q/0", ok(11))
		h.reclaimBegun("reclaim", "c0", at(11*time.Second), time.Second)
	}},
	{"released", func(h *holding) { h.releaseBegun("release", driver.ReleaseRequest{Nonce: "r0"}, 0) }},
	{"lost", func(h *holding) { h.timePassed(at(time.Minute)) }},
	{"late", func(h *holding) { // lost while a Park was under way
		h.parkBegun("park", "p0", "q/0", time.Minute, time.Second)
		h.timePassed(at(time.Minute))
	}},
}

// holdingEvents are the events, and what each asks for in addition to the change of state.
var holdingEvents = []struct {
	name string
	feed func(h *holding) []any
}{
	{"timePassed, in time", func(h *holding) []any { return []any{h.timePassed(at(25499 * time.Millisecond))} }},
	{"timePassed, past the deadline", func(h *holding) []any { return []any{h.timePassed(at(25500 * time.Millisecond))} }},
	{"renewalDue, too early", func(h *holding) []any { return due(h.renewalDue(at(9899 * time.Millisecond))) }},
	{"renewalDue", func(h *holding) []any { return due(h.renewalDue(at(9900 * time.Millisecond))) }},
	{"renewalAsked", func(h *holding) []any { return asked(h.renewalAsked("renew")) }},
	{"renewalAnswered, OK", func(h *holding) []any { return pair(h.renewalAnswered(answerTo(h, 10, 11, ok(h.fence)))) }},
	{"renewalAnswered, OK and late", func(h *holding) []any { return pair(h.renewalAnswered(answerTo(h, 10, 21, ok(h.fence)))) }},
	{"renewalAnswered, overtaken", func(h *holding) []any { return pair(h.renewalAnswered(answerTo(h, -1, 1, ok(h.fence)))) }},
	{"renewalAnswered, Park taken back", func(h *holding) []any { return pair(h.renewalAnswered(answerTo(h, 10, 11, ok(11)))) }},
	{"renewalAnswered, refused", func(h *holding) []any { return pair(h.renewalAnswered(answerTo(h, 10, 11, refused))) }},
	{"renewalAnswered, earlier term refused", func(h *holding) []any {
		a := answerTo(h, 10, 11, refused)
		a.term.Fence--
		return pair(h.renewalAnswered(a))
	}},
	{"renewalAnswered, refused from before the Park", func(h *holding) []any {
		a := renewalAnswer{op: "renew", term: driver.Term{Key: "key", Owner: "owner", Fence: 10}, sent: at(0), now: at(time.Second), reply: refused}
		return pair(h.renewalAnswered(a))
	}},
	{"renewalAnswered, no answer", func(h *holding) []any { return pair(h.renewalAnswered(answerTo(h, 10, 13, silence))) }},
	{"renewingStopped", func(h *holding) []any { h.renewingStopped(); return nil }},
	{"ownerShared", func(h *holding) []any { h.ownerShared(); return nil }},
	{"remembered", func(h *holding) []any { h.remembered(time.Hour); return nil }},
	{"parkBegun", func(h *holding) []any {
		req, wait, err := h.parkBegun("park", "p1", "q/1", time.Hour, 20*time.Second)
		if wait {
			return []any{"waits"}
		}
		return asked(req, err)
	}},
	{"parkBegun, briefly", func(h *holding) []any {
		req, wait, err := h.parkBegun("park", "p1", "q/1", 10*time.Second, 20*time.Second)
		if wait {
			return []any{"waits"}
		}
		return asked(req, err)
	}},
	{"parkAnswered, OK", func(h *holding) []any { return pair(h.parkAnswered("park", "q/0", ok(11))) }},
	{"parkAnswered, refused", func(h *holding) []any { return pair(h.parkAnswered("park", "q/0", refused)) }},
	{"parkAnswered, no answer", func(h *holding) []any { return pair(h.parkAnswered("park", "q/0", silence)) }},
	{"reclaimBegun", func(h *holding) []any {
		req, sent, err := h.reclaimBegun("reclaim", "c1", at(12*time.Second), 20*time.Second)
		return append(asked(req, err), since(sent))
	}},
	{"reclaimBegun, a TTL later", func(h *holding) []any {
		req, sent, err := h.reclaimBegun("reclaim", "c1", at(41*time.Second), 20*time.Second)
		return append(asked(req, err), since(sent))
	}},
	{"reclaimAnswered, OK", func(h *holding) []any {
		return pair(h.reclaimAnswered("reclaim", at(12*time.Second), at(13*time.Second), ok(12)))
	}},
	{"reclaimAnswered, too late", func(h *holding) []any {
		return pair(h.reclaimAnswered("reclaim", at(12*time.Second), at(37500*time.Millisecond), ok(12)))
	}},
	{"reclaimAnswered, refused", func(h *holding) []any {
		return pair(h.reclaimAnswered("reclaim", at(12*time.Second), at(13*time.Second), driver.Reply{Outcome: driver.OutcomeBusy}))
	}},
	{"reclaimAnswered, no answer", func(h *holding) []any {
		return pair(h.reclaimAnswered("reclaim", at(12*time.Second), at(13*time.Second), silence))
	}},
	{"releaseBegun", func(h *holding) []any {
		return asked(h.releaseBegun("release", driver.ReleaseRequest{Nonce: "r1", Brief: time.Second}, 20*time.Second))
	}},
	{"releaseBegun, done", func(h *holding) []any {
		return asked(h.releaseBegun("release", driver.ReleaseRequest{Nonce: "r1", Reason: "ok", Job: "q/1", Done: true, Brief: time.Hour}, time.Hour))
	}},
	{"releaseAnswered, OK", func(h *holding) []any { return three(h.releaseAnswered("release", releasing{}, ok(0), nil)) }},
	{"releaseAnswered, refused", func(h *holding) []any { return three(h.releaseAnswered("release", releasing{}, refused, nil)) }},
	{"releaseAnswered, forced before", func(h *holding) []any {
		return three(h.releaseAnswered("release", releasing{}, driver.Reply{Outcome: driver.OutcomeReleased}, nil))
	}},
	{"releaseAnswered, no answer", func(h *holding) []any {
		return three(h.releaseAnswered("release", releasing{}, silence, ErrUnavailable))
	}},
	{"releaseAnswered, lost before", func(h *holding) []any {
		return three(h.releaseAnswered("release", releasing{lost: ErrLost}, ok(0), nil))
	}},
	{"releaseUndone", func(h *holding) []any {
		if h.releaseUndone() {
			return []any{"held again"}
		}
		return nil
	}},
	{"doubted", func(h *holding) []any { return checked(10, h.doubted(10)) }},
	{"doubted, another term", func(h *holding) []any { return checked(9, h.doubted(9)) }},
	{"verifyBegun", func(h *holding) []any { return checked(h.verifyBegun()) }},
	{"verified, ours", func(h *holding) []any { return []any{h.verified("watch", 10, record(10, driver.StateHeld))} }},
	{"verified, forced", func(h *holding) []any {
		r := record(10, driver.StateFree)
		r.Ended, r.Reason = driver.EndedForced, "stuck"
		return []any{h.verified("watch", 10, r)}
	}},
	{"verified, lapsed", func(h *holding) []any { return []any{h.verified("watch", 10, record(10, driver.StateOrphaned))} }},
	{"verified, another's", func(h *holding) []any {
		return []any{h.verified("watch", 10, driver.Record{Owner: "other", Fence: 12, State: driver.StateHeld})}
	}},
	{"verified, another term", func(h *holding) []any { return []any{h.verified("watch", 9, record(9, driver.StateFree))} }},
	{"lockerClosed", func(h *holding) []any { return []any{h.lockerClosed()} }},
}

func due(req driver.RenewRequest, send bool) []any {
	if !send {
		return nil
	}
	return []any{req}
}

// asked is what is to be sent, or why nothing is.
func asked[T any](req T, err error) []any {
	if err != nil {
		return []any{err}
	}
	return []any{req}
}

func three(tell event.Kind, why, err error) []any {
	var told []any
	if tell != 0 {
		told = append(told, "emits "+tell.String())
	}
	if why != nil {
		told = append(told, "why:"+errorText(why))
	}
	return append(told, err)
}

func since(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return "trusted from " + text(t)
}

func checked(fence int64, check bool) []any {
	if !check {
		return nil
	}
	return []any{fmt.Sprint("check ", fence)}
}

func pair[T any](v T, err error) []any { return []any{v, err} }

func record(fence int64, s State) driver.Record {
	return driver.Record{Key: "key", Owner: "owner", Fence: fence, State: s}
}

// answerTo is an answer to a renewal of the present term: to one that was due, where
// one is under way.
func answerTo(h *holding, sent, now int, r driver.Reply) renewalAnswer {
	a := renewalAnswer{
		op: "renew", term: h.term(), reply: r,
		sent: at(time.Duration(sent) * time.Second), now: at(time.Duration(now) * time.Second),
	}
	switch {
	case h.underWay:
		a.again = at(15 * time.Second)
	case a.term.Grant != "":
		h.takingBack++ // it was asked for
	}
	return a
}

func TestEveryEventInEveryState(t *testing.T) {
	want := parseTable(t)
	for _, e := range holdingEvents {
		for _, s := range holdingStates {
			cell := e.name + " | " + s.name
			h := testHolding()
			s.make(&h)
			before := h
			out := e.feed(&h)
			if h.terms != before.terms {
				t.Errorf("%s changes the terms", cell)
			}
			switch got := show(&before, &h, out); {
			case want[cell] == "":
				t.Errorf("%s has no expectation; it is\n\t%s", cell, got)
			case got != want[cell]:
				t.Errorf("%s is\n\t%s\nwant\n\t%s", cell, got, want[cell])
			}
			delete(want, cell)
		}
	}
	for cell := range want {
		t.Errorf("%s is no cell of the table", cell)
	}
}

// parseTable reads holdingTable: events, and indented under each one the states with
// what the event does in them.
func parseTable(t *testing.T) map[string]string {
	t.Helper()
	cells := make(map[string]string)
	var name string
	for line := range strings.Lines(holdingTable) {
		line = strings.TrimRight(line, "\n")
		states, does, found := strings.Cut(strings.TrimPrefix(line, "\t"), ": ")
		if !strings.HasPrefix(line, "\t") {
			name = line
			continue
		}
		if !found {
			t.Fatalf("a line without a colon: %q", line)
		}
		for _, state := range strings.Fields(states) {
			cell := name + " | " + state
			if cells[cell] != "" {
				t.Errorf("%s stands twice in the table", cell)
			}
			cells[cell] = does
		}
	}
	return cells
}

const holdingTable = `timePassed, in time
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: -
timePassed, past the deadline
	held shared asking owed undoing capped pushed checking resumed parking: state=lost over=ErrLost emits lost lost:ErrLost moved
	stopped: state=lost over=ErrLost(not renewed) emits lost lost:ErrLost(not renewed) moved
	parked reclaiming released lost late: -
renewalDue, too early
	held shared asking owed undoing stopped pushed checking resumed parking parked reclaiming released lost late: -
	capped: renewing=false
renewalDue
	held shared pushed checking: underWay=true →renew 10
	asking undoing stopped parking parked reclaiming released lost late: -
	owed: underWay=true takingBack=1 →renew 10/p0
	capped: renewing=false
	resumed: underWay=true →renew 10 reserve 1m0s back q/9
renewalAsked
	held shared asking stopped capped pushed checking: →renew 10
	owed: takingBack=1 →renew 10/p0
	undoing: takingBack=2 →renew 10/p0
	resumed: →renew 10 reserve 1m0s back q/9
	parking parked reclaiming: ErrNotOwner
	released: ErrAlreadyReleased
	lost late: ErrLost
renewalAnswered, OK
	held shared owed stopped capped pushed checking resumed parking: trust=+36s renewAt=+20s moved
	asking: trust=+36s renewAt=+20s underWay=false moved
	undoing: trust=+36s renewAt=+20s underWay=false takingBack=0 moved
	parked reclaiming released: -
	lost late: ErrLost
renewalAnswered, OK and late
	held shared owed capped pushed checking resumed parking: trust=+36s renewAt=+20s emits renewed late by 11s moved
	asking: trust=+36s renewAt=+20s underWay=false emits renewed late by 11s moved
	undoing: trust=+36s renewAt=+20s underWay=false takingBack=0 emits renewed late by 11s moved
	stopped: trust=+36s renewAt=+20s moved
	parked reclaiming released: -
	lost late: ErrLost
renewalAnswered, overtaken
	held shared owed stopped capped pushed checking resumed parking: moved
	asking: underWay=false moved
	undoing: underWay=false takingBack=0 moved
	parked reclaiming released: -
	lost late: ErrLost
renewalAnswered, Park taken back
	held shared stopped capped pushed checking resumed: fence=11 trust=+36s renewAt=+20s moved
	asking: fence=11 trust=+36s renewAt=+20s underWay=false moved
	owed parking: fence=11 trust=+36s renewAt=+20s parkNonce=none moved
	undoing: fence=11 trust=+36s renewAt=+20s underWay=false takingBack=0 parkNonce=none moved
	parked reclaiming released: -
	lost late: ErrLost
renewalAnswered, refused
	held shared owed stopped capped pushed checking resumed: state=lost over=ErrLost emits lost lost:ErrLost moved ErrLost
	asking: state=lost over=ErrLost underWay=false emits lost lost:ErrLost moved ErrLost
	undoing: state=lost over=ErrLost underWay=false takingBack=0 emits lost lost:ErrLost moved ErrLost
	parking: moved ErrNotOwner
	parked reclaiming released lost late: ErrLost
renewalAnswered, earlier term refused
	held shared owed stopped capped pushed checking resumed parking: moved ErrNotOwner
	asking: underWay=false moved ErrNotOwner
	undoing: underWay=false takingBack=0 moved ErrNotOwner
	parked reclaiming released lost late: ErrNotOwner
renewalAnswered, refused from before the Park
	held shared asking stopped capped pushed checking resumed: state=lost over=ErrLost emits lost lost:ErrLost moved ErrLost
	owed undoing parking: moved ErrNotOwner
	parked reclaiming late: ErrNotOwner
	released lost: ErrLost
renewalAnswered, no answer
	held shared owed stopped capped pushed checking resumed parking: moved ErrUnavailable
	asking: renewAt=+15s underWay=false moved ErrUnavailable
	undoing: renewAt=+15s underWay=false takingBack=0 moved ErrUnavailable
	parked reclaiming released lost late: ErrUnavailable
renewingStopped
	held shared asking owed undoing capped pushed checking resumed parking parked reclaiming released lost late: renewing=false
	stopped: -
ownerShared
	held asking owed undoing stopped capped pushed checking resumed parking released lost late: shared=true
	shared parked reclaiming: -
remembered
	held asking owed undoing stopped capped pushed checking resumed parking released lost late: retain=1h0m0s shared=true
	shared parked reclaiming: retain=1h0m0s
parkBegun
	held shared asking stopped capped pushed checking resumed: state=parking parkNonce=p1 parkReserve=1h0m0s →park 10 as p1 for q/1 1h0m0s grace 20s
	owed: state=parking parkReserve=1h0m0s →park 10/p0 as p0 for q/1 1h0m0s grace 20s
	undoing: waits
	parking parked reclaiming: ErrNotOwner
	released: ErrAlreadyReleased
	lost late: ErrLost
parkBegun, briefly
	held shared asking stopped capped pushed checking resumed: state=parking parkNonce=p1 parkReserve=10s →park 10 as p1 for q/1 10s grace 5s
	owed: state=parking →park 10/p0 as p0 for q/1 10s grace 5s
	undoing: waits
	parking parked reclaiming: ErrNotOwner
	released: ErrAlreadyReleased
	lost late: ErrLost
parkAnswered, OK
	shared: state=parked fence=11 job=q/0 over=ErrNotOwner emits parked moved
	held asking stopped capped pushed checking resumed released: state=parked fence=11 job=q/0 over=ErrNotOwner shared=true emits parked moved
	owed undoing parking: state=parked fence=11 job=q/0 over=ErrNotOwner shared=true parkNonce=none emits parked moved
	parked reclaiming: emits parked moved
	lost: state=parked fence=11 job=q/0 over=ErrNotOwner shared=true emits parked moved found
	late: state=parked fence=11 job=q/0 over=ErrNotOwner shared=true parkNonce=none emits parked moved found
parkAnswered, refused
	held shared asking owed undoing stopped capped pushed checking resumed parking: state=lost over=ErrLost emits lost lost:ErrLost moved ErrLost
	parked reclaiming released lost late: ErrLost
parkAnswered, no answer
	held shared asking owed undoing stopped capped pushed checking resumed parked reclaiming released lost late: moved ErrUnavailable
	parking: state=held moved ErrUnavailable
reclaimBegun
	held shared asking owed undoing stopped capped pushed checking resumed parking released lost late: ErrInvalid
	parked: reclaimNonce=c1 reclaimSent=+12s →reclaim 11 as c1 from q/0 trusted from +12s
	reclaiming: →reclaim 11 as c0 from q/0 trusted from +11s
reclaimBegun, a TTL later
	held shared asking owed undoing stopped capped pushed checking resumed parking released lost late: ErrInvalid
	parked reclaiming: reclaimNonce=c1 reclaimSent=+41s →reclaim 11 as c1 from q/0 trusted from +41s
reclaimAnswered, OK
	held shared asking owed undoing stopped capped pushed checking resumed: -
	parking: ErrNotOwner
	parked: state=held fence=12 since=+13s trust=+38s job=none over=none renewAt=+22s parkReserve=0s emits reclaimed moved
	reclaiming: state=held fence=12 since=+13s trust=+38s job=none over=none renewAt=+22s parkReserve=0s reclaimNonce=none reclaimSent=never emits reclaimed moved
	released: ErrAlreadyReleased
	lost late: ErrLost
reclaimAnswered, too late
	held shared asking owed undoing stopped capped pushed checking resumed: -
	parking: ErrNotOwner
	parked: ErrUnavailable
	reclaiming: reclaimNonce=none reclaimSent=never ErrUnavailable
	released: ErrAlreadyReleased
	lost late: ErrLost
reclaimAnswered, refused
	held shared asking owed undoing stopped capped pushed checking resumed parking parked released lost late: ErrBusy
	reclaiming: reclaimNonce=none reclaimSent=never ErrBusy
reclaimAnswered, no answer
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: ErrUnavailable
releaseBegun
	shared: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10 as r1 until +30s
	held asking stopped capped pushed checking: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10 as r1 brief 1s until +30s
	owed undoing: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10/p0 as r1 until +90s stray
	resumed: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10 as r1 until +50s
	parking parked reclaiming: ErrNotOwner
	released: ErrAlreadyReleased
	lost: releaseNonce=r1 →release 10 as r1 brief 1s until +30s ErrLost
	late: releaseNonce=r1 →release 10/p0 as r1 until +90s stray ErrLost
releaseBegun, done
	shared: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10 as r1 reason ok done q/1 until +30s
	held asking stopped capped pushed checking: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10 as r1 brief 1m0s reason ok done q/1 until +30s
	owed undoing: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10/p0 as r1 reason ok done q/1 until +3630s stray
	resumed: state=released over=ErrAlreadyReleased releaseNonce=r1 →release 10 as r1 reason ok done q/1 until +3630s
	parking parked reclaiming: ErrNotOwner
	released: ErrAlreadyReleased
	lost: releaseNonce=r1 →release 10 as r1 brief 1m0s reason ok done q/1 until +30s ErrLost
	late: releaseNonce=r1 →release 10/p0 as r1 reason ok done q/1 until +3630s stray ErrLost
releaseAnswered, OK
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: emits released
releaseAnswered, refused
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: emits lost why:ErrLost ErrLost
releaseAnswered, forced before
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: emits lost why:ErrLost ErrAlreadyReleased
releaseAnswered, no answer
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: emits released why:ErrUnavailable ErrUnavailable
releaseAnswered, lost before
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: ErrLost
releaseUndone
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming lost late: -
	released: state=held over=none held again
doubted
	held shared asking owed undoing stopped capped resumed: doubt=doubted check 10
	pushed parking parked reclaiming released lost late: -
	checking: doubt=doubted
doubted, another term
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: -
verifyBegun
	held shared asking owed undoing stopped capped resumed parking parked reclaiming released lost late: -
	pushed: doubt=checking check 10
	checking: doubt=no
verified, ours
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: -
verified, forced
	held shared asking stopped capped pushed checking resumed: state=lost over=ErrLost emits lost lost:ErrLost moved
	owed undoing parking parked reclaiming released lost late: -
verified, lapsed
	held shared asking stopped capped pushed checking resumed: state=lost over=ErrLost emits lost lost:ErrLost moved
	owed undoing parking parked reclaiming released lost late: -
verified, another's
	held shared asking stopped capped pushed checking resumed: state=lost over=ErrLost emits lost lost:ErrLost moved
	owed undoing parking parked reclaiming released lost late: -
verified, another term
	held shared asking owed undoing stopped capped pushed checking resumed parking parked reclaiming released lost late: -
lockerClosed
	held shared asking owed undoing stopped capped pushed checking resumed parking: state=lost over=ErrLost emits lost lost:ErrLost moved
	parked reclaiming released lost late: -
`

// Every method of a holding is an event of the table, unless it is named here.
func TestEveryEventIsInTheTable(t *testing.T) {
	inner := []string{
		"begin", "extend", "live", "settled", "expired", "next", "refusal", "handedOver", "lostBy", "lose", "term", "renewal",
	}
	file, err := parser.ParseFile(token.NewFileSet(), "holding.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, isFunc := d.(*ast.FuncDecl)
		if !isFunc || f.Recv == nil || slices.Contains(inner, f.Name.Name) {
			continue
		}
		star, isPointer := f.Recv.List[0].Type.(*ast.StarExpr)
		if !isPointer || star.X.(*ast.Ident).Name != "holding" {
			continue
		}
		if !slices.ContainsFunc(holdingEvents, func(e struct {
			name string
			feed func(h *holding) []any
		}) bool {
			name, _, _ := strings.Cut(e.name, ",")
			return name == f.Name.Name
		}) {
			t.Errorf("%s is in no row of the table", f.Name.Name)
		}
	}
}
