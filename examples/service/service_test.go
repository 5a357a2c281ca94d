//go:build servers

package service_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/examples/service/export"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// TestService runs the two programs as processes of their own, as the README says, and acts as a client.
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
	if answer, _ := status(t, url); answer != "{\"exporting\":true}\n" {
		t.Errorf("while the job has the lock clients get %q, want no more than that it has", answer)
	}
	await(t, "the job to be done", func() bool {
		answer, _ := status(t, url)
		return answer == "{\"exporting\":false}\n"
	})
	if st := lockStatus(t, redisAddr); st.Reason != "job done" {
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

// status returns what a client sees of the account's export.
func status(t *testing.T, url string) (answer string, ok bool) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		return "", false
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), true
}

// lockStatus returns what an operator sees.
func lockStatus(t *testing.T, redisAddr string) joblock.Status {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(context.Background())
	sts, err := locks.Status(t.Context(), export.Key("acct-7"))
	if err != nil {
		t.Fatal(err)
	}
	return sts[0]
}

func post(t *testing.T, url string) int {
	t.Helper()
	res, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusTooManyRequests {
		var body struct{ Code string }
		if err := json.NewDecoder(res.Body).Decode(&body); err != nil || body.Code != joblock.CodeOf(joblock.ErrHeld) {
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
