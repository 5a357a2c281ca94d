package cli

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
)

func TestOutbox(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.do("outbox", "--check").wants(0, "no relay of an outbox has reported in the last day")
	report := func(r workerstats.Relays) {
		t.Helper()
		lock, err := (*core.Locker)(q.locks).TryAcquire(t.Context(), keyspace.Outboxes, core.Options{OwnKey: true, Memo: true})
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "WriteMemo", lock.WriteMemo(t.Context(), r.Encode()))
		testkit.WantNil(t, "Release", lock.Release(t.Context(), core.Release{}))
	}
	now := time.Now()
	well := workerstats.Relay{At: now, Began: now.Add(-time.Hour), Holder: "shop-1:77", Database: "postgres", Sent: 40, SentAt: now.Add(-5 * time.Minute)}
	report(workerstats.Relays{"outbox": well})
	q.do("outbox", "--check").wants(0, "NAME", "STATE", "outbox", "well", "shop-1:77", "5m", "postgres")
	late := well
	late.Backlog, late.Oldest, late.LastError, late.FailedAt = 3, 90_000, "redis: connection refused", now.Add(-7*time.Minute)
	report(workerstats.Relays{"outbox": well, "orders": late})
	q.do("outbox").wants(0, "orders", "behind", "1m30s", "7m", "connection refused")
	q.do("outbox", "--check").wants(exitNo, "these outboxes have a problem or refused rows: orders")
	var items struct{ Items []ops.Outbox }
	wantJSON(t, "outbox.json", q.do("outbox", "-o", "json").wants(0).out, &items)
	if len(items.Items) != 2 || items.Items[0].Name != "orders" || items.Items[0].State != ops.OutboxBehind || items.Items[0].Waiting != 3 {
		t.Errorf("items %+v", items.Items)
	}
}
