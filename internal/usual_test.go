package internal_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/usual"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestTheLatestLengthsOfATypeStay(t *testing.T) {
	t.Parallel()
	var table usual.Table
	for i := range int64(usual.Most) {
		table.Add(map[string][]int64{"a": {i + 1}, "b": {1000}})
	}
	table.Add(map[string][]int64{"a": {7000, 3000}, strings.Repeat("x", usual.MostType+1): {1}, "none": nil})
	back, err := usual.Decode(table.Encode())
	if err != nil || !reflect.DeepEqual(back, table) || len(back.Types) != 2 {
		t.Fatalf("%v came back as %v, %v", table, back, err)
	}
	got := back.Of("a")
	if len(got) != usual.Most || got[0] != 3*time.Millisecond || got[usual.Most-2] != 3*time.Second || got[usual.Most-1] != 7*time.Second {
		t.Errorf("the lengths are %v, want the latest %d, sorted", got, usual.Most)
	}
	if back.Of("c") != nil {
		t.Error("an unknown type has lengths")
	}
}

func TestTypesThatHaveNotComeForLongMakeRoom(t *testing.T) {
	t.Parallel()
	var table usual.Table
	name := func(i int) string { return fmt.Sprintf("%d-%s", i, strings.Repeat("t", usual.MostType-10)) }
	const all = 400
	for i := range all {
		table.Add(map[string][]int64{name(i): {int64(i)}, "often": {1}})
	}
	text := table.Encode()
	back, err := usual.Decode(text)
	if err != nil || len(text) > driver.MaxMemoBytes {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if back.Of("often") == nil || back.Of(name(all-1)) == nil || back.Of(name(0)) != nil || len(back.Types) < 50 {
		t.Errorf("%d types are left, and not the latest", len(back.Types))
	}
}

func TestAnEmptyTableAndOneThatIsNone(t *testing.T) {
	t.Parallel()
	if table, err := usual.Decode(nil); err != nil || len(table.Of("a")) > 0 {
		t.Errorf("%v, %v", table, err)
	}
	if _, err := usual.Decode([]byte("{")); err == nil {
		t.Error("half a text is no error")
	}
}
