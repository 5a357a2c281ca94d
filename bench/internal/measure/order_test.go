package measure

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/joblock/toolkit/bench/internal/rig"
)

func TestRoundsInterleaveAndBeginWithAnotherEach(t *testing.T) {
	srv, err := rig.Start(t.Context(), rig.DefaultProgram)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	b := &Bench{Server: srv}
	var got []string
	if err := eachRound(t.Context(), b, 3, []string{"a", "b"}, func(_ int, s string) error {
		got = append(got, s)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b", "b", "a", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParallelDoesEachOnce(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[int]int)
	if err := parallel(t.Context(), 3, 10, func(_ context.Context, g, i int) error {
		mu.Lock()
		defer mu.Unlock()
		if i%3 != g {
			t.Errorf("%d was done by %d", i, g)
		}
		seen[i]++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if seen[i] != 1 {
			t.Errorf("%d was done %d times", i, seen[i])
		}
	}
}

func TestParallelStopsAtTheFirstError(t *testing.T) {
	boom := errors.New("boom")
	err := parallel(t.Context(), 2, 1000, func(ctx context.Context, _, i int) error {
		if i == 0 {
			return boom
		}
		<-ctx.Done() // without the error this would hang
		return context.Cause(ctx)
	})
	if !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}

func TestContenderRefusesATurnThatIsNotThere(t *testing.T) {
	if err := contend(assignment{Turn: "/nowhere"}, strings.NewReader(""), json.NewEncoder(io.Discard)); err == nil {
		t.Error("no error for a turn that is not there")
	}
}
