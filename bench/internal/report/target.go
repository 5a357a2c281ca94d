package report

import (
	"fmt"
	"strings"
)

// Target is a figure of a report, and what is aimed at.
type Target struct {
	What    string    `json:"what"`
	Limit   float64   `json:"limit"`
	AtLeast bool      `json:"at_least,omitempty"` // the limit is the least; otherwise the most
	Runs    []float64 `json:"runs"`
	Range   Range     `json:"range"`
	Met     int       `json:"met"` // the number of runs
}

// Aim says where the figure of a Target is found: in one column of one section.
type Aim struct {
	What                   string
	Section, Case, Subject string
	Base                   string // the subject to compare with, in the same case; "" for the figure itself
	Column                 string // its title
	Limit                  float64
	AtLeast                bool
}

// Aim adds what the report has of the aims. An aim at what was not measured is left out.
func (r *Report) Aim(aims []Aim) {
	for _, a := range aims {
		s := r.Section(a.Section)
		if s == nil {
			continue
		}
		cell := s.Cell(a.Case, a.Subject, a.Column)
		if cell == nil {
			continue
		}
		runs := cell.Medians()
		if a.Base != "" {
			base := s.Cell(a.Case, a.Base, a.Column)
			if base == nil {
				continue
			}
			runs = cell.Over(base)
		}
		t := Target{What: a.What, Limit: a.Limit, AtLeast: a.AtLeast, Runs: runs, Range: RangeOf(runs)}
		for _, v := range runs {
			if v == a.Limit || (v > a.Limit) == a.AtLeast {
				t.Met++
			}
		}
		r.Targets = append(r.Targets, t)
	}
}

func writeTargets(b *strings.Builder, targets []Target) {
	b.WriteString("\n## What is aimed at\n\nOf each run the median. Met: in how many of the runs.\n\n")
	table := [][]string{{"figure", "least", "median", "greatest", "aim", "met"}}
	for _, t := range targets {
		aim := "≤ "
		if t.AtLeast {
			aim = "≥ "
		}
		row := []string{t.What}
		for _, v := range []float64{t.Range.Min, t.Range.Median, t.Range.Max} {
			row = append(row, figure(v))
		}
		table = append(table, append(row, aim+figure(t.Limit), fmt.Sprintf("%d of %d", t.Met, len(t.Runs))))
	}
	writeTable(b, 1, table)
}

// figure shows ratios to two digits, and greater figures without any.
func figure(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
