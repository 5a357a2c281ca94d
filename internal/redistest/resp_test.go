package redistest

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestReadCommand(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     [][]string
	}{
		{"one", "*1\r\n$4\r\nPING\r\n", [][]string{{"PING"}}},
		{"pipeline", "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n", [][]string{{"GET", "a"}, {"PING"}}},
		{"inline", "SET a b\r\n", [][]string{{"SET", "a", "b"}}},
		{"line breaks in an argument", "*2\r\n$4\r\nECHO\r\n$6\r\na\r\n*1\r\r\n", [][]string{{"ECHO", "a\r\n*1\r"}}},
		{"empty argument", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", [][]string{{"ECHO", ""}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := bufio.NewReader(strings.NewReader(tc.in))
			var all string
			for _, want := range tc.want {
				raw, args, err := readCommand(r)
				if err != nil || !slices.Equal(args, want) {
					t.Fatalf("readCommand() = %q, %v, want %q", args, err, want)
				}
				all += string(raw)
			}
			if all != tc.in {
				t.Errorf("raw bytes %q, want %q", all, tc.in)
			}
			if _, _, err := readCommand(r); err != io.EOF {
				t.Errorf("behind the last command: %v, want EOF", err)
			}
		})
	}
}

func TestReadReplyKeepsFramesWhole(t *testing.T) {
	for _, in := range []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n",
		"$-1\r\n", "$0\r\n\r\n", "$4\r\na\r\nb\r\n", "=7\r\ntxt:abc\r\n", "!3\r\nERR\r\n",
		"*0\r\n", "*-1\r\n", "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", "~1\r\n:1\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
		"|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n",
	} {
		const next = "+NEXT\r\n"
		r := bufio.NewReader(strings.NewReader(in + next))
		got, err := readReply(r)
		if err != nil || string(got.raw) != in {
			t.Errorf("readReply(%q) = %q, %v", in, got.raw, err)
			continue
		}
		if got, err = readReply(r); err != nil || string(got.raw) != next {
			t.Errorf("behind %q: %q, %v, want %q", in, got.raw, err, next)
		}
	}
}

func TestReadReplyNamesTheFirstElement(t *testing.T) {
	for in, want := range map[string]string{
		"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n": "subscribe",
		">2\r\n+message\r\n+x\r\n":                   "message",
		"*1\r\n:1\r\n":                               "",
		"*0\r\n":                                     "",
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(in)))
		if err != nil || got.first != want {
			t.Errorf("readReply(%q).first = %q, %v, want %q", in, got.first, err, want)
		}
	}
}

func TestBrokenStreamsAreErrors(t *testing.T) {
	for _, in := range []string{"", "\r\n", "*1\n", "*x\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n", "*1\r\n$5\r\nab"} {
		if _, args, err := readCommand(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("readCommand(%q) = %q, want an error", in, args)
		}
	}
	for _, in := range []string{"", "?\r\n", "?1\r\n", "$x\r\n", "*2\r\n:1\r\n", "$5\r\nab\r\n"} {
		if got, err := readReply(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("readReply(%q) = %q, want an error", in, got.raw)
		}
	}
}
