package ledger

import (
	"math"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// Any memo is either a usable ledger or refused.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"v":1,"spec":"@every 1m0s","last":1767236400000,"due":[{"t":1}],"running":[{"t":5,"s":"running","node":"a"}],"counts":{}}`+"\n[]"), false)
	f.Add([]byte(`{"v":1,"last":-9223372036854775808,"running":[{"s":"interrupted","k":-1}],"starts":["",""]}`), true)
	f.Add([]byte("{\"v\":1,\"last\":9223372036854775807}\nx"), true)
	f.Add([]byte(`{"v":1,"running":[{"t":1,"s":"running","i":2,"q":7},{"t":2,"c":"backfill","i":2}],"backfill":{"id":3,"from":5,"to":9000000,"c":-1},"due":[{"t":3,"w":true}]}`), false)
	f.Fuzz(func(t *testing.T, memo []byte, paused bool) {
		l, err := Decode(memo)
		if err != nil {
			return
		}
		every5, err := spec.Parse("*/5 * * * *", nil)
		if err != nil {
			t.Fatal(err)
		}
		j := &Job{Spec: every5, SpecText: every5.String(), AtStart: true, CatchUp: CatchUp{Most: 1, Window: math.MaxInt64}, KeepFailures: 3, KeepOthers: 2}
		m := Moment{Now: time.Unix(1767236400, 0), Floor: time.Unix(1767230000, 0), Node: "n"}
		if paused {
			m.Order = Order{PausedFrom: 1, Triggered: 7, TriggeredAt: 1}
		}
		for range 3 {
			l.Update(j, m, false)
			if r, _, _ := begin(l, j, m); r != nil {
				l.End(j, 0, 0, Done, m.Now, 1, nil)
				l.Update(j, m, true)
			}
			several := *j
			several.MaxConcurrent, several.Overlap.Newest = 3, true
			l.Update(&several, m, l.Full(&several))
			if l.Begin(&several, m, 1000, 5); l.Lane(1000) != nil {
				l.TakeOver(&several, m, 1000, 6)
				l.End(&several, 1000, 6, Failed, m.Now, 1, nil)
			}
			l.Behind(m.Now)
			l.Overdue(j, m.Now)
			j.NextDue(l.LastTick())
		}
		past, _ := l.History()
		if len(past) > j.KeepFailures+j.KeepOthers {
			t.Errorf("%s has %d runs in its history", l.Encode(), len(past))
		}
		again, err := Decode(l.Encode())
		if err != nil || again.Last != l.Last || len(again.Due) != len(l.Due) {
			t.Errorf("%s became %s: %v", memo, l.Encode(), err)
		}
	})
}
