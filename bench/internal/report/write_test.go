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
