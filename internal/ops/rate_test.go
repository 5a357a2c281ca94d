package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/rate"
)

func TestExplainAJobThatWaitsForItsRate(t *testing.T) {
	l := lockIn(joblock.StateParked, "q/1", time.Minute)
	l.Task = &Task{
		State: "retry", Queue: "q", ID: "1", Type: "export", NextAt: Time{noon.Add(25 * time.Second)},
		LastError: jobline.RateWait("provider", noon.Add(20*time.Second)) + "; call: refused",
	}
	text := strings.Join(explain(l, Keeper{}, true, nil, nil).Text, "\n")
	if want := `waits for the rate of the key "provider", until `; !strings.Contains(text, want) || !strings.Contains(text, "No retry is charged") {
		t.Errorf("no %q in\n%s", want, text)
	}
}

func TestExplainAKeyWithARate(t *testing.T) {
	locks := testkit.Must(joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{Logger: new(testkit.Log).Text()}))
	defer locks.Close(t.Context())
	d := testkit.Must(New(Config{Locks: locks}))
	said := func() string { return strings.Join(testkit.Must(d.Explain(t.Context(), "provider")).Text, "\n") }
	if text := said(); strings.Contains(text, "rate") {
		t.Errorf("without a rate: %s", text)
	}
	l := rate.Limit{Key: "provider", N: 1, Per: time.Hour}
	if err := rate.Allow(t.Context(), locks, l); err != nil {
		t.Fatal(err)
	}
	if text := said(); !strings.Contains(text, "1 of 1 in ") || strings.Contains(text, "spelling") {
		t.Errorf("after a start: %s", text)
	}
	if err := rate.PushBack(t.Context(), locks, "provider", 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	if text := said(); !strings.Contains(text, "pushed back") {
		t.Errorf("after a push-back: %s", text)
	}
}
