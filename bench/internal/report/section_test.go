package report

import (
	"math"
	"testing"
)

func TestRatiosArePairedByRound(t *testing.T) {
	s := &Section{Base: "base", Columns: []Column{{Title: "ms", Ratio: true}, {Title: "n", Fold: Sum}, {Title: "max", Fold: Max}}}
	// The machine is ten times as slow in the second round, for both.
	for _, v := range []float64{1, 10, 1.5} {
		s.Add("c", "base", v, 1, v)
		s.Add("c", "other", 2*v, 2, -v)
	}
	s.Fold()
	base, other := s.Row("c", "base"), s.Row("c", "other")
	if base.Cells[0].Value != 1.5 || other.Cells[0].Value != 3 {
		t.Errorf("medians %v and %v", base.Cells[0].Value, other.Cells[0].Value)
	}
	if other.Cells[0].Ratio.Median != 2 || base.Cells[0].Ratio.Median != 1 || other.Cells[1].Ratio != (Range{}) {
		t.Errorf("ratios %v, %v, and %v where none is asked for", other.Cells[0].Ratio, base.Cells[0].Ratio, other.Cells[1].Ratio)
	}
	if other.Cells[1].Value != 6 || base.Cells[2].Value != 10 || other.Cells[2].Value != -1 {
		t.Errorf("sum %v, max %v and %v", other.Cells[1].Value, base.Cells[2].Value, other.Cells[2].Value)
	}
}

func TestNothingComparesWithZero(t *testing.T) {
	s := &Section{Base: "base", Columns: []Column{{Ratio: true}}}
	s.Add("c", "base", 0)
	s.Add("c", "other", 1)
	s.Add("without base", "other", 1)
	s.Fold()
	for _, row := range s.Rows {
		if r := row.Cells[0].Ratio; r != (Range{}) {
			t.Errorf("%s, %s: ratio %v", row.Case, row.Subject, r)
		}
	}
}

func TestFoldPutsTheRowsOfACaseTogether(t *testing.T) {
	s := &Section{Columns: []Column{{}}}
	for _, subject := range []string{"x", "y"} {
		s.Add("first", subject, 1)
		s.Add("second", subject, 1)
	}
	s.Fold()
	var got string
	for _, row := range s.Rows {
		got += row.Case + row.Subject + " "
	}
	if want := "firstx firsty secondx secondy "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestQuantile(t *testing.T) {
	for _, tc := range []struct {
		values  []float64
		q, want float64
	}{
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 2, 3}, 0.5, 2.5},
		{[]float64{0, 10}, 0.99, 9.9},
		{[]float64{1, 2, 3}, 1, 3},
		{[]float64{1, 2, 3}, 0, 1},
	} {
		if got := Quantile(tc.values, tc.q); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("Quantile(%v, %v) = %v, want %v", tc.values, tc.q, got, tc.want)
		}
	}
}
