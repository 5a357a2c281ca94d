package redisstore

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestAValueAtTheKeyOfARateIsLeftAlone(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	m := redistest.MiniServer(t)
	s := harness(t, redistest.MiniClient(t, m), keyspace.DefaultPrefix).Store
	name := keyspace.DefaultPrefix + "%%rate:key"
	if err := m.Set(name, "something else"); err != nil {
		t.Fatal(err)
	}
	got, err := s.Admit(t.Context(), []driver.AdmitRequest{{Key: "key", ID: "a", Starts: 1, Period: driver.MinPeriod}})
	if err != nil || got[0].Outcome != driver.OutcomeForeign {
		t.Errorf("Admit: %+v, %v; want foreign", got, err)
	}
	if v, err := m.Get(name); v != "something else" {
		t.Errorf("the value is %q, %v", v, err)
	}
}

// The record of a rate is kept until its last start counts no longer, and a claim until an hour after its time.
func TestHowLongARateIsKept(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	m := redistest.MiniServer(t)
	s := must(newStore(redistest.MiniClient(t, m), nil))
	defer s.Close()
	begin := time.Unix(1_800_000_000, 0)
	admit := func(after time.Duration, req driver.AdmitRequest) driver.AdmitReply {
		t.Helper()
		m.SetTime(begin.Add(after))
		req.Key = "key"
		got, err := s.Admit(t.Context(), []driver.AdmitRequest{req})
		if err != nil || got[0].Outcome != driver.OutcomeOK {
			t.Fatalf("%+v: %+v, %v", req, got, err)
		}
		return got[0]
	}
	const period = 10 * time.Minute
	admit(0, driver.AdmitRequest{ID: "a", Starts: 2, Period: period})
	if left := m.TTL(keyspace.DefaultPrefix + "%%rate:key"); left < period || left > period+time.Second {
		t.Errorf("after a start the record is kept for %s, want %s", left, period)
	}
	admit(0, driver.AdmitRequest{Kind: driver.AdmitLater, ID: "b", Delay: time.Minute})
	for _, row := range []struct {
		after time.Duration
		want  int
	}{{time.Hour, 1}, {time.Hour + time.Minute + time.Second, 0}} {
		if got := admit(row.after, driver.AdmitRequest{Kind: driver.AdmitLeave, ID: "another"}); got.Claims != row.want {
			t.Errorf("after %s there are %d claims, want %d", row.after, got.Claims, row.want)
		}
	}
}
