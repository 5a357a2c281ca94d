package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// Report is one run: everything in it was measured on one machine against one
// server.
type Report struct {
	Machine  rig.Machine       `json:"machine"`
	Redis    string            `json:"redis"`
	Versions map[string]string `json:"versions"` // by module
	Rounds   int               `json:"rounds"`
	Sections []*Section        `json:"sections"`
}

// WriteJSON writes all rounds, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteMarkdown writes the tables in Markdown, aligned to be read in a terminal
// too.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Benchmark results\n\n")
	fmt.Fprintf(&b, "- machine: %s, %d cores, %s\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel)
	fmt.Fprintf(&b, "- %s, redis-server %s without persistence, over loopback\n", r.Machine.Go, r.Redis)
	for _, m := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "- %s %s\n", m, r.Versions[m])
	}
	fmt.Fprintf(&b, "- %d interleaved rounds; medians, unless the heading says max or sum\n", r.Rounds)
	b.WriteString("- ×: ratio to the subject marked *, median of the ratios within each round\n")
	for _, s := range r.Sections {
		s.writeMarkdown(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Section) writeMarkdown(b *strings.Builder) {
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
			line = append(line, cell.text(s.Columns[i], row.Subject == s.Base))
		}
		table = append(table, line)
	}
	writeTable(b, table)
}

// text shows the ratio beside the value, except for the base itself.
func (c Cell) text(col Column, base bool) string {
	s := fmt.Sprintf("%.*f", col.Digits, c.Value)
	if c.Ratio != 0 && !base {
		s += fmt.Sprintf(" ×%.2f", c.Ratio)
	}
	return s
}

// writeTable writes rows, the first of which is the heading, as a Markdown table:
// text to the left in the first two columns, numbers to the right in the others.
func writeTable(b *strings.Builder, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	for n, row := range rows {
		for i, text := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if i < 2 {
				b.WriteString("| " + text + pad + " ")
			} else {
				b.WriteString("| " + pad + text + " ")
			}
		}
		b.WriteString("|\n")
		if n == 0 {
			for i, w := range width {
				if i < 2 {
					b.WriteString("|-" + strings.Repeat("-", w) + "-")
				} else {
					b.WriteString("|-" + strings.Repeat("-", w) + ":")
				}
			}
			b.WriteString("|\n")
		}
	}
}
