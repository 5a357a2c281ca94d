package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/joblock/toolkit/bench/internal/measure"
	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

func TestMain(m *testing.M) {
	measure.ContendIfAsked() // hand-overs start this binary again
	goleak.VerifyTestMain(m)
}

// One short run of everything. It looks at what is there, never at how fast it was.
func TestShortRunMeasuresEverything(t *testing.T) {
	dir := t.TempDir()
	var out, log bytes.Buffer
	if err := run(t.Context(), []string{"-short", "-out", dir}, &out, &log); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	var r report.Report
	if err := json.Unmarshal(read(t, dir, "results.json"), &r); err != nil {
		t.Fatal(err)
	}
	if r.Redis == "" || r.Machine.Cores == 0 || r.Rounds != measure.Short().Rounds {
		t.Errorf("redis %q, machine %+v, %d rounds", r.Redis, r.Machine, r.Rounds)
	}
	subjects := make(map[string]map[string]bool) // by section
	for _, s := range r.Sections {
		subjects[s.Name] = make(map[string]bool)
		for _, row := range s.Rows {
			subjects[s.Name][row.Subject] = true
			for i, cell := range row.Cells {
				if len(cell.Rounds) != r.Rounds {
					t.Errorf("%s, %s, %s, %s: %d rounds, want %d",
						s.Name, row.Case, row.Subject, s.Columns[i].Title, len(cell.Rounds), r.Rounds)
				}
			}
		}
	}
	for _, name := range peer.Libraries() {
		for _, section := range []string{"uncontended", "handover", "renewal"} {
			if !subjects[section][string(name)] {
				t.Errorf("%s was not measured: %s", name, section)
			}
		}
	}
	for section, want := range map[string]int{"uncontended": 5, "handover": 4, "order": 1, "renewal": 4, "jobs": 3, "growth": 2} {
		if got := len(subjects[section]); got != want {
			t.Errorf("%s has %d subjects, want %d", section, got, want)
		}
	}
	countsMakeSense(t, r.Sections)
	if md := read(t, dir, "results.md"); !bytes.Equal(md, out.Bytes()) {
		t.Error("results.md is not what was printed")
	}
	wellFormed(t, read(t, dir, "handover.svg"))
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "jobs,speed"}, `no measurement "speed"`},
		{[]string{"-rounds", "-1"}, "must not be negative"},
		{[]string{"fast"}, `unexpected argument "fast"`},
		{[]string{"-fast"}, "not defined"},
	} {
		err := run(t.Context(), tc.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.want)
		}
	}
}

// countsMakeSense looks at what does not depend on the machine.
func countsMakeSense(t *testing.T, sections []*report.Section) {
	t.Helper()
	for _, s := range sections {
		for _, row := range s.Rows {
			for i, cell := range row.Cells {
				switch title := s.Columns[i].Title; {
				case row.Case == "parallelism 1" && row.Subject == string(peer.Floor) && title == "commands/op" && cell.Value != 2:
					t.Errorf("the floor sends %v commands for a pair, want 2", cell.Value)
				case title == "commands/period" && cell.Value == 0:
					t.Errorf("%s sent nothing to renew its locks", row.Subject)
				case title == "hand-overs" && s.Name == "order" && cell.Value < float64(measure.Short().Order):
					t.Errorf("the order of %v hand-overs was looked at", cell.Value)
				case title == "overtaken" && cell.Value != 0:
					t.Errorf("%v were overtaken", cell.Value)
				case title == "lost" && cell.Value != 0:
					t.Errorf("%s lost %v locks", row.Subject, cell.Value)
				}
			}
		}
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func wellFormed(t *testing.T, text []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("not XML: %v\n%s", err, text)
		}
	}
}
