//go:build unix

package files

import (
	"os"
	"syscall"
	"time"
)

// open opens a file for reading. It does not wait for the writer of a pipe.
func open(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// pollEvery is the interval at which readPipe tries again. No system can wait for the first writer of a pipe that is open
// for reading, and some cannot wait for the last writer to close it.
const pollEvery = 10 * time.Millisecond

// readPipe reads until all writers have closed the pipe, after at least one has written, or until there are more than
// most bytes.
func readPipe(f *os.File, most int, until time.Time) (text []byte, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for len(text) <= most {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, failed = syscall.Read(int(fd), buf)
			return true
		})
		switch {
		case err != nil:
			return nil, err
		case failed == syscall.EINTR:
		case failed != nil && failed != syscall.EAGAIN:
			return nil, os.NewSyscallError("read", failed)
		case n > 0:
			text = append(text, buf[:n]...)
		case failed == nil && len(text) > 0:
			return text, nil
		case !time.Now().Before(until):
			return nil, os.ErrDeadlineExceeded
		default:
			time.Sleep(pollEvery)
		}
	}
	return text, nil
}
