//go:build unix

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// "joblock run" consists of two processes. The front is the process that the user has started. The holder is a child of
// the front, and the parent of the command. The holder has the connection to Redis and the lock.
//
//	front  ──►  holder  ──►  command  ──►  ...
//
// Each of the two ends the command if the other fails, so that the command never outlives the lock:
//
//	the front is killed      the holder kills the command and its descendants, and releases the lock
//	the holder is killed     the kernel kills the command (Linux); the front kills the descendants
//	the holder hangs         the front kills all of them when the trusted time that the holder last reported has passed
//	the front hangs          the holder goes on
//
// If the user's shell stops the front (Ctrl-Z), the holder still renews: a stopped command keeps its lock.

// envHolder marks a process as the holder. Its value is "fd:ppid": the file descriptor of the holder's end of the link,
// and the pid of the front, so that a process that inherits the variable by accident is no holder.
const envHolder = "JOBLOCK_RUN_HOLDER"

// message is a message between the two processes. Each message sets a single field.
type message struct {
	// From the front to the holder.
	Files  map[string][]byte `json:"files,omitempty"`  // the first message, which sets no other field: see server.files
	Signal int               `json:"signal,omitempty"` // the front has received this signal
	Ask    bool              `json:"ask,omitempty"`    // asks for Until

	// From the holder to the front.
	Child   int     `json:"child,omitempty"`   // the command runs; its pid, which is also its process group
	Until   *until  `json:"until,omitempty"`   // the answer to Ask; also sent when the command is started
	Stopped int     `json:"stopped,omitempty"` // this signal has stopped the command
	Gone    bool    `json:"gone,omitempty"`    // the command and its descendants have ended
	Say     string  `json:"say,omitempty"`     // a line for the user: only the front writes to the terminal
	End     *ending `json:"end,omitempty"`     // the last message
}

// ending is how "run" ends.
type ending struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"` // the signal that has ended the command
}

// until is an instant, by two clocks of this machine.
type until struct {
	Clock int64         `json:"clock"` // see the function clock
	Wall  int64         `json:"wall"`  // nanoseconds since 1970
	Lead  time.Duration `json:"lead"`  // the lock is lost that long after the instant
}

func untilIn(d, lead time.Duration) *until {
	return &until{clock() + int64(d), time.Now().Add(d).UnixNano(), lead}
}

// left returns the time until u, by whichever clock shows less.
func (u *until) left() time.Duration {
	return time.Duration(min(u.Clock-clock(), u.Wall-time.Now().UnixNano()))
}

// link is one end of the connection between front and holder.
type link struct {
	f    *os.File
	gets chan message // closed when the other end is closed
}

// newLink makes a pair of connected sockets; other is the file descriptor for the other process.
func newLink() (own *link, other int, err error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, 0, err
	}
	return openLink(pair[0]), pair[1], nil
}

// openLink returns a link on the socket fd, and begins to read.
func openLink(fd int) *link {
	_ = syscall.SetNonblock(fd, true) // then writes can have a deadline
	l := &link{os.NewFile(uintptr(fd), "link"), make(chan message)}
	go l.read()
	return l
}

// inheritedLink returns the holder's end of the link, if this process is a holder.
func inheritedLink() (l *link, ok bool, err error) {
	text := os.Getenv(envHolder)
	fdText, ppidText, _ := strings.Cut(text, ":")
	fd, bad1 := strconv.Atoi(fdText)
	ppid, bad2 := strconv.Atoi(ppidText)
	if text == "" || bad1 != nil || bad2 != nil || ppid != os.Getppid() {
		return nil, false, nil
	}
	if err := os.Unsetenv(envHolder); err != nil {
		return nil, false, fmt.Errorf("%s: %w", envHolder, err)
	}
	syscall.CloseOnExec(fd)
	return openLink(fd), true, nil
}

func (l *link) read() {
	defer close(l.gets)
	for r := bufio.NewReader(l.f); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) == nil {
			l.gets <- m
		}
	}
}

// writePatience bounds a write to a process that hangs. The few messages fit into the socket's buffer.
const writePatience = 100 * time.Millisecond

// filesPatience bounds the write of the first message, which may be larger than the socket's buffer. The holder has to
// start before it reads.
const filesPatience = 10 * time.Second

// send sends m. It ignores failures, which mean that the other process has ended or hangs: reading from the link shows
// that too.
func (l *link) send(m message) { _ = l.sendIn(writePatience, m) }

// sendIn sends m. It waits for at most d until the other process has read enough.
func (l *link) sendIn(d time.Duration, m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = l.f.SetWriteDeadline(time.Now().Add(d))
	_, err = l.f.Write(append(line, '\n'))
	return err
}

func (l *link) say(format string, args ...any) { l.send(message{Say: fmt.Sprintf(format, args...)}) }
