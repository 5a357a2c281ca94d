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
	"github.com/joblock/toolkit/bench/internal/rig"
)

func TestMain(m *testing.M) {
	measure.ContendIfAsked() // hand-overs start this binary again
	rig.SpinIfAsked()        // and so does the load
	goleak.VerifyTestMain(m)
}

// One quick run of everything, beside this very checkout. It looks at what is there, never
// at how fast it was.
func TestQuickRunMeasuresEverything(t *testing.T) {
	dir := t.TempDir()
	var out, log bytes.Buffer
	if err := run(t.Context(), []string{"-quick", "-against", "..", "-out", dir}, &out, &log); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	var r report.Report
	if err := json.Unmarshal(read(t, dir, "results.json"), &r); err != nil {
		t.Fatal(err)
	}
	if r.Server == "" || r.Machine.Cores == 0 || r.Rounds != measure.Quick().Rounds || r.Runs != 1 || r.Against == "" || r.LoadAverage == "" {
		t.Errorf("%+v", r)
	}
	subjects := make(map[string]map[string]bool) // by section
	for _, s := range r.Sections {
		subjects[s.Name] = make(map[string]bool)
		for _, row := range s.Rows {
			subjects[s.Name][row.Subject] = true
			for i, cell := range row.Cells {
				if len(cell.Runs) != r.Runs || len(cell.Runs[0]) != r.Rounds {
					t.Errorf("%s, %s, %s, %s: %v, want %d runs of %d rounds",
						s.Name, row.Case, row.Subject, s.Columns[i].Title, cell.Runs, r.Runs, r.Rounds)
				}
			}
		}
	}
	for _, name := range peer.Libraries() {
		for _, section := range []string{"uncontended", "handover", "waiting", "renewal"} {
			if !subjects[section][string(name)] {
				t.Errorf("%s was not measured: %s", name, section)
			}
		}
	}
	for section, want := range map[string]int{
		"uncontended": 5, "against": 2, "handover": 5, "waiting": 4, "order": 1, "renewal": 4,
		"enqueue": 3, "jobs": 4, "work": 4, "succession": 3, "lines": 2, "slots": 2, "memos": 2, "records": 6, "walks": 3, "operator": 4, "fleet": 3, "growth": 2, "cluster": 2,
	} {
		if got := len(subjects[section]); got != want {
			t.Errorf("%s has %d subjects, want %d", section, got, want)
		}
	}
	aims := measure.Aims(measure.Quick(), false)
	for i, target := range r.Targets {
		if target.What != aims[i].What || len(target.Runs) != r.Runs {
			t.Errorf("target %d is %+v, want %d runs of %q", i, target, r.Runs, aims[i].What)
		}
	}
	if len(r.Targets) != len(aims) {
		t.Errorf("%d of %d aims were looked at", len(r.Targets), len(aims))
	}
	countsMakeSense(t, r.Sections)
	if md := read(t, dir, "results.md"); !bytes.Equal(md, out.Bytes()) {
		t.Error("results.md is not what was printed")
	}
	wellFormed(t, read(t, dir, "handover.svg"))
}

