package roster

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/joblock/toolkit/joblock/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNames(t *testing.T) {
	n, err := DecodeNames(nil)
	if err != nil || n.Has("a", 5) {
		t.Fatalf("%+v, %v", n, err)
	}
	n.Add([]string{"a", "<b>"}, 100)
	n.Add([]string{"c"}, 100+keptDays-1)
	n.Add([]string{"a"}, 100+keptDays)
	again, err := DecodeNames(n.Encode())
	if err != nil || !reflect.DeepEqual(again, n) || len(again.Jobs) != 3 {
		t.Errorf("%+v came back as %+v, %v", n, again, err)
	}
	n.Add([]string{"c"}, 101+keptDays)
	if _, kept := n.Jobs["<b>"]; kept || len(n.Jobs) != 2 {
		t.Errorf("names %v, want b gone after %d days", n.Jobs, keptDays)
	}
	for day, fresh := range map[int64]bool{100 + keptDays: true, 100 + keptDays + Fresh - 1: true, 100 + keptDays + Fresh: false} {
		if n.Has("a", day) != fresh {
			t.Errorf("on day %d fresh: %v", day, !fresh)
		}
	}
}

// The page of a name is part of the format: another function would make jobs invisible.
func TestPagesNeverChange(t *testing.T) {
	for name, want := range map[string]int{"": 18, "rollup": 27, "digest": 9, "böse/name": 12} {
		if got := Page(name); got != want {
			t.Errorf("%q is on page %d, want %d", name, got, want)
		}
	}
}

// All pages together have room for so many jobs.
func TestHowManyNamesFit(t *testing.T) {
	for size, jobs := range map[int]int{128: 14_000, 24: 50_000} {
		var pages [Pages]Names
		for i := range pages {
			pages[i], _ = DecodeNames(nil)
		}
		for i := range jobs {
			name := fmt.Sprintf("%0*d", size, i)
			pages[Page(name)].Add([]string{name}, 20_000)
		}
		for i, p := range pages {
			if n := len(p.Encode()); n > driver.MaxMemoBytes {
				t.Errorf("page %d of %d names of %d bytes has %d bytes", i, jobs, size, n)
			}
		}
	}
}

func TestNodeHasItsJobs(t *testing.T) {
	for _, count := range []int{0, 1, 2, 1000, MaxJobs, MaxJobs + 1} {
		n := &Node{Version: version, Name: strings.Repeat(`"`, driver.MaxLabelBytes), Program: strings.Repeat(`"`, 100), Build: strings.Repeat(`"`, 64), Start: math.MinInt64}
		var names []string
		for i := range count {
			names = append(names, fmt.Sprint("job", i))
		}
		n.SetJobs(names)
		n.SetConflicts(slices.Repeat([]Conflict{{strings.Repeat("\x01", 128), strings.Repeat("\x01", 200), math.MinInt64}}, 100))
		if len(n.Conflicts) != 4 {
			t.Errorf("%d jobs are in conflict", len(n.Conflicts))
		}
		if size := len(n.Encode()); size > driver.MaxMemoBytes {
			t.Errorf("%d jobs take %d bytes", count, size)
		}
		again, err := DecodeNode(n.Encode())
		if err != nil || !reflect.DeepEqual(again, *n) {
			t.Fatalf("%+v, %v", again, err)
		}
		has := again.Has()
		for _, name := range names {
			if !has(name) {
				t.Errorf("of %d jobs %s is missing", count, name)
			}
		}
		if has("other") != (count > MaxJobs) {
			t.Errorf("of %d jobs has another: %v", count, has("other"))
		}
	}
}

func TestNodesAreReadBack(t *testing.T) {
	n, err := DecodeNodes(nil)
	if err != nil || len(n.IDs) != 0 {
		t.Fatalf("%+v, %v", n, err)
	}
	n.IDs = []string{"a", "b"}
	if again, err := DecodeNodes(n.Encode()); err != nil || !reflect.DeepEqual(again, n) {
		t.Errorf("%+v came back as %+v, %v", n, again, err)
	}
	for _, memo := range []string{"page 7", `{"v":2}`} {
		_, err1 := DecodeNodes([]byte(memo))
		_, err2 := DecodeNode([]byte(memo))
		_, err3 := DecodeNames([]byte(memo))
		if err1 == nil || err2 == nil || err3 == nil {
			t.Errorf("%s: no error", memo)
		}
	}
}

// Whatever a memo has, no function panics or goes on forever.
func FuzzNode(f *testing.F) {
	f.Add([]byte(`{"v":1,"n":3,"jobs":"////////////////"}`))
	f.Fuzz(func(t *testing.T, memo []byte) {
		n, err := DecodeNode(memo)
		if err == nil {
			n.Has()("job")
		}
	})
}
