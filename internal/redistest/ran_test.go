package redistest

import (
	"fmt"
	"os"
	"testing"
)

// fakeTB is a TB whose outcome is looked at instead of counting.
type fakeTB struct {
	testing.TB
	failed, skipped bool
	fatal           string
	cleanups        []func()
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Name() string      { return "TestFake" }
func (f *fakeTB) Failed() bool      { return f.failed }
func (f *fakeTB) Skipped() bool     { return f.skipped }
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Fatalf(format string, args ...any) {
	f.Fatal(fmt.Sprintf(format, args...))
}
func (f *fakeTB) Fatal(args ...any) {
	f.fatal = fmt.Sprint(args...)
	panic(f)
}
func (f *fakeTB) Skip(...any) {
	f.skipped = true
	panic(f)
}

func (f *fakeTB) end() {
	for len(f.cleanups) > 0 {
		last := len(f.cleanups) - 1
		f.cleanups[last]()
		f.cleanups = f.cleanups[:last]
	}
}

func TestRanRecordsOnlySuccess(t *testing.T) {
	path := t.TempDir() + "/backends"
	t.Setenv(BackendsEnv, path)
	for _, f := range []*fakeTB{{}, {failed: true}, {skipped: true}, {}} {
		Ran(f, "memstore")
		f.end()
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := "memstore\tTestFake\nmemstore\tTestFake\n"; string(got) != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestRanWithoutFileDoesNothing(t *testing.T) {
	t.Setenv(BackendsEnv, "")
	f := &fakeTB{}
	Ran(f, "memstore")
	if len(f.cleanups) != 0 {
		t.Error("Ran without a file left a cleanup behind")
	}
}
