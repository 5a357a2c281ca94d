package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// hostile are texts that a terminal would obey, or that would break a line, a column or a document.
var hostile = []string{
	"a\x1b[31mred", "\x1b]0;title\x07", "line\nline", "tab\ttab", "\r\x1b[2K", "c1\u009b31m", "rtl\u202eevil", "zero\u200bwidth",
	"bad\xffutf8", "\x9b31m", "nul\x00", "del\x7f", "\u2028", "--force", "-", "", " ", "end ", "\"quoted\"", `\x1b[31m`, "日本語",
	"e\u0301\u0301\u0301", "\U000e0041tag", "<b>&amp;</b>", strings.Repeat("long", 300),
}

// sample is a row of the tests.
type sample struct {
	Key   string `json:"key"`
	Count int    `json:"count,omitempty"`
}

var sampleColumns = []column[sample]{
	{head: "KEY", text: func(s sample) string { return s.Key }, role: func(s sample) role { return bad }},
	{head: "COUNT", wide: true, text: func(s sample) string {
		if s.Count == 0 {
			return ""
		}
		return fmt.Sprint(s.Count)
	}},
	{head: "END", text: func(sample) string { return "end" }},
}

// testPrinter returns a printer whose output is in out.
func testPrinter(format string) (p *printer, out *bytes.Buffer) {
	out = &bytes.Buffer{}
	cmd := &cobra.Command{}
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	o := output{format: format, times: "relative", color: "never"}
	p, err := o.printer(cmd)
	if err != nil {
		panic(err)
	}
	p.pause = time.Hour // all rows are one batch
	return p, out
}

// rowsOf returns rows with these keys, and then the error, if there is one.
func rowsOf(err error, keys ...string) iter.Seq2[sample, error] {
	return func(yield func(sample, error) bool) {
		for i, key := range keys {
			if !yield(sample{key, i}, nil) {
				return
			}
		}
		if err != nil {
			yield(sample{}, err)
		}
	}
}

func TestPrintAll(t *testing.T) {
	for format, want := range map[string]string{
		"table": "KEY   END\na     end\nlong  end\n-     end\n",
		"wide":  "KEY   COUNT  END\na     -      end\nlong  1      end\n-     2      end\n",
		"name":  "a\nlong\n\n",
		"json":  "{\"v\":1,\"items\":[\n{\"key\":\"a\"},\n{\"key\":\"long\",\"count\":1},\n{\"key\":\"\",\"count\":2}\n]}\n",
		"jsonl": "{\"key\":\"a\"}\n{\"key\":\"long\",\"count\":1}\n{\"key\":\"\",\"count\":2}\n",
	} {
		p, out := testPrinter(format)
		if err := printAll(p, sampleColumns, rowsOf(nil, "a", "long", "")); err != nil || out.String() != want || p.rows != 3 {
			t.Errorf("%s: %d rows, %v:\n%s\nwant\n%s", format, p.rows, err, out, want)
		}
	}
	p, out := testPrinter("table")
	spacious := []column[sample]{{head: "KEY", room: 6, text: sampleColumns[0].text}, sampleColumns[2]}
	if err := printAll(p, spacious, rowsOf(nil, "a")); err != nil || out.String() != "KEY     END\na       end\n" {
		t.Errorf("a column with room: %v, %q", err, out)
	}
	p, out = testPrinter("table")
	p.noHeaders = true
	if err := printAll(p, sampleColumns, rowsOf(nil, "a")); err != nil || out.String() != "a  end\n" {
		t.Errorf("without headers: %v, %q", err, out)
	}
}

func TestPrintAllWithoutRows(t *testing.T) {
	for format, want := range map[string]string{"table": "", "wide": "", "name": "", "jsonl": "", "json": "{\"v\":1,\"items\":[]}\n"} {
		p, out := testPrinter(format)
		if err := printAll(p, sampleColumns, rowsIn[sample](nil)); err != nil || out.String() != want || p.rows != 0 {
			t.Errorf("%s: %d rows, %v, %q, want %q", format, p.rows, err, out, want)
		}
	}
}

func TestPrintOne(t *testing.T) {
	for format, want := range map[string]string{
		"table": "KEY  a\nEND  end\n",
		"wide":  "KEY    a\nCOUNT  -\nEND    end\n",
		"name":  "a\n",
		"json":  "{\n  \"v\": 1,\n  \"key\": \"a\"\n}\n",
		"jsonl": "{\"v\":1,\"key\":\"a\"}\n",
	} {
		p, out := testPrinter(format)
		if err := printOne(p, sampleColumns, sample{Key: "a"}); err != nil || out.String() != want {
			t.Errorf("%s: %v:\n%s\nwant\n%s", format, err, out, want)
		}
	}
	p, out := testPrinter("json")
	if err := printOne(p, nil, struct{}{}); err != nil || out.String() != "{\n  \"v\": 1\n}\n" {
		t.Errorf("no members: %v, %q", err, out)
	}
}

