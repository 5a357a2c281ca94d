package report

import (
	"encoding/json"
	"reflect"
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

func TestJSONHasTheRoundsOfARunInOneLine(t *testing.T) {
	r := &Report{Rounds: 1, Sections: []*Section{section()}}
	r.Sections[0].Columns[0].Digits = 0 // not written
	var b strings.Builder
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&got, r) {
		t.Errorf("got %+v, want %+v", got, r)
	}
	next := section()
	next.Add("c", "us", 12.5, 3)
	b.Reset()
	if err := (&Report{Sections: []*Section{next}}).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "[1,12.5]") {
		t.Errorf("the rounds are not in one line:\n%s", b.String())
	}
}
