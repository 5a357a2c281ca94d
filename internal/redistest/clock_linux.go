package redistest

import (
	_ "embed"
	numbers "encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed shim/clock.c
var clockShim []byte

// Clock is the wall clock of a server that StartClock has started. Any goroutine may call Set.
type Clock struct {
	t    testing.TB
	file string
}

// StartClock is [Start] for a server whose wall clock a test can set while the server runs. The test compiles the
// library that sets the clock. Without a C compiler, which make servers installs, the test fails.
func StartClock(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	c := &Clock{t: t, file: filepath.Join(dir, "offset")}
	if err := os.WriteFile(source, clockShim, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.file, make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	name, err := exec.Command("go", "env", "CC").Output() // make servers has installed this compiler
	cc := strings.Fields(string(name))
	if err != nil || len(cc) == 0 {
		t.Fatalf("go env CC: %v, %q", err, name)
	}
	build := exec.Command(cc[0], append(cc[1:], "-shared", "-fPIC", "-O1", "-o", library, source)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compile the clock, with the C compiler that `make servers` installs: %v\n%s", err, out)
	}
	s := start(t, []string{"LD_PRELOAD=" + library, "REDISTEST_CLOCK=" + c.file}, func() []string { return args })
	return s, c
}

// clockRead is how long a server may go on using a reading of the wall clock: Valkey from 9.1 on reads the clock once
// a millisecond and adds what the monotonic clock has counted since (valkey-io/valkey#3193).
const clockRead = 2 * time.Millisecond

// Set makes the server's clock differ by d, in whole seconds, from the clock of this machine. Every command that the
// server gets after Set sees the difference.
func (c *Clock) Set(d time.Duration) {
	c.t.Helper()
	// Write the file in place, because the server has mapped the file.
	f, err := os.OpenFile(c.file, os.O_WRONLY, 0)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	b := numbers.NativeEndian.AppendUint64(nil, uint64(int64(d/time.Second)))
	if _, err := f.WriteAt(b, 0); err != nil {
		c.t.Error(err)
	}
	time.Sleep(clockRead)
}
