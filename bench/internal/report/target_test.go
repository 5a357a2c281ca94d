package report

import (
	"slices"
	"strings"
	"testing"
)

// section returns one of two runs, in which other takes twice and three times as long as us.
func section() *Section {
	s := &Section{Name: "s", Base: "us", Columns: []Column{{Title: "µs", Digits: 1, Ratio: true}, {Title: "n"}}}
	s.Add("c", "us", 1, 7)
	s.Add("c", "other", 2, 0)
	next := &Section{Name: "s", Columns: s.Columns}
	next.Add("c", "us", 2, 9)
	next.Add("c", "other", 6, 0)
	s.Join(next)
	s.Fold()
	return s
}

func TestAimsAreHeldAgainstEveryRun(t *testing.T) {
	r := &Report{Runs: 2, Sections: []*Section{section()}}
	r.Aim([]Aim{
		{What: "most", Section: "s", Case: "c", Subject: "other", Base: "us", Column: "µs", Limit: 2},
		{What: "least", Section: "s", Case: "c", Subject: "other", Base: "us", Column: "µs", Limit: 2.5, AtLeast: true},
		{What: "itself", Section: "s", Case: "c", Subject: "us", Column: "n", Limit: 9},
		{What: "no section", Section: "x", Case: "c", Subject: "us", Column: "n"},
		{What: "no base", Section: "s", Case: "c", Subject: "us", Base: "x", Column: "n"},
		{What: "no column", Section: "s", Case: "c", Subject: "us", Column: "x"},
	})
	for i, want := range []Target{
		{What: "most", Runs: []float64{2, 3}, Range: Range{2, 2.5, 3}, Met: 1},
		{What: "least", Runs: []float64{2, 3}, Range: Range{2, 2.5, 3}, Met: 1},
		{What: "itself", Runs: []float64{7, 9}, Range: Range{7, 8, 9}, Met: 2},
	} {
		if len(r.Targets) != 3 {
			t.Fatalf("%d targets: %+v", len(r.Targets), r.Targets)
		}
		got := r.Targets[i]
		if got.What != want.What || !slices.Equal(got.Runs, want.Runs) || got.Range != want.Range || got.Met != want.Met {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestMarkdownTellsRangesOfRuns(t *testing.T) {
	r := &Report{Runs: 2, Sections: []*Section{section()}}
	r.Aim([]Aim{{What: "other to us", Section: "s", Case: "c", Subject: "other", Base: "us", Column: "µs", Limit: 0.5, AtLeast: true}})
	var b strings.Builder
	if err := r.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`
| figure      | least | median | greatest |    aim |    met |
|-------------|------:|-------:|---------:|-------:|-------:|
| other to us |  2.00 |   2.50 |     3.00 | ≥ 0.50 | 2 of 2 |
`, `
| case | subject |                  µs | n |
|------|---------|--------------------:|--:|
| c    | us *    |         1.0–1.5–2.0 | 8 |
|      | other   | 4.0 ×2.00–2.50–3.00 | 0 |
`} {
		if got := b.String(); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it\n%s", got, want)
		}
	}
}

func TestRunsOfDifferentRowsDoNotJoin(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	next := &Section{Columns: make([]Column, 2)}
	next.Add("c", "stranger", 1, 2)
	section().Join(next)
}
