package scheduler

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// Whatever stands in a memo is a ledger that can be worked with, or refused.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"v":1,"spec":"@every 1m0s","last":1767236400000,"due":[{"t":1}],"run":{"t":5,"s":"running","node":"a"},"counts":{}}`+"\n[]"), false)
	f.Add([]byte(`{"v":1,"last":-9223372036854775808,"run":{"s":"interrupted","k":-1},"starts":["",""]}`), true)
	f.Add([]byte("{\"v\":1,\"last\":9223372036854775807}\nx"), true)
	f.Fuzz(func(t *testing.T, memo []byte, paused bool) {
		l, err := decodeLedger(memo)
		if err != nil {
			return
		}
		every5, err := spec.Parse("*/5 * * * *", nil)
		if err != nil {
			t.Fatal(err)
		}
		j := &job{name: "job", spec: every5, text: every5.String(), options: options{atStart: true, catchUp: catchUp{most: 1, window: forever}}}
		m := moment{now: time.Unix(1767236400, 0), floor: time.Unix(1767230000, 0), node: "n"}
		if paused {
			m.order = order{PausedAt: 1, Trigger: 7, TriggerAt: 1}
		}
		for range 3 {
			l.update(j, m, false)
			if r, _, _ := l.next(j, m); r != nil {
				l.end(StateDone, m.now, 1, nil)
				l.update(j, m, true)
			}
			l.entry(j, true, true, m.order, m.now)
			j.next(time.UnixMilli(l.Last))
		}
		past, _ := l.history()
		if len(past) > historyRuns {
			t.Errorf("%s has %d runs in its history", l.encode(), len(past))
		}
		again, err := decodeLedger(l.encode())
		if err != nil || again.Last != l.Last || len(again.Due) != len(l.Due) {
			t.Errorf("%s became %s: %v", memo, l.encode(), err)
		}
	})
}