// The rows before an error are printed, and a JSON document is then without its end.
func TestPrintAllOfRowsWithAnError(t *testing.T) {
	broken := errors.New("broken")
	for _, format := range formats {
		p, out := testPrinter(format)
		if err := printAll(p, sampleColumns, rowsOf(broken, "a", "b")); !errors.Is(err, broken) {
			t.Errorf("%s: error %v", format, err)
		}
		if p.rows != 2 || !strings.Contains(out.String(), "b") {
			t.Errorf("%s: %d rows: %s", format, p.rows, out)
		}
		if format == "json" && json.Valid(out.Bytes()) {
			t.Errorf("the document looks whole: %s", out)
		}
	}
}

type badWriter struct{ err error }

func (w badWriter) Write([]byte) (int, error) { return 0, w.err }

// Once the output cannot be written, no more rows are read.
func TestPrintAllStopsReadingWhenItsOutputIsClosed(t *testing.T) {
	full := errors.New("disk is full")
	for _, format := range formats {
		cmd := &cobra.Command{}
		cmd.SetOut(badWriter{full})
		o := output{format: format, times: "iso", color: "always"}
		p, err := o.printer(cmd)
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		err = printAll(p, sampleColumns, func(yield func(sample, error) bool) {
			for yield(sample{Key: "a"}, nil) {
				read++
			}
		})
		if !errors.Is(err, full) {
			t.Errorf("%s: error %v", format, err)
		}
	}
}

// The first rows are printed while the next row is still being looked for.
func TestRowsDoNotWaitForLaterRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, format := range []string{"table", "jsonl", "json", "name"} {
			p, out := testPrinter(format)
			p.pause = batchPause
			early := ""
			err := printAll(p, sampleColumns, func(yield func(sample, error) bool) {
				yield(sample{Key: "first"}, nil)
				time.Sleep(time.Minute)
				synctest.Wait()
				early = out.String()
				yield(sample{Key: "much-longer"}, nil)
			})
			if err != nil || !strings.Contains(early, "first") || strings.Contains(early, "longer") || !strings.Contains(out.String(), "much-longer") {
				t.Errorf("%s: %v; after a minute %q, in the end %q", format, err, early, out)
			}
		}
	})
}

// Whatever is in a text, what comes out has only visible characters, line feeds, and the colours of the printer; a row
// takes one line; and the JSON says the text exactly, but for bytes that are not UTF-8.
func TestNoTextReachesTheTerminalRaw(t *testing.T) {
	for _, format := range formats {
		for _, color := range []string{"never", "always"} {
			p, out := testPrinter(format)
			p.colours = color == "always"
			if err := printAll(p, sampleColumns, rowsOf(nil, hostile...)); err != nil {
				t.Fatal(err)
			}
			got := out.String()
			if p.colours {
				got = strings.NewReplacer("\x1b[31m", "", "\x1b[1m", "", "\x1b[0m", "").Replace(got)
			}
			if i := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%s, colours %s: %q", format, color, got[max(0, i-20):i+10])
			}
			lines := strings.Count(got, "\n")
			if want := map[string]int{"table": 1, "wide": 1, "json": 2}[format] + len(hostile); lines != want {
				t.Errorf("%s: %d lines, want %d", format, lines, want)
			}
			if format == "json" {
				var doc struct{ Items []sample }
				if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
					t.Fatal(err)
				}
				for i, text := range hostile {
					if want := strings.ToValidUTF8(text, "\ufffd"); doc.Items[i].Key != want {
						t.Errorf("JSON has %q, want %q", doc.Items[i].Key, want)
					}
				}
			}
		}
	}
	p, out := testPrinter("table")
	talk := &bytes.Buffer{}
	p.talk = talk
	for _, text := range hostile {
		p.say("key %s", text)
		if err := printOne(p, sampleColumns, sample{Key: text}); err != nil {
			t.Fatal(err)
		}
	}
	if strings.ContainsFunc(talk.String()+out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("%q %q", talk, out)
	}
}

