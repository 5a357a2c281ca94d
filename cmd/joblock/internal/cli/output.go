package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// output holds the flags of a command that prints rows, or one object.
type output struct {
	format    string
	noHeaders bool
	times     string
	color     string
}

// The values of the flags.
var (
	formats    = []string{"table", "wide", "json", "jsonl", "name"}
	timeStyles = []string{"relative", "iso", "unix"}
	colorings  = []string{"auto", "always", "never"}
)

func (o *output) flags(f *pflag.FlagSet) {
	f.StringVarP(&o.format, "output", "o", formats[0], "`FORMAT`: "+strings.Join(formats, ", ")+"; scripts use json or jsonl, because tables change")
	f.BoolVar(&o.noHeaders, "no-headers", false, "do not print the names of the columns")
	f.StringVar(&o.times, "time", timeStyles[0], "`STYLE` of times in tables: "+strings.Join(timeStyles, ", "))
	f.StringVar(&o.color, "color", colorings[0], "`WHEN` to use colours: "+strings.Join(colorings, ", ")+"; auto is on a terminal, unless NO_COLOR is set")
}

// oneOf returns a usage error if the value of a flag is not one of the given values.
func oneOf(flag, value string, values []string) error {
	if !slices.Contains(values, value) {
		return usage("--%s is %q, must be one of %s", flag, value, strings.Join(values, ", "))
	}
	return nil
}

// printer prints data to the standard output, in the format that the user has chosen. It is not safe for concurrent use.
type printer struct {
	output
	out      *bufio.Writer
	talk     io.Writer // the standard error
	colours  bool
	outTTY   bool
	talkTTY  bool
	width    int           // columns of the terminal; 0 if the standard output is no terminal
	pause    time.Duration // between two batches of rows
	progress func() string // if not nil, the text shown during a wait for rows; called by the goroutine of the printer
	shows    bool          // the terminal shows the text of progress
	rows     int           // number of rows that were printed
}

// printer checks the flags, and returns the printer of cmd.
func (o *output) printer(cmd *cobra.Command) (*printer, error) {
	err := cmp.Or(oneOf("output", o.format, formats), oneOf("time", o.times, timeStyles), oneOf("color", o.color, colorings))
	if err != nil {
		return nil, err
	}
	out, talk := cmd.OutOrStdout(), cmd.ErrOrStderr()
	p := &printer{output: *o, out: bufio.NewWriter(out), talk: talk, pause: batchPause}
	p.width, p.outTTY = sizeOf(out)
	_, p.talkTTY = sizeOf(talk)
	p.colours = o.color == "always" ||
		o.color == "auto" && p.outTTY && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return p, nil
}

// sizeOf reports whether w is a terminal, and how many columns it has.
func sizeOf(w io.Writer) (columns int, is bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
		return columns, true
	}
	return 80, true
}

// forPeople reports whether the format is one for people.
func (p *printer) forPeople() bool { return p.format == "table" || p.format == "wide" }

// column is a column of a table of T. The text may have any characters: the printer makes it safe. An empty text is
// shown as "-".
type column[T any] struct {
	head string
	wide bool // only with -o wide
	room int  // the least width, for tables whose first rows are printed long before the others
	text func(T) string
	role func(T) role // what the text means, shown as a color; nil for plain
}

const (
	// batchPause is how long a row waits for further rows of its batch. All rows of a batch are printed with the same
	// widths.
	batchPause = 100 * time.Millisecond

	// batchRows is the largest number of rows of a batch.
	batchRows = 1000

	// progressPause is how long to wait for rows before progress is shown.
	progressPause = 500 * time.Millisecond
)

// printAll prints rows. Rows are printed while later rows are still being read. The formats are:
//
//	table, wide  aligned columns under their names; a later batch may be wider than the first
//	json         {"v":1,"items":[...]}, one item on a line
//	jsonl        one object on a line
//	name         the first column, one on a line
//
// An error of rows ends the output and is returned. The rows before the error are printed. The JSON document is then
// left incomplete, so that no program takes it for the whole.
func printAll[T any](p *printer, columns []column[T], rows iter.Seq2[T, error]) error {
	var print func(batch []T) error
	end := func() error { return nil }
	switch p.format {
	case "json":
		p.out.WriteString(`{"v":1,"items":[`)
		print = func(batch []T) error {
			for _, row := range batch {
				if p.rows > 0 {
					p.out.WriteByte(',')
				}
				p.out.WriteByte('\n')
				if err := p.object(row); err != nil {
					return err
				}
				p.rows++
			}
			return nil
		}
		end = func() error {
			if p.rows > 0 {
				p.out.WriteByte('\n')
			}
			_, err := p.out.WriteString("]}\n")
			return err
		}
	case "jsonl":
		print = func(batch []T) error {
			for _, row := range batch {
				if err := p.object(row); err != nil {
					return err
				}
				p.out.WriteByte('\n')
				p.rows++
			}
			return nil
		}
	case "name":
		print = func(batch []T) error {
			for _, row := range batch {
				p.out.WriteString(safe(columns[0].text(row)) + "\n")
				p.rows++
			}
			return nil
		}
	default:
		t := newTable(p, columns)
		print = func(batch []T) error { t.print(batch); return nil }
	}
	err := batches(p, rows, func(batch []T) error {
		p.hide()
		if err := print(batch); err != nil {
			return err
		}
		return p.out.Flush()
	})
	p.hide()
	if err != nil {
		_ = p.out.Flush()
		return err
	}
	return cmp.Or(end(), p.out.Flush())
}

