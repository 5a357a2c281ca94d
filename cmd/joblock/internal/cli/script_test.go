//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// workshop is what the scripts of examples/script need: a Redis, a worker, and a directory for $PATH with
// joblock and start.
type workshop struct {
	*stage
	bin       string
	tmp       string // for temporary files of the scripts
	plain     *joblock.Locker
	inspector *asynq.Inspector
}

const examples = "../../../../examples"

// build builds the Go programs of the examples, and returns their directory.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, source := range map[string]string{"start": "./script/start", "worker": "./service/worker"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), source)
		build.Dir = examples
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return dir
}

// newWorkshop makes a workshop with the programs that the function build has built. The args are those of its redis-server.
func newWorkshop(t *testing.T, programs string, args ...string) *workshop {
	t.Helper()
	w := &workshop{stage: newStage(t, redistest.Start(t, args...)), bin: t.TempDir(), tmp: t.TempDir()}
	var err error
	if w.plain, err = joblock.New(testkit.Must(redisstore.New(w.redis.Client(t), nil)), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.plain.Close(context.Background()) })
	w.inspector = asynq.NewInspector(asynq.RedisClientOpt{Addr: w.redis.Addr()})
	t.Cleanup(func() { _ = w.inspector.Close() })
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"joblock": own, "start": filepath.Join(programs, "start"), "worker": filepath.Join(programs, "worker")} {
		if err := os.Symlink(file, filepath.Join(w.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// run starts a program of the workshop, or a script.
func (w *workshop) run(args ...string) *process {
	w.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), envAs+"=1", "GORACE=atexit_sleep_ms=0", "PATH="+w.bin+":"+os.Getenv("PATH"), "PART=2",
		envRedis+"=redis://"+w.redis.Addr(), "REDIS_ADDR="+w.redis.Addr(), "TMPDIR="+w.tmp)
	return w.launch(filepath.Base(args[0]), cmd)
}

// lock returns the state of a key under the default prefix, which the examples have.
func (w *workshop) lock(key string) joblock.Status {
	w.Helper()
	st, err := w.plain.Status(context.Background(), key)
	if err != nil {
		w.Fatal(err)
	}
	return st[0]
}

var fenceLine = regexp.MustCompile(`exporting account=(\S+) fence=(\d+)`)

// clean checks that no temporary file is left.
func (w *workshop) clean() {
	w.Helper()
	if left, err := os.ReadDir(w.tmp); err != nil || len(left) > 0 {
		w.Errorf("files are left: %v, %v", left, err)
	}
}

// A shell script and a Python program take a lock with joblock alone, and hand the lock over to a job of a Go worker. The
// rows say what happens to the lock, and what if something fails on the way.
func TestScripts(t *testing.T) {
	const account, key = "acct-7", "export:acct-7"
	programs := build(t)
	for name, row := range map[string]func(w *workshop, script ...string){
		// From the acquire to the end of the job, no other caller gets the lock.
		"the job runs under the lock": func(w *workshop, script ...string) {
			p := w.run(append(script, account)...)
			var held joblock.Status
			w.until("the script has the lock", func() bool { held = w.lock(key); return held.State == joblock.StateHeld })
			w.run(filepath.Join(w.bin, "joblock"), "acquire", key, "--ttl", "1m", "-n").exits(75)
			p.exits(0)
			parked := w.lock(key)
			if parked.State != joblock.StateParked || !strings.HasPrefix(parked.Job, "default/export-acct-7-") || parked.Fence <= held.Fence || parked.First != held.First {
				w.Errorf("after the script: %+v, want the lock of %+v, parked for the job", parked, held)
			}
			w.run(filepath.Join(w.bin, "joblock"), "acquire", key, "--ttl", "1m", "-n").exits(75)

			worker := w.run(filepath.Join(w.bin, "worker"))
			w.until("the job has ended", func() bool { return w.lock(key).State == joblock.StateFree })
			if st := w.lock(key); st.Reason != "job done" {
				w.Errorf("after the job: %+v", st)
			}
			job := fenceLine.FindStringSubmatch(worker.stderr.String())
			if job == nil || job[1] != account {
				w.Fatalf("the worker said %s", worker.stderr)
			}
			if fence, err := strconv.ParseInt(job[2], 10, 64); err != nil || fence <= parked.Fence {
				w.Errorf("the job had fence %s, %v; the lock was parked with %d", job[2], err, parked.Fence)
			}
			worker.signal(syscall.SIGTERM)
			worker.exits(0)
		},
		"the lock has another holder": func(w *workshop, script ...string) {
			other, err := w.plain.TryAcquire(context.Background(), key, joblock.TTL(2*time.Second), joblock.NoRenew())
			if err != nil {
				w.Fatal(err)
			}
			p := w.run(append(script, account)...)
			p.exits(0) // the other one has died, and the script waits for longer than that
			if st := w.lock(key); st.Fence <= other.Fence() {
				w.Errorf("%+v", st)
			}
		},
		"the program that enqueues fails": func(w *workshop, script ...string) {
			if err := os.WriteFile(filepath.Join(w.bin, "broken"), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
				w.Fatal(err)
			}
			if err := os.Rename(filepath.Join(w.bin, "broken"), filepath.Join(w.bin, "start")); err != nil {
				w.Fatal(err)
			}
			p := w.run(append(script, account)...)
			<-p.done
			if p.cmd.ProcessState.ExitCode() == 0 {
				w.Error("the script has succeeded")
			}
			if st := w.lock(key); st.State != joblock.StateFree {
				w.Errorf("%+v, want the lock to be free", st)
			}
		},
		"TERM": func(w *workshop, script ...string) {
			p := w.run(append(script, account)...)
			w.until("the script has the lock", func() bool { return w.lock(key).State == joblock.StateHeld })
			if script[0] == "python3" {
				p.signal(syscall.SIGINT) // Python's own way to end
			} else {
				p.signal(syscall.SIGTERM)
			}
			<-p.done
			if st := w.lock(key); st.State != joblock.StateFree {
				w.Errorf("%+v, want the lock to be free", st)
			}
		},
		"an operator frees the key": func(w *workshop, script ...string) {
			p := w.run(append(script, account)...)
			w.until("the script has the lock", func() bool { return w.lock(key).State == joblock.StateHeld })
			if err := w.plain.ForceRelease(context.Background(), key, joblock.Reason("by hand")); err != nil {
				w.Fatal(err)
			}
			<-p.done
			if p.cmd.ProcessState.ExitCode() == 0 {
				w.Error("the script has succeeded")
			}
			if tasks, err := w.inspector.ListPendingTasks("default"); err == nil && len(tasks) > 0 {
				w.Errorf("%d tasks were enqueued", len(tasks))
			}
		},
	} {
		for _, script := range [][]string{{"/bin/sh", examples + "/script/export.sh"}, {"python3", examples + "/script/export.py"}} {
			t.Run(fmt.Sprintf("%s/%s", filepath.Base(script[1]), name), func(t *testing.T) {
				t.Parallel()
				w := newWorkshop(t, programs)
				row(w, script...)
				w.clean()
			})
		}
	}
}