func TestRunsAndLoadAreToldOf(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-quick", "-runs", "2", "-rounds", "2", "-busy", "-only", "enqueue", "-out", dir}
	if err := run(t.Context(), args, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := json.Unmarshal(read(t, dir, "results.json"), &r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.Load, "busy") || r.Runs != 2 || r.Rounds != 2 || len(r.Targets) == 0 {
		t.Errorf("%+v", r)
	}
	for _, target := range r.Targets {
		if len(target.Runs) != 2 {
			t.Errorf("a target of %d runs: %+v", len(target.Runs), target)
		}
	}
	for _, row := range r.Sections[0].Rows {
		for _, cell := range row.Cells {
			if len(cell.Runs) != 2 || len(cell.Runs[0]) != 2 || len(cell.Runs[1]) != 2 {
				t.Errorf("%s: %v, want two runs of two rounds", row.Subject, cell.Runs)
			}
		}
	}
	if md := string(read(t, dir, "results.md")); !strings.Contains(md, "- runs: 2,") || !strings.Contains(md, " of 2 |") {
		t.Errorf("results.md does not tell of two runs:\n%s", md)
	}
}

func TestOnlyWhatIsAskedForIsMeasured(t *testing.T) {
	b := new(measure.Bench)
	for _, tc := range []struct {
		set  settings
		want string
	}{
		{settings{names: []string{"work", "jobs"}}, "jobs work"},
		{settings{aims: true, names: []string{"work", "jobs"}}, "jobs"},
		{settings{aims: true}, "uncontended handover enqueue jobs succession lines slots memos records walks operator fleet cluster"},
	} {
		got, err := choose(b.Measurements(), tc.set)
		var names []string
		for _, m := range got {
			names = append(names, m.Name)
		}
		if err != nil || strings.Join(names, " ") != tc.want {
			t.Errorf("%+v: %q, %v; want %q", tc.set, names, err, tc.want)
		}
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "jobs,speed"}, `no measurement "speed"`},
		{[]string{"-rounds", "-1"}, "must not be negative"},
		{[]string{"-runs", "0"}, "must be at least 1"},
		{[]string{"-masters", "3,2"}, `"2", must be numbers from 3 to 100`},
		{[]string{"-quick", "-server", "no-such-server"}, "no-such-server"},
		{[]string{"-quick", "-only", "against"}, `no measurement "against"`},
		{[]string{"-against", "internal/nowhere"}, "nowhere"},
		{[]string{"-capacity", "-jobs", "-1"}, "-jobs is -1, must be at least 0"},
		{[]string{"-capacity", "-speed", "1"}, "not defined"},
		{[]string{"-capacity", "jobs"}, `unexpected argument "jobs"`},
		{[]string{"-capacity", "-costs", "results/results.json"}, "results/results.json: "},
		{[]string{"-capacity-check", "-costs", "nowhere.json"}, "nowhere.json"},
		{[]string{"-capacity-page", "-page", "nowhere.md"}, "nowhere.md"},
		{[]string{"-costs", "-runs", "0"}, "-runs is 0, must be at least 1"},
		{[]string{"-costs", "-server", "no-such-server"}, "no-such-server"},
		{[]string{"fast"}, `unexpected argument "fast"`},
		{[]string{"-fast"}, "not defined"},
	} {
		err := run(t.Context(), tc.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.want)
		}
	}
}

func TestCapacityIsPredictedAndWrittenIntoThePage(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-capacity", "-jobs", "10", "-parked", "1000"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"locks' Redis", "asynq's Redis", "each of 1 workers", "A parked lock is checked every"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("<!-- capacity -jobs 10 -->\n<!-- end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"-capacity-page", "-page", page}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	if text := string(read(t, filepath.Dir(page), "page.md")); !strings.Contains(text, "each of 1 web processes") {
		t.Errorf("the page is\n%s", text)
	}
}

// countsMakeSense looks at what does not depend on the machine.
func countsMakeSense(t *testing.T, sections []*report.Section) {
	t.Helper()
	for _, s := range sections {
		for _, row := range s.Rows {
			for i, cell := range row.Cells {
				switch title := s.Columns[i].Title; {
				case strings.HasPrefix(row.Case, "parallelism 1,") && row.Subject == string(peer.Floor) && title == "commands/op" && cell.Value != 2:
					t.Errorf("the floor sends %v commands for a pair, want 2", cell.Value)
				case title == "commands/period" && cell.Value == 0:
					t.Errorf("%s sent nothing to renew its locks", row.Subject)
				case title == "hand-overs" && s.Name == "order" && cell.Value < float64(measure.Quick().Order):
					t.Errorf("the order of %v hand-overs was looked at", cell.Value)
				case strings.HasPrefix(row.Case, "parallelism 1,") && title == "server's count µs/op" && cell.Value == 0:
					t.Errorf("%s: the server has counted nothing for %s", s.Name, row.Subject)
				case row.Subject == string(peer.Publish) && title == "commands/hand-over" && cell.Value < 1:
					t.Errorf("%v commands for a message", cell.Value)
				case title == "bytes" && cell.Value == 0 && !strings.HasSuffix(row.Subject, "over"):
					t.Errorf("a record %s has no bytes", row.Subject)
				case s.Name == "cluster" && (title == "scripts/op" || strings.HasPrefix(title, "busiest")) && cell.Value < 1:
					t.Errorf("%s, %s: %s is %v", row.Case, row.Subject, title, cell.Value)
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
