package memstore

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// A reader holds transition.go against the table in package driver: each row stands where
// it is decided, by its name.
func TestEachRowOfTheTableIsNamed(t *testing.T) {
	contract, err := os.ReadFile("../driver/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("transition.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(contract), "//\tAcquire\n") // what comes before is no transition
	table, _, _ = strings.Cut("//\tAcquire\n"+table, "\n// GRANT")
	row := regexp.MustCompile(`^//\t  (.+?)   *`)
	rows, body := 0, ""
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		if call, ok := strings.CutPrefix(line, "//\t"); ok && !strings.HasPrefix(call, " ") {
			call, _, _ = strings.Cut(strings.ToLower(call), " ")
			_, body, _ = strings.Cut(string(code), "func (r record) "+call+"(")
			body, _, _ = strings.Cut(body, "\n}\n")
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows++
		if !regexp.MustCompile(`// (.*, )?` + regexp.QuoteMeta(m[1]) + `(,|\n)`).MatchString(body) {
			t.Errorf("no case is named after row %q of %s", m[1], line)
		}
	}
	if rows < 50 {
		t.Errorf("found %d rows of the table, want 50 at least", rows)
	}
}
