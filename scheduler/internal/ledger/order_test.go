package ledger

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

// Every sequence of requests, and which of the ticks at 10, 20, … 60 s are then skipped.
func TestPauseAndResume(t *testing.T) {
	type step struct {
		what string
		at   time.Duration
		seen time.Duration // up to which tick a node has come by then
		took bool
	}
	for name, tc := range map[string]struct {
		steps  []step
		paused bool
		skips  []int
	}{
		"nothing":                {},
		"resume without a pause": {steps: []step{{"resume", 15 * sec, 0, false}}},
		"pause":                  {steps: []step{{"pause", 15 * sec, 0, true}}, paused: true, skips: []int{20, 30, 40, 50, 60}},
		"pause twice":            {steps: []step{{"pause", 15 * sec, 0, true}, {"pause", 35 * sec, 0, false}}, paused: true, skips: []int{20, 30, 40, 50, 60}},
		"a new note":             {steps: []step{{"pause", 15 * sec, 0, true}, {"note", 35 * sec, 0, true}, {"note", 45 * sec, 0, false}, {"no note", 55 * sec, 0, false}}, paused: true, skips: []int{20, 30, 40, 50, 60}},
		"at the instant":         {steps: []step{{"pause", 20 * sec, 0, true}, {"resume", 40 * sec, 0, true}}, skips: []int{30, 40}},
		"resume twice":           {steps: []step{{"pause", 15 * sec, 0, true}, {"resume", 35 * sec, 0, true}, {"resume", 55 * sec, 0, false}}, skips: []int{20, 30}},
		// No node has come by, so what the first pause skipped must not count as missed.
		"again before a node saw it": {steps: []step{{"pause", 15 * sec, 0, true}, {"resume", 25 * sec, 0, true}, {"pause", 45 * sec, 10 * sec, true}}, paused: true, skips: []int{20, 30, 40, 50, 60}},
		"again after a node saw it":  {steps: []step{{"pause", 15 * sec, 0, true}, {"resume", 25 * sec, 0, true}, {"pause", 45 * sec, 40 * sec, true}}, paused: true, skips: []int{50, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			var o Order
			for _, s := range tc.steps {
				var took bool
				switch now := start.Add(s.at); s.what {
				case "pause":
					took = o.Pause(&Ledger{Last: at(s.seen)}, now, "me", "why")
				case "note":
					took = o.Pause(&Ledger{Last: at(s.seen)}, now, "her", "another")
					if o.By != "her" || o.Note != "another" {
						t.Errorf("after a new note: %+v", o)
					}
				case "no note":
					took = o.Pause(&Ledger{Last: at(s.seen)}, now, "him", "")
				case "resume":
					took = o.Resume(now, "you", "well")
				}
				if took != s.took {
					t.Errorf("%s at %s changes something: %v", s.what, s.at, took)
				}
			}
			var skips []int
			for i := 10; i <= 60; i += 10 {
				if o.Skips(start.Add(time.Duration(i) * sec)) {
					skips = append(skips, i)
				}
			}
			if !slices.Equal(skips, tc.skips) || o.Paused() != tc.paused {
				t.Errorf("paused %v, skips %v, want %v, %v", o.Paused(), skips, tc.paused, tc.skips)
			}
		})
	}
}

// Tidy removes the orders that were carried out, and no others.
func TestTidy(t *testing.T) {
	l := &Ledger{Version: version, Last: at(2 * sec), Resumed: Resumed{At: at(0)}, Triggered: 5}
	for name, tc := range map[string]struct {
		order Order
		keep  bool
	}{
		"paused":                      {Order{PausedFrom: at(-hour)}, true},
		"resumed, and a node saw it":  {Order{PausedFrom: at(-hour), PausedUntil: at(0)}, false},
		"resumed, and no node did":    {Order{PausedFrom: at(-hour), PausedUntil: at(3 * sec)}, true},
		"resumed, note not on record": {Order{PausedFrom: at(-hour), PausedUntil: at(sec)}, true},
		"triggered and taken up":      {Order{Triggered: 5}, false},
		"triggered and not taken up":  {Order{Triggered: 6}, true},
	} {
		o := Orders{Jobs: map[string]Order{"job": tc.order, "unread": {}}}
		o.Tidy(map[string]*Ledger{"job": l})
		if _, kept := o.Jobs["job"]; kept != tc.keep {
			t.Errorf("%s: kept %v, want %v", name, kept, tc.keep)
		}
		if _, kept := o.Jobs["unread"]; !kept {
			t.Errorf("%s: an order without a ledger is gone", name)
		}
	}
}

func TestOrdersAreReadBack(t *testing.T) {
	o, err := DecodeOrders(nil)
	if err != nil || o.Newest() != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	a := Order{Fence: 7}
	a.Trigger(nil, start)
	a.Pause(new(Ledger), start, "me", "why")
	o.Jobs["<a>"], o.Jobs["b"] = a, Order{Fence: 3}
	again, err := DecodeOrders(o.Encode())
	if err != nil || !reflect.DeepEqual(again, o) || again.Newest() != 7 {
		t.Errorf("%+v came back as %+v, %v", o, again, err)
	}
	if got := again.Jobs["<a>"]; got.Triggered != 7 || got.TriggeredAt != at(0) {
		t.Errorf("the trigger is %+v", got)
	}
	for _, memo := range []string{"page 7", `{"v":2}`, `{"jobs":{}}x`} {
		if _, err := DecodeOrders([]byte(memo)); err == nil {
			t.Errorf("%s: no error", fmt.Sprintf("%.20q", memo))
		}
	}
}
