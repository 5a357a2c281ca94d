package redisstore

import (
	"testing"

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
