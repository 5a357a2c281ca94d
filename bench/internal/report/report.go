package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// Report is what one or several runs have found, one after the other, on one machine.
type Report struct {
	Machine     rig.Machine       `json:"machine"`
	Server      string            `json:"server"` // such as "Redis 7.0.15"
	Load        string            `json:"load"`   // what else the machine has to do, on purpose
	LoadAverage string            `json:"load_average"`
	Versions    map[string]string `json:"versions"` // by module
	Against     string            `json:"against,omitempty"`
	Rounds      int               `json:"rounds"` // of each run
	Runs        int               `json:"runs"`
	Targets     []Target          `json:"targets"`
	Sections    []*Section        `json:"sections"`
}

// Section returns the section of this name, nil if it was not measured.
func (r *Report) Section(name string) *Section {
	for _, s := range r.Sections {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// numbers is an array of numbers over several lines.
var numbers = regexp.MustCompile(`\[[-+.,eE0-9\s]+\]`)

// WriteJSON writes all rounds, indented, the rounds of each run in one line.
func (r *Report) WriteJSON(w io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = numbers.ReplaceAllFunc(text, func(array []byte) []byte { return bytes.Join(bytes.Fields(array), nil) })
	_, err = w.Write(append(text, '\n'))
	return err
}

// WriteMarkdown writes the tables in Markdown, aligned to be read in a terminal
// too.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Benchmark results\n\n")
	fmt.Fprintf(&b, "- machine: %s, %d cores, %s\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel)
	fmt.Fprintf(&b, "- load: %s; load average at the start %s\n", r.Load, r.LoadAverage)
	fmt.Fprintf(&b, "- %s, %s without persistence, over loopback\n", r.Machine.Go, r.Server)
	for _, m := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "- %s %s\n", m, r.Versions[m])
	}
	if r.Against != "" {
		fmt.Fprintf(&b, "- the other checkout: %s\n", r.Against)
	}
	fmt.Fprintf(&b, "- runs: %d, each with a server of its own and %d interleaved rounds, fewer where a table says so\n", r.Runs, r.Rounds)
	b.WriteString("- a figure is the median of the runs, and of the rounds in each, unless the heading says max or sum\n")
	b.WriteString("- ×: ratio to the subject marked *; in a run, the median of the ratios within each round\n")
	if r.Runs > 1 {
		b.WriteString("- a–b–c: the least, the median and the greatest of the runs\n")
	}
	if len(r.Targets) > 0 {
		writeTargets(&b, r.Targets)
	}
	for _, s := range r.Sections {
		s.writeMarkdown(&b, r.Runs > 1)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeMarkdown shows ranges if ranged is set.
func (s *Section) writeMarkdown(b *strings.Builder, ranged bool) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n", s.Title, s.Note)
	table := [][]string{{"case", "subject"}}
	for _, c := range s.Columns {
		title := c.Title
		if c.Fold != Median {
			title += " (" + string(c.Fold) + ")"
		}
		table[0] = append(table[0], title)
	}
	last := ""
	for _, row := range s.Rows {
		line := []string{row.Case, row.Subject}
		if row.Case == last {
			line[0] = ""
		}
		last = row.Case
		if row.Subject == s.Base {
			line[1] += " *"
		}
		for i, cell := range row.Cells {
			line = append(line, cell.text(s.Columns[i], row.Subject == s.Base, ranged))
		}
		table = append(table, line)
	}
	writeTable(b, 2, table)
}

// text shows the ratio beside the value, except for the base itself, of which the range of
// the values is shown instead.
func (c Cell) text(col Column, base, ranged bool) string {
	switch value := fmt.Sprintf("%.*f", col.Digits, c.Value); {
	case base && ranged && col.Ratio:
		return c.Range.text(col.Digits)
	case base || c.Ratio == Range{}:
		return value
	case ranged:
		return value + " ×" + c.Ratio.text(2)
	default:
		return fmt.Sprintf("%s ×%.2f", value, c.Ratio.Median)
	}
}

func (r Range) text(digits int) string {
	return fmt.Sprintf("%.*f–%.*f–%.*f", digits, r.Min, digits, r.Median, digits, r.Max)
}

// writeTable writes rows, the first of which is the heading, as a Markdown table:
// text to the left in the first columns, numbers to the right in the others.
func writeTable(b *strings.Builder, texts int, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	for n, row := range rows {
		for i, text := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if i < texts {
				b.WriteString("| " + text + pad + " ")
			} else {
				b.WriteString("| " + pad + text + " ")
			}
		}
		b.WriteString("|\n")
		if n == 0 {
			for i, w := range width {
				if i < texts {
					b.WriteString("|-" + strings.Repeat("-", w) + "-")
				} else {
					b.WriteString("|-" + strings.Repeat("-", w) + ":")
				}
			}
			b.WriteString("|\n")
		}
	}
}