func TestErrorsAreVisible(t *testing.T) {
	var stderr bytes.Buffer
	if code := Main([]string{"joblock", "--\x1b[31mls"}, nil, io.Discard, &stderr); code != exitUsage || strings.Contains(stderr.String(), "\x1b") {
		t.Errorf("code %d, %q", code, &stderr)
	}
	for text, want := range map[string]string{
		"a\x1b[1mb\nc": `a\x1b[1mb` + "\nc", "bad\xff": `bad\xff`, "\u202e": `\u202e`, "fine, \"é\"": "fine, \"é\"",
	} {
		if got := visible(text); got != want {
			t.Errorf("visible(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestFlagsOfOutput(t *testing.T) {
	var o output
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.flags(f)
	for format, people := range map[string]bool{"table": true, "wide": true, "json": false, "jsonl": false, "name": false} {
		if err := f.Parse([]string{"-o", format, "--no-headers"}); err != nil {
			t.Fatal(err)
		}
		p, err := o.printer(&cobra.Command{})
		if err != nil || p.format != format || p.times != "relative" || !p.noHeaders || p.forPeople() != people {
			t.Errorf("-o %s: %v, %+v", format, err, p)
		}
	}
	for _, o := range []output{
		{"yaml", false, "iso", "auto"}, {"table", false, "local", "auto"}, {"table", false, "iso", "yes"}, {"", false, "", ""},
	} {
		if _, err := o.printer(&cobra.Command{}); codeOf(err) != exitUsage {
			t.Errorf("%+v: error %v", o, err)
		}
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	for _, tc := range []struct {
		color string
		want  bool
	}{{"auto", false}, {"never", false}, {"always", true}} {
		cmd := &cobra.Command{}
		cmd.SetOut(&bytes.Buffer{})
		o := output{"table", false, "iso", tc.color}
		p, err := o.printer(cmd)
		if err != nil || p.colours != tc.want {
			t.Errorf("--color %s into a pipe: colours %t, %v", tc.color, p.colours, err)
		}
	}
}

func TestTimesOfTables(t *testing.T) {
	at := time.Date(2030, time.March, 1, 12, 0, 0, 5e8, time.FixedZone("", 3600))
	for style, want := range map[string][]string{
		"relative": {"1m05s ago", "in 1m05s", ""},
		"iso":      {"2030-03-01T11:00:00.500Z", "2030-03-01T11:00:00.500Z", ""},
		"unix":     {"1898593200.500", "1898593200.500", ""},
	} {
		p, _ := testPrinter("table")
		p.times = style
		got := []string{p.when(at, 65*time.Second), p.when(at, -65*time.Second), p.when(time.Time{}, 0)}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", style, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 40 * time.Millisecond: "0.0s", 9990 * time.Millisecond: "9.9s", 59999 * time.Millisecond: "59s",
		time.Minute: "1m00s", time.Hour - 1: "59m59s", 47*time.Hour + 59*time.Minute: "47h59m", 48 * time.Hour: "2d00h",
		1000 * time.Hour: "41d16h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestCutAndWrap(t *testing.T) {
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"}, {"abc", 1, "…"}, {"abc", 0, ""}} {
		if got := cut(tc.text, tc.n); got != tc.want || widthOf(got) > tc.n {
			t.Errorf("cut(%q, %d) = %q, want %q", tc.text, tc.n, got, tc.want)
		}
	}
	if got := wrap("one two three-is-long four", 8); got != "one two\nthree-is-long\nfour" {
		t.Errorf("wrap: %q", got)
	}
	if got := wrap("one two\n   three four", 10); got != "one two\n   three\nfour" {
		t.Errorf("wrap of two lines: %q", got)
	}
	if got := wrap("one two", 0); got != "one two" {
		t.Errorf("wrap without bound: %q", got)
	}
}

// What doctor has found before its look was cut short is for people only.
func TestFindingsOfALookThatWasCutShort(t *testing.T) {
	found := ops.Report{Safe: ops.Safety{Word: "unknown", Because: "it was cut short"}, Findings: []ops.Finding{{Severity: ops.Warning, Subject: "appendonly", Found: "no"}}}
	p, out := testPrinter("table")
	if err := tellReport(p, ops.Report{}, joblock.ErrUnavailable); !errors.Is(err, joblock.ErrUnavailable) || out.Len() != 0 {
		t.Errorf("nothing was looked at: %v, printed %q", err, out)
	}
	for format, want := range map[string]string{"table": "Safe for locks: unknown, because it was cut short.\n\nwarning: appendonly", "json": "", "jsonl": ""} {
		p, out := testPrinter(format)
		if err := tellReport(p, found, joblock.ErrUnavailable); !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("%s: %v", format, err)
		}
		if got := out.String(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: printed %q, want %q", format, got, want)
		}
		p, out = testPrinter(format)
		if err := tellReport(p, found, nil); err != nil || !strings.Contains(out.String(), "appendonly") {
			t.Errorf("%s: %v, printed %q", format, err, out)
		}
	}
}
