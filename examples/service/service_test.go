package service_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// TestService runs the two programs as processes of their own, as the README
// tells, and plays a client.
func TestService(t *testing.T) {
	redisAddr := redistest.Start(t).Addr()
	webAddr := freeAddr(t)
	env := append(os.Environ(), "REDIS_ADDR="+redisAddr, "ADDR="+webAddr)
	web := start(t, "web", env)
	worker := start(t, "worker", env)
	url := "http://" + webAddr + "/exports/acct-7"

	await(t, "the web process to answer", func() bool {
		_, ok := status(t, url)
		return ok
	})
	if code := post(t, url); code != http.StatusAccepted {
		t.Fatalf("first POST: %d, want 202", code)
	}
	if code := post(t, url); code != http.StatusTooManyRequests {
		t.Fatalf("POST while the job has the lock: %d, want 429", code)
	}
	await(t, "the job to be done", func() bool {
		st, _ := status(t, url)
		return st.State == "free"
	})
	if st, _ := status(t, url); st.Reason != "job done" {
		t.Errorf("lock ended as %+v, want reason \"job done\"", st)
	}
	if code := post(t, url); code != http.StatusAccepted {
		t.Errorf("POST after the job: %d, want 202", code)
	}

	for _, cmd := range []*exec.Cmd{web, worker} {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s after SIGTERM: %v, want exit code 0", filepath.Base(cmd.Path), err)
		}
	}
}

// start builds one of the programs and runs it until the test ends.
func start(t *testing.T, name string, env []string) *exec.Cmd {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", bin, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command(bin)
	cmd.Env = env
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd
}

type lockStatus struct{ State, Reason string }

func status(t *testing.T, url string) (st lockStatus, ok bool) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		return st, false
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		t.Fatal(err)
	}
	return st, true
}

func post(t *testing.T, url string) int {
	t.Helper()
	res, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusTooManyRequests {
		var body struct{ Code joblock.Code }
		if err := json.NewDecoder(res.Body).Decode(&body); err != nil || body.Code != joblock.CodeHeld {
			t.Errorf("429 with code %q, %v", body.Code, err)
		}
		if res.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
	}
	return res.StatusCode
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// await polls a process of its own, so real time is all there is. The bound is
// a guard against hanging, not an expectation.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("gave up waiting for %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
