package internal_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestTheLatestLengthsOfATypeStay(t *testing.T) {
	t.Parallel()
	var table workerstats.Durations
	for i := range int64(workerstats.MostDurations) {
		table.Add(map[string][]int64{"a": {i + 1}, "b": {1000}})
	}
	table.Add(map[string][]int64{"a": {7000, 3000}, strings.Repeat("x", workerstats.MostType+1): {1}, "none": nil})
	back, err := workerstats.DecodeDurations(table.Encode())
	if err != nil || !reflect.DeepEqual(back, table) || len(back.Types) != 2 {
		t.Fatalf("%v came back as %v, %v", table, back, err)
	}
	got := back.Of("a")
	if len(got) != workerstats.MostDurations || got[0] != 3*time.Millisecond || got[workerstats.MostDurations-2] != 3*time.Second || got[workerstats.MostDurations-1] != 7*time.Second {
		t.Errorf("the lengths are %v, want the latest %d, sorted", got, workerstats.MostDurations)
	}
	if back.Of("c") != nil {
		t.Error("an unknown type has lengths")
	}
}

func TestTypesThatHaveNotComeForLongMakeRoom(t *testing.T) {
	t.Parallel()
	var table workerstats.Durations
	name := func(i int) string { return fmt.Sprintf("%d-%s", i, strings.Repeat("t", workerstats.MostType-10)) }
	const all = 400
	for i := range all {
		table.Add(map[string][]int64{name(i): {int64(i)}, "often": {1}})
	}
	text := table.Encode()
	back, err := workerstats.DecodeDurations(text)
	if err != nil || len(text) > driver.MaxMemoBytes {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if back.Of("often") == nil || back.Of(name(all-1)) == nil || back.Of(name(0)) != nil || len(back.Types) < 50 {
		t.Errorf("%d types are left, and not the latest", len(back.Types))
	}
}

func TestAnEmptyTableAndOneThatIsNone(t *testing.T) {
	t.Parallel()
	if table, err := workerstats.DecodeDurations(nil); err != nil || len(table.Of("a")) > 0 {
		t.Errorf("%v, %v", table, err)
	}
	if _, err := workerstats.DecodeDurations([]byte("{")); err == nil {
		t.Error("half a text is no error")
	}
}
