// Package files reads the files that options and configurations name: passwords, tokens, certificates, accounts.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Patience is how long to wait for the writer of a pipe where no caller says otherwise.
const Patience = 5 * time.Second

// Read returns the content of the regular file, or of the pipe, with this name. info is from before the read, so that a
// later change can be noticed.
//
// A file with more than most bytes is an error. So is a pipe that has not ended after patience, and any pipe if patience
// is 0. Pipes are accepted because the shell's <(command) is the best way to pass a secret that must not be in a file.
// Devices are refused: some never end, and none has what a caller of Read wants.
func Read(name string, most int, patience time.Duration) (text []byte, info fs.FileInfo, err error) {
	until := time.Now().Add(patience)
	f, err := open(name) // does not wait
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	if err := Check(name, info, patience > 0); err != nil {
		return nil, info, err
	}
	if !info.Mode().IsRegular() {
		text, err = readPipe(f, most, until)
	} else {
		text, err = io.ReadAll(io.LimitReader(f, int64(most)+1))
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, info, fmt.Errorf("%s is a pipe whose writer has not finished within %s", name, patience)
	case err != nil:
		return nil, info, err
	case len(text) > most:
		return nil, info, fmt.Errorf("the file %s has more than %d bytes", name, most)
	}
	return text, info, nil
}

// Check returns an error for a file that Read would refuse. If pipes is false, it accepts only a regular file.
func Check(name string, info fs.FileInfo, pipes bool) error {
	switch {
	case info.Mode().IsRegular(), pipes && info.Mode()&fs.ModeNamedPipe != 0:
		return nil
	case pipes:
		return fmt.Errorf("%s is neither a regular file nor a pipe", name)
	}
	return fmt.Errorf("%s is not a regular file", name)
}
