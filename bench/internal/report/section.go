package report

import (
	"fmt"
	"slices"
)

// Fold says how the rounds of a cell become one value.
type Fold string

// The folds. The zero value is Median.
const (
	Median Fold = ""
	Max    Fold = "max"
	Sum    Fold = "sum"
)

// Column is one measured quantity.
type Column struct {
	Title  string `json:"title"` // with its unit
	Fold   Fold   `json:"fold,omitempty"`
	Digits int    `json:"-"`               // after the point
	Ratio  bool   `json:"ratio,omitempty"` // compared with the base
}

// Section is one measurement: rows of cases and subjects, columns of quantities.
type Section struct {
	Name    string   `json:"name"` // one word, for the command line
	Title   string   `json:"title"`
	Note    string   `json:"note"`           // what is measured, and how
	Base    string   `json:"base,omitempty"` // the subject that ratios are relative to
	Columns []Column `json:"columns"`
	Rows    []*Row   `json:"rows"`
}

// Row is one subject in one case.
type Row struct {
	Case    string `json:"case"`
	Subject string `json:"subject"`
	Cells   []Cell `json:"cells"` // one per column
}

// Cell is one figure.
type Cell struct {
	Rounds []float64 `json:"rounds"`
	Value  float64   `json:"value"`
	Ratio  float64   `json:"ratio,omitempty"` // to the base; 0 where there is none
}

// Add records one round of a subject in a case: a value for each column. Rows
// keep the order in which they first came. It panics when values do not match
// the columns, which is a mistake in the program.
func (s *Section) Add(c, subject string, values ...float64) {
	if len(values) != len(s.Columns) {
		panic(fmt.Sprintf("report: %d values for %d columns of %s", len(values), len(s.Columns), s.Name))
	}
	row := s.Row(c, subject)
	if row == nil {
		row = &Row{Case: c, Subject: subject, Cells: make([]Cell, len(s.Columns))}
		s.Rows = append(s.Rows, row)
	}
	for i, v := range values {
		row.Cells[i].Rounds = append(row.Cells[i].Rounds, v)
	}
}

// Row returns the row of a subject in a case, nil if there is none.
func (s *Section) Row(c, subject string) *Row {
	for _, row := range s.Rows {
		if row.Case == c && row.Subject == subject {
			return row
		}
	}
	return nil
}

// Fold computes values and ratios from the rounds, and puts the rows of a case
// next to each other. Call it once all rounds are in.
func (s *Section) Fold() {
	var cases []string
	for _, row := range s.Rows {
		if !slices.Contains(cases, row.Case) {
			cases = append(cases, row.Case)
		}
		base := s.Row(row.Case, s.Base)
		for i := range row.Cells {
			cell := &row.Cells[i]
			cell.Value = s.Columns[i].Fold.of(cell.Rounds)
			if s.Columns[i].Ratio && base != nil {
				cell.Ratio = pairedRatio(cell.Rounds, base.Cells[i].Rounds)
			}
		}
	}
	slices.SortStableFunc(s.Rows, func(a, b *Row) int {
		return slices.Index(cases, a.Case) - slices.Index(cases, b.Case)
	})
}

func (f Fold) of(values []float64) float64 {
	switch f {
	case Max:
		return slices.Max(values)
	case Sum:
		var sum float64
		for _, v := range values {
			sum += v
		}
		return sum
	default:
		return Quantile(values, 0.5)
	}
}

// pairedRatio returns the median over the rounds of a to b, 0 if there is none:
// nothing compares with a base of 0.
func pairedRatio(a, b []float64) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	if len(ratios) == 0 {
		return 0
	}
	return Quantile(ratios, 0.5)
}

// Quantile returns the q-quantile of values, from 0 to 1, between neighbours by
// straight line. values are left as they are; there must be one.
func Quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
