package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen is a terminal on which a command draws full pages.
type screen struct {
	in    *os.File
	out   *os.File
	state *term.State // of the terminal, restored by close
	keys  chan string // see keysIn
}

// The control sequences that a screen writes.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another page, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// newScreen takes over the terminal and makes it raw. If in or out is not a terminal that can draw pages, ok is false and
// nothing was changed.
func newScreen(in io.Reader, out io.Writer) (s *screen, ok bool, err error) {
	i, ok1 := in.(*os.File)
	o, ok2 := out.(*os.File)
	if !ok1 || !ok2 || !term.IsTerminal(int(i.Fd())) || !term.IsTerminal(int(o.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil, false, nil
	}
	state, err := term.MakeRaw(int(i.Fd()))
	if err != nil {
		return nil, true, err
	}
	s = &screen{in: i, out: o, state: state, keys: make(chan string, 64)}
	fmt.Fprint(o, enterScreen)
	go s.read()
	return s, true, nil
}

// close restores the terminal. The goroutine that reads ends with the process, because a read of a terminal cannot be
// interrupted.
func (s *screen) close() {
	fmt.Fprint(s.out, leaveScreen)
	_ = term.Restore(int(s.in.Fd()), s.state)
}

// read sends the keys that the user types. It closes the channel when the terminal is gone.
func (s *screen) read() {
	defer close(s.keys)
	for text := make([]byte, 256); ; {
		n, err := s.in.Read(text)
		for _, key := range keysIn(text[:n]) {
			s.keys <- key
		}
		if err != nil {
			return
		}
	}
}

// size returns how many columns and lines the screen has now.
func (s *screen) size() (columns, lines int) {
	columns, lines, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns < 1 || lines < 1 {
		return 80, 24
	}
	return columns, lines
}

// draw shows lines, of which each has at most as many columns as the screen.
func (s *screen) draw(lines []string) error {
	_, err := fmt.Fprint(s.out, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow)
	return err
}

// sequences are what terminals send for keys without a character.
var sequences = map[string]string{
	"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "pgup", "\x1b[6~": "pgdn",
	"\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end", "\x1bOH": "home", "\x1bOF": "end",
}

// keysIn returns the keys that text stands for: characters, and the names up, down, pgup, pgdn, home, end, enter, esc,
// back and ctrl-c. It ignores everything else.
func keysIn(text []byte) (keys []string) {
	for len(text) > 0 {
		if text[0] == '\x1b' {
			n := sequenceLen(text)
			if name, ok := sequences[string(text[:n])]; ok {
				keys = append(keys, name)
			} else if n == 1 {
				keys = append(keys, "esc")
			}
			text = text[n:]
			continue
		}
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\r' || r == '\n':
			keys = append(keys, "enter")
		case r == 0x7f || r == '\b':
			keys = append(keys, "back")
		case r == 3:
			keys = append(keys, "ctrl-c")
		case r != utf8.RuneError && !invisible(r):
			keys = append(keys, string(r))
		}
		text = text[n:]
	}
	return keys
}

// sequenceLen returns the length of the escape sequence at the beginning of text; 1 if the user typed ESC alone.
func sequenceLen(text []byte) int {
	if len(text) < 2 || text[1] != '[' && text[1] != 'O' {
		return 1
	}
	for i := 2; i < len(text); i++ {
		if text[i] >= 0x40 && text[i] <= 0x7e {
			return i + 1
		}
	}
	return len(text)
}
