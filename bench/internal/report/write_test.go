package report

import (
	"strings"
	"testing"
)

func TestMarkdownNamesTheBaseAndAligns(t *testing.T) {
	s := &Section{Title: "T", Note: "N.", Base: "us", Columns: []Column{{Title: "µs", Digits: 1, Ratio: true}, {Title: "ms", Fold: Max}}}
	s.Add("case", "us", 1, 2)
	s.Add("case", "them", 12, 3)
	s.Fold()
	var b strings.Builder
	if err := (&Report{Rounds: 1, Sections: []*Section{s}}).WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	want := `
| case | subject |          µs | ms (max) |
|------|---------|------------:|---------:|
| case | us *    |         1.0 |        2 |
|      | them    | 12.0 ×12.00 |        3 |
`
	if got := b.String(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant at its end\n%s", got, want)
	}
}

func TestPlotKeepsItsMarksInside(t *testing.T) {
	p := &Plot{Title: "a < b", Ticks: []string{"1", "2"}, Panels: []Panel{{Title: "P", Series: []Series{
		{Name: "low", Points: []Point{{0, 0.1, 0.1}, {1, 0.1, 0.2}}},
		{Name: "none"},
	}}}}
	low, high, ok := p.decades()
	if low != -1 || high != 0 || !ok {
		t.Errorf("decades from %d to %d, %v", low, high, ok)
	}
	f := frame{low: low, high: high, ticks: 2}
	if got := f.y(0.1); got != marginTop+panelHeight {
		t.Errorf("the least value is drawn at %v, want at the foot", got)
	}
	if got := f.y(1); got != marginTop {
		t.Errorf("the power of ten above all is drawn at %v, want at the top", got)
	}
	var b strings.Builder
	if err := p.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(b.String(), "<circle"); got != 2 {
		t.Errorf("%d points are drawn, want 2", got)
	}
	if !strings.Contains(b.String(), "a &lt; b") {
		t.Error("the title is not escaped")
	}
}

func TestEmptyPlotIsAnError(t *testing.T) {
	if err := (&Plot{Panels: []Panel{{}}}).WriteSVG(new(strings.Builder)); err == nil {
		t.Error("no error")
	}
}

func TestLabelsDoNotCoverEachOther(t *testing.T) {
	got := apart([]label{{y: 50, name: "c"}, {y: 10, name: "a"}, {y: 12, name: "b"}})
	for i, want := range []label{{y: 10, name: "a"}, {y: 10 + labelHeight, name: "b"}, {y: 50, name: "c"}} {
		if got[i] != want {
			t.Errorf("label %d is %+v, want %+v", i, got[i], want)
		}
	}
}
