package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
)

func TestDoctorLooksAtOutboxes(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		ctx := t.Context()
		write := func(text []byte) {
			t.Helper()
			lock, err := (*core.Locker)(p.locks).TryAcquire(ctx, keyspace.Outboxes, core.Options{OwnKey: true, Memo: true})
			testkit.WantNil(t, "TryAcquire", err)
			testkit.WantNil(t, "WriteMemo", lock.WriteMemo(ctx, text))
			testkit.WantNil(t, "Release", lock.Release(ctx, core.Release{}))
		}
		wants := func(when string, texts ...string) {
			t.Helper()
			all, err := p.Doctor(ctx)
			testkit.WantNil(t, "Doctor", err)
			var found []string
			for _, c := range all.Checks {
				if c.Subject == "outbox" {
					found = append(found, string(c.Status)+" "+c.Node+": "+c.Found)
				}
			}
			if len(found) != len(texts) {
				t.Errorf("%s: %q, want %q", when, found, texts)
				return
			}
			for i, text := range texts {
				if !strings.Contains(found[i], text) {
					t.Errorf("%s: %q, want %q", when, found[i], text)
				}
			}
		}
		wants("without outboxes")
		r := workerstats.Relay{At: time.Now(), Holder: "app-1", Database: "postgres", Backlog: 3, Sent: 40}
		write(workerstats.Relays{"outbox": r}.Encode())
		wants("a relay that keeps up", "3 rows wait, 40 were sent by app-1")
		r.Oldest, r.Refused, r.LastError = 90_000, 2, "connection refused"
		write(workerstats.Relays{"outbox": r}.Encode())
		wants("behind, with refused rows", "3 rows wait, the first one for 1 min 30 s; the latest error of the relay: connection refused", "2 rows were refused")
		r.Unread, r.Refused = true, 0
		write(workerstats.Relays{"outbox": r}.Encode())
		wants("a database that is away", "its database does not answer the relay: connection refused")
		r.At = time.Now().Add(-5 * time.Minute)
		gone := workerstats.Relay{At: time.Now().Add(-48 * time.Hour)}
		write(workerstats.Relays{"outbox": r, "removed": gone}.Encode())
		wants("no relay", "no relay has reported for 5 min")
		write([]byte("{"))
		wants("a record that cannot be read", "cannot be read")
	})
}

func TestOutboxesHaveTheirStates(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		ctx := t.Context()
		all, err := p.Outboxes(ctx)
		testkit.WantNil(t, "Outboxes", err)
		if all.Outboxes == nil || len(all.Outboxes) != 0 {
			t.Errorf("without outboxes: %#v", all.Outboxes)
		}
		at := time.Now()
		relays := workerstats.Relays{
			"a": {At: at.Add(-30 * time.Second), Oldest: 59_000, Holder: "app-1", Database: "mysql", Backlog: 7, Sent: 5, SentAt: at.Add(-time.Hour)},
			"b": {At: at, Oldest: 61_000, LastError: "key a is taken", FailedAt: at.Add(-time.Minute)},
			"c": {At: at, Oldest: 61_000, Unread: true},
			"d": {At: at.Add(-41 * time.Second), Unread: true},
			"e": {At: at.Add(-25 * time.Hour)},
		}
		lock, err := (*core.Locker)(p.locks).TryAcquire(ctx, keyspace.Outboxes, core.Options{OwnKey: true, Memo: true})
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "WriteMemo", lock.WriteMemo(ctx, relays.Encode()))
		testkit.WantNil(t, "Release", lock.Release(ctx, core.Release{}))
		all, err = p.Outboxes(ctx)
		testkit.WantNil(t, "Outboxes", err)
		var got []string
		for _, o := range all.Outboxes {
			got = append(got, o.Name+" "+string(o.State))
		}
		if text := strings.Join(got, ", "); text != "a well, b behind, c unread, d unserved" {
			t.Errorf("outboxes %s", text)
		}
		if a := all.Outboxes[0]; a.Waiting != 7 || a.Relay != "app-1" || a.Sent != 5 || all.Now.Sub(a.LastSent.Time).Round(time.Minute) != time.Hour {
			t.Errorf("outbox %+v", a)
		}
		// An error may name a key.
		if all.Outboxes[1].LastError == "" {
			t.Error("an operator who may see all keys does not see the error")
		}
		all, err = p.Outboxes(SeenBy(ctx, Viewer{Key: func(string) bool { return false }}))
		testkit.WantNil(t, "Outboxes", err)
		if all.Outboxes[1].LastError != "" {
			t.Errorf("a caller with prefixes sees the error %q", all.Outboxes[1].LastError)
		}
	})
}
