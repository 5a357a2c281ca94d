package capacity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page on capacity has what the model makes of the costs in bench/results.
func TestPageHasTheModelsTables(t *testing.T) {
	c, err := Read("../../results/costs.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../docs/capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Fill(c, string(text))
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Error("docs/capacity.md differs from the model: in bench, go run . -capacity-page")
	}
	if n := strings.Count(want, opening); n < 4 {
		t.Errorf("%d tables", n)
	}
}

func TestPagesAreFilled(t *testing.T) {
	page := "a\n<!-- capacity -pairs 3 -->\nold\n<!-- end -->\nb\n"
	filled, err := Fill(costs(), page)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(filled, "old") || !strings.HasPrefix(filled, "a\n<!-- capacity -pairs 3 -->\n") ||
		!strings.HasSuffix(filled, "<!-- end -->\nb\n") || !strings.Contains(filled, "| locks' Redis ") {
		t.Errorf("filled:\n%s", filled)
	}
	if again, err := Fill(costs(), filled); again != filled || err != nil {
		t.Errorf("filled again: %v\n%s", err, again)
	}
	for name, page := range map[string]string{
		"no end":      "<!-- capacity -pairs 3 -->\n",
		"two begin":   "<!-- capacity -pairs 3 -->\n<!-- capacity -pairs 3 -->\n",
		"ends alone":  "<!-- end -->\n",
		"no flag":     "<!-- capacity -speed 3 -->\n<!-- end -->\n",
		"not allowed": "<!-- capacity -pairs -3 -->\n<!-- end -->\n",
	} {
		if filled, err := Fill(costs(), page); err == nil {
			t.Errorf("%s:\n%s", name, filled)
		}
	}
}

func TestCostsAreReadBack(t *testing.T) {
	text, err := costs().JSON()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "costs.json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := Read(path); err != nil || c != costs() {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "no floor") {
		t.Errorf("a file without costs: %v", err)
	}
}

func TestMedianIsOfEachFigure(t *testing.T) {
	var all []Costs
	for _, x := range []float64{3, 1, 2} {
		c := costs()
		c.Pair.Locks.Server, c.Idle, c.Server = x, 10-x, "Redis 7"
		all = append(all, c)
	}
	got, err := Median(all)
	if err != nil || got.Pair.Locks.Server != 2 || got.Idle != 8 || got.Server != "Redis 7" || got.Memory != costs().Memory {
		t.Errorf("%+v, %v", got, err)
	}
}
