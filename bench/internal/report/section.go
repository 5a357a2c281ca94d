package report

import (
	"encoding/json"
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
	Runs  [][]float64 `json:"runs"` // the rounds of each run
	Value float64     `json:"value"`
	Range Range       `json:"range"` // least, median, greatest of the runs
	Ratio Range       `json:"ratio"` // likewise of the ratios to the base; zero where there is none
}

// Range is what several runs have found: in JSON, an array of the three.
type Range struct{ Min, Median, Max float64 }

// MarshalJSON implements json.Marshaler.
func (r Range) MarshalJSON() ([]byte, error) {
	return json.Marshal([]float64{r.Min, r.Median, r.Max})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Range) UnmarshalJSON(text []byte) error {
	var three [3]float64
	err := json.Unmarshal(text, &three)
	*r = Range{three[0], three[1], three[2]}
	return err
}

// RangeOf returns the range of one value per run. Without values the range is zero.
func RangeOf(values []float64) Range {
	if len(values) == 0 {
		return Range{}
	}
	return Range{slices.Min(values), Quantile(values, 0.5), slices.Max(values)}
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
		for i := range row.Cells {
			row.Cells[i].Runs = make([][]float64, 1)
		}
		s.Rows = append(s.Rows, row)
	}
	for i, v := range values {
		row.Cells[i].Runs[0] = append(row.Cells[i].Runs[0], v)
	}
}

// Join appends the runs of next, a section with the same rows. It panics when a row is
// missing, which is a mistake in the program.
func (s *Section) Join(next *Section) {
	for _, row := range next.Rows {
		mine := s.Row(row.Case, row.Subject)
		if mine == nil {
			panic(fmt.Sprintf("report: only a later run has %s, %s of %s", row.Case, row.Subject, s.Name))
		}
		for i, cell := range row.Cells {
			mine.Cells[i].Runs = append(mine.Cells[i].Runs, cell.Runs...)
		}
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

// Cell returns the cell of a subject in a case under the first column of this title, nil if
// there is none.
func (s *Section) Cell(c, subject, title string) *Cell {
	row := s.Row(c, subject)
	column := slices.IndexFunc(s.Columns, func(col Column) bool { return col.Title == title })
	if row == nil || column < 0 {
		return nil
	}
	return &row.Cells[column]
}

// Fold computes values and ratios from the rounds, and puts the rows of a case
// next to each other. Call it once all runs are joined.
func (s *Section) Fold() {
	var cases []string
	for _, row := range s.Rows {
		if !slices.Contains(cases, row.Case) {
			cases = append(cases, row.Case)
		}
		base := s.Row(row.Case, s.Base)
		for i := range row.Cells {
			cell, fold := &row.Cells[i], s.Columns[i].Fold
			values := cell.values(fold)
			cell.Value, cell.Range = fold.of(values), RangeOf(values)
			if s.Columns[i].Ratio && base != nil {
				cell.Ratio = RangeOf(cell.Over(&base.Cells[i]))
			}
		}
	}
	slices.SortStableFunc(s.Rows, func(a, b *Row) int {
		return slices.Index(cases, a.Case) - slices.Index(cases, b.Case)
	})
}

// values returns the rounds of each run as one value.
func (c *Cell) values(f Fold) (out []float64) {
	for _, rounds := range c.Runs {
		out = append(out, f.of(rounds))
	}
	return out
}

// Medians returns the median of the rounds for each run.
func (c *Cell) Medians() []float64 { return c.values(Median) }

// Over returns the ratio of c to base for each run: the median of the ratios of its rounds.
// Runs in which nothing can be compared, the base being 0, are left out.
func (c *Cell) Over(base *Cell) (out []float64) {
	for i := range min(len(c.Runs), len(base.Runs)) {
		if ratio, ok := pairedRatio(c.Runs[i], base.Runs[i]); ok {
			out = append(out, ratio)
		}
	}
	return out
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

// pairedRatio returns the median over the rounds of a to b. Nothing compares with a base of
// 0; ok is false if that leaves nothing.
func pairedRatio(a, b []float64) (ratio float64, ok bool) {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return Quantile(ratios, 0.5), true
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