// batches calls print with rows, several at a time, until all rows were printed. No row waits longer than
// the pause of p.
func batches[T any](p *printer, rows iter.Seq2[T, error], print func([]T) error) error {
	type item struct {
		row T
		err error
	}
	items, stop := make(chan item, 64), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(items)
		for row, err := range rows {
			select {
			case items <- item{row, err}:
			case <-stop:
				return
			}
			if err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	defer close(stop)
	var batch []T
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := print(batch)
		clear(batch)
		batch = batch[:0]
		return err
	}
	tick := time.NewTicker(p.pause)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case it, ok := <-items:
			if !ok {
				return flush()
			}
			if it.err != nil {
				return cmp.Or(flush(), it.err)
			}
			if batch = append(batch, it.row); len(batch) < batchRows {
				continue
			}
		case now := <-tick.C:
			if now.Sub(began) >= progressPause {
				p.show()
			}
		}
		if err := flush(); err != nil {
			return err
		}
	}
}

// printOne prints v. The formats are:
//
//	table  a line for each column that has a text: its name and its text; wide is the same with all columns
//	json   {"v":1,...}: "v" and the members of the object, each on a line
//	jsonl  the same on one line
//	name   the first column
func printOne[T any](p *printer, columns []column[T], v T) error {
	switch p.format {
	case "json", "jsonl":
		text, err := p.encode(v)
		if err != nil {
			return err
		}
		if rest, ok := bytes.CutPrefix(text, []byte("{")); ok {
			text = append([]byte(`{"v":1`), rest...)
			if !bytes.HasPrefix(rest, []byte("}")) {
				text = append([]byte(`{"v":1,`), rest...)
			}
		}
		if p.format == "json" {
			var b bytes.Buffer
			if err := json.Indent(&b, text, "", "  "); err != nil {
				return err
			}
			text = b.Bytes()
		}
		p.out.Write(text)
		p.out.WriteByte('\n')
	case "name":
		p.out.WriteString(safe(columns[0].text(v)) + "\n")
	default:
		newTable(p, columns).printOne(v)
	}
	p.rows++
	return p.out.Flush()
}

// rowsIn returns the values of all as rows.
func rowsIn[T any](all []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// object writes v as JSON, on one line.
func (p *printer) object(v any) error {
	text, err := p.encode(v)
	if err != nil {
		return err
	}
	_, err = p.out.Write(text)
	return err
}

func (p *printer) encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return safeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// say prints a line to the standard error.
func (p *printer) say(format string, args ...any) {
	fmt.Fprintln(p.talk, visible(fmt.Sprintf(format, args...)))
}

// none prints that a list is empty, in the formats for people; programs see it in the output.
func (p *printer) none(format string, args ...any) {
	if p.rows == 0 && p.forPeople() {
		p.say(format, args...)
	}
}

// show prints the progress, if the standard error is a terminal.
func (p *printer) show() {
	if p.progress == nil || !p.talkTTY {
		return
	}
	if text := p.progress(); text != "" {
		fmt.Fprintf(p.talk, "\r%s\x1b[K", visible(text))
		p.shows = true
	}
}

// hide erases the text of show.
func (p *printer) hide() {
	if p.shows {
		fmt.Fprint(p.talk, "\r\x1b[K")
		p.shows = false
	}
}

// when returns the time t for a table, "" for the zero t. ago is the age of t, by the clock that t was read from. It is
// negative if t is in the future.
func (p *printer) when(t time.Time, ago time.Duration) string {
	switch {
	case t.IsZero():
		return ""
	case p.times == "iso":
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	case p.times == "unix":
		return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
	case ago < 0:
		return "in " + span(-ago)
	}
	return span(ago) + " ago"
}

// paint returns text in the colour of its role.
func (p *printer) paint(text string, r role) string {
	if !p.colours || r == plain || text == "" {
		return text
	}
	return "\x1b[" + colourOf[r] + "m" + text + "\x1b[0m"
}

// role is what a text means, shown as colour. No text depends on its colour to be understood.
type role uint8

const (
	plain role = iota
	strong
	good
	warning
	bad
	faint
)

var colourOf = [...]string{strong: "1", good: "32", warning: "33", bad: "31", faint: "2"}

// sayTo writes a message line, prefixed with the program's name.
func sayTo(w io.Writer, text string) { fmt.Fprintf(w, "joblock: %s\n", text) }
