package storetest

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
)

// The table that storetest tests is the table of the contract.
func TestTheTableIsThatOfTheContract(t *testing.T) {
	src, err := os.ReadFile("../driver/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]driver.Outcome{
		"OK": ok, "Held": hld, "Busy": busy, "NotFound": gone, "NotOwner": notO,
		"Released": rel, "Lapsed": laps, "WrongJob": wjob, "Foreign": forn, "Full": full,
	}
	var want []string
	columns := regexp.MustCompile(`  +`)
	call := ""
	_, text, _ := strings.Cut(string(src), "# The transition table")
	text, _, _ = strings.Cut(text, "\n// #")
	for line := range strings.Lines(text) {
		line, isTable := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t")
		cells := columns.Split(strings.TrimPrefix(line, "  "), -1)
		switch {
		case !isTable:
		case !strings.HasPrefix(line, "  "):
			call = line
		case len(cells) != 4:
			t.Errorf("row %q of the contract has %d columns, want 4", line, len(cells))
		default:
			o, known := outcomes[cells[2]]
			if !known {
				t.Errorf("row %q of the contract has an unknown outcome", line)
			}
			want = append(want, fmt.Sprintf("%s: %s: %s, same %t", call, cells[0], o, cells[3] == "same" || strings.HasPrefix(cells[3], "same;")))
		}
	}
	var got []string
	for _, part := range table {
		for _, r := range part.rows {
			got = append(got, fmt.Sprintf("%s: %s: %s, same %t", part.call, r.name, r.outcome, r.effect == same))
		}
	}
	if len(want) < 50 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("storetest walks\n%s\nthe contract says\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEveryRowOfTheTableIsWalked(t *testing.T) {
	walked := map[string]bool{everyCall + ": foreign": true, acquire + ": taken up": true, force + ": passed on": true} // by foreignCases, unheardCases and slotCases
	for _, tr := range transitions {
		for s, name := range tr.rows {
			if _, known := rowOf(tr.call, name); !known {
				t.Errorf("%s %s, %s: the table has no row %q", tr.call, tr.how, starts[s].name, name)
			}
			walked[tr.call+": "+name] = true
		}
	}
	for _, part := range table {
		for _, r := range part.rows {
			if !walked[part.call+": "+r.name] {
				t.Errorf("nothing is expected of row %q of %s", r.name, part.call)
			}
		}
	}
}
