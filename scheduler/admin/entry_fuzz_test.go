package admin

import (
	"slices"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/spec"
)

// Whatever ledger a memo holds, it can be shown.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"v":1,"spec":"@every 1m0s","last":1767236400000,"due":[{"t":1}],"running":[{"t":5,"s":"running","node":"a"}],"counts":{}}`+"\n[]"), true, true)
	f.Add([]byte(`{"v":1,"last":-9223372036854775808,"running":[{"s":"interrupted","k":-1}],"starts":["",""]}`), false, true)
	f.Add([]byte("{\"v\":1,\"last\":9223372036854775807}\n[{\"t\":9223372036854775807,\"e\":-1}]"), true, false)
	f.Add([]byte(`{"v":1,"spec":"@every 1m0s","last":1,"running":[{"t":1,"s":"running","node":"a","i":2},{"t":2,"s":"interrupted","i":2}],"counts":{}}`), true, true)
	f.Fuzz(func(t *testing.T, memo []byte, here, free bool) {
		l, err := ledger.Decode(memo)
		if err != nil {
			return
		}
		every5, err := spec.Parse("*/5 * * * *", nil)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1767236400, 0)
		inLanes := slices.ContainsFunc(l.Running, func(x ledger.Execution) bool { return x.Lane > 0 })
		for _, rules := range []ledger.Job{{Spec: every5, SpecText: every5.String()}, {SpecText: l.Spec}} {
			e, _ := showLedger("job", l, &rules, here, free, ledger.Order{Triggered: 7, TriggeredAt: 1}, now)
			if e.Name != "job" || e.Behind < 0 || free && !inLanes && e.Latest.State == scheduler.Running {
				t.Errorf("%s is shown as %+v", memo, e)
			}
		}
	})
}
