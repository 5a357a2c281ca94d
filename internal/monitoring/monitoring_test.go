package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/metric"
)

// name finds the names of metrics of the toolkit in an expression.
var name = regexp.MustCompile(`\bjoblock_\w+`)

// labels are words that look like names of metrics, and are labels.
var labels = []string{"joblock_event", "joblock_key_group"}

// names returns the metrics that an expression needs.
func names(expr string) (all []string) {
	for _, n := range name.FindAllString(expr, -1) {
		if !slices.Contains(labels, n) {
			all = append(all, n)
		}
	}
	return all
}

// exported are the names of all series that Prometheus has.
func exported() map[string]bool {
	all := make(map[string]bool)
	for _, m := range slices.Concat(metric.Process, metric.Cluster, metric.Server) {
		all[m.Prometheus()] = true
		if m.Type == metric.Histogram {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				all[m.Prometheus()+suffix] = true
			}
		}
	}
	return all
}

// Every metric in a query of the dashboard and of the alerts exists.
func TestQueriesNameMetrics(t *testing.T) {
	known := exported()
	used := make(map[string]bool)
	all := append(queries(t), ruleExprs(t)...)
	if len(all) < 60 {
		t.Fatalf("only %d queries", len(all))
	}
	for _, q := range all {
		for _, n := range names(q) {
			if used[n] = true; !known[n] {
				t.Errorf("there is no metric %s, in %s", n, q)
			}
		}
	}
	for _, m := range slices.Concat(metric.Process, metric.Cluster, metric.Server) {
		n := m.Prometheus()
		if !used[n] && !used[n+"_bucket"] && m.Name != metric.CheckTime.Name {
			t.Errorf("neither the dashboard nor an alert has %s", n)
		}
	}
}

// queries returns the queries of the dashboard, with its variables replaced.
func queries(t *testing.T) (all []string) {
	t.Helper()
	var d struct {
		Panels []struct {
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Annotations struct{ List []struct{ Expr string } }
		Templating  struct {
			List []struct {
				Name       string
				Definition string
			}
		}
	}
	if err := json.Unmarshal(Dashboard, &d); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer("$__rate_interval", "5m", "$group", ".*", "$scope", ".*")
	for i, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %s has no query", p.Title)
		}
		for _, other := range d.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("the panels %s and %s overlap", p.Title, other.Title)
			}
		}
		for _, target := range p.Targets {
			all = append(all, replace.Replace(target.Expr))
		}
	}
	for _, a := range d.Annotations.List {
		all = append(all, replace.Replace(a.Expr))
	}
	for _, q := range all {
		if strings.Contains(q, "$") {
			t.Errorf("a variable that is not known in %s", q)
		}
	}
	return all
}

// ruleExprs returns the expressions of the alerts.
func ruleExprs(t *testing.T) (all []string) {
	t.Helper()
	for _, part := range strings.Split(string(Alerts), "- alert: ")[1:] {
		_, expr, _ := strings.Cut(part, "expr: ")
		expr, _, _ = strings.Cut(expr, "\n        for: ")
		all = append(all, strings.Trim(expr, "'"))
	}
	return all
}

// Each alert has a case that fires and one that does not, a severity, texts, and a section in the documentation.
func TestAlertsAreTestedAndDocumented(t *testing.T) {
	cases, err := os.ReadFile("alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	severity := regexp.MustCompile(`severity: (critical|warning|info)\n`)
	parts := strings.Split(string(Alerts), "- alert: ")[1:]
	if len(parts) < 20 {
		t.Fatalf("only %d alerts", len(parts))
	}
	for _, part := range parts {
		alert, rest, _ := strings.Cut(part, "\n")
		for _, want := range []string{alert + " fires\n", alert + " does not fire\n"} {
			if !strings.Contains(string(cases), want) {
				t.Errorf("no case %q", strings.TrimSpace(want))
			}
		}
		if !severity.MatchString(rest) || !strings.Contains(rest, "summary: ") || !strings.Contains(rest, "description: ") ||
			!strings.Contains(rest, "docs/monitoring.md#"+strings.ToLower(alert)+"\n") {
			t.Errorf("%s: %s", alert, rest)
		}
		if !strings.Contains(string(doc), "\n### "+alert+"\n") {
			t.Errorf("docs/monitoring.md has no section %s", alert)
		}
	}
}

// The documentation has each metric, with its type, unit and labels.
func TestMetricsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Concat(metric.Process, metric.Cluster, metric.Server) {
		if want := row(m); !strings.Contains(string(doc), want) {
			t.Errorf("docs/monitoring.md lacks the row:\n%s", want)
		}
	}
	rows := strings.Count(string(doc), "\n| `joblock_")
	if want := len(metric.Process) + len(metric.Cluster) + len(metric.Server); rows != want {
		t.Errorf("docs/monitoring.md has %d metrics, want %d", rows, want)
	}
}

// row returns the row of a metric in the documentation.
func row(m metric.Metric) string {
	unit := m.Unit
	switch unit = strings.Trim(unit, "{}"); unit {
	case "":
		unit = "–"
	case "s":
		unit = "seconds"
	default:
		unit += "s"
	}
	labels := "–"
	if len(m.Labels) > 0 {
		labels = "`" + strings.Join(m.PrometheusLabels(), "`, `") + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", m.Prometheus(), m.Type, unit, labels, m.Help)
}
