package cli

import "strings"

// widest is the maximum width that a single text can give a column. A longer text shifts only the rest of its own line.
const widest = 48

// gap stands between two columns.
const gap = "  "

// table prints rows of T, aligned.
type table[T any] struct {
	p       *printer
	columns []column[T]
	widths  []int
	headed  bool
}

func newTable[T any](p *printer, columns []column[T]) *table[T] {
	t := &table[T]{p: p, headed: p.noHeaders}
	for _, c := range columns {
		if !c.wide || p.format == "wide" {
			t.columns = append(t.columns, c)
		}
	}
	for _, c := range t.columns {
		t.widths = append(t.widths, c.room)
	}
	return t
}

// cell is a text as the terminal gets it, with its width and its role.
type cell struct {
	text  string
	width int
	role  role
}

func (c column[T]) cell(row T) cell {
	text := safe(c.text(row))
	if text == "" {
		text = "-"
	}
	is := cell{text: text, width: widthOf(text)}
	if c.role != nil {
		is.role = c.role(row)
	}
	return is
}

// print prints rows under the names of the columns, which are printed once.
func (t *table[T]) print(rows []T) {
	lines := make([][]cell, len(rows))
	for i, row := range rows {
		lines[i] = make([]cell, len(t.columns))
		for j, c := range t.columns {
			lines[i][j] = c.cell(row)
			t.widths[j] = max(t.widths[j], min(lines[i][j].width, widest))
		}
	}
	if !t.headed {
		t.headed = true
		heads := make([]cell, len(t.columns))
		for j, c := range t.columns {
			heads[j] = cell{c.head, widthOf(c.head), strong}
			t.widths[j] = max(t.widths[j], heads[j].width)
		}
		t.line(heads)
	}
	for _, line := range lines {
		t.line(line)
	}
	t.p.rows += len(rows)
}

func (t *table[T]) line(cells []cell) {
	for j, c := range cells {
		t.p.out.WriteString(t.p.paint(c.text, c.role))
		if j < len(cells)-1 {
			t.p.out.WriteString(strings.Repeat(" ", max(0, t.widths[j]-c.width)) + gap)
		}
	}
	t.p.out.WriteByte('\n')
}

// printOne prints a line for each column of v. Columns without a text are left out, unless the format is wide.
func (t *table[T]) printOne(v T) {
	head := 0
	for _, c := range t.columns {
		head = max(head, widthOf(c.head))
	}
	for _, c := range t.columns {
		if c.text(v) == "" && t.p.format != "wide" {
			continue
		}
		if !t.p.noHeaders {
			t.p.out.WriteString(t.p.paint(c.head, strong) + strings.Repeat(" ", head-widthOf(c.head)) + gap)
		}
		is := c.cell(v)
		t.p.out.WriteString(t.p.paint(is.text, is.role) + "\n")
	}
}
