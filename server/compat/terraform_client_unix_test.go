//go:build unix

package compat

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/server"
)

// terraformEnv is the environment variable with the path of the client for TestTerraformClient: a Terraform or an OpenTofu.
const terraformEnv = "JOBLOCK_TERRAFORM"

// work is a configuration whose resource is made when the gate is there. Its provider is a part of Terraform. The shell of
// an apply that was killed ends when its directory is removed.
const work = `
terraform {
  backend "http" {}
}
variable "gate" {}
variable "begun" {}
resource "terraform_data" "work" {
  triggers_replace = timestamp()
  provisioner "local-exec" {
    command = "touch '${var.begun}'; while [ -e '${var.begun}' ] && [ ! -e '${var.gate}' ]; do sleep 0.05; done"
  }
}
`

// A terraform is the working directory of one person.
type terraform struct {
	*testing.T
	path, dir, gate, begun string
	address, who           string
}

// command returns a command of Terraform, which sends nothing but to the address.
func (tf *terraform) command(args ...string) *exec.Cmd {
	c := exec.Command(tf.path, args...)
	c.Dir = tf.dir
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + tf.dir, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_CLI_CONFIG_FILE=" + os.DevNull,
		"TF_VAR_gate=" + tf.gate, "TF_VAR_begun=" + tf.begun, "TF_HTTP_ADDRESS=" + tf.address + "/state/network",
		"TF_HTTP_LOCK_ADDRESS=" + tf.address + "/terraform/network", "TF_HTTP_UNLOCK_ADDRESS=" + tf.address + "/terraform/network",
		"TF_HTTP_USERNAME=terraform", "TF_HTTP_PASSWORD=" + tf.who, "TF_HTTP_RETRY_MAX=0",
	}
	return c
}

// run runs a command to its end, which must be a success or not.
func (tf *terraform) run(success bool, args ...string) string {
	tf.Helper()
	out, err := tf.command(args...).CombinedOutput()
	tf.Logf("%s: terraform %s: %v\n%s", tf.who, strings.Join(args, " "), err, out)
	if (err == nil) != success {
		tf.Fatalf("terraform %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// start starts an apply, which waits for the gate under the lock.
func (tf *terraform) start() (apply *exec.Cmd, out *bytes.Buffer) {
	tf.Helper()
	_, _ = os.Remove(tf.gate), os.Remove(tf.begun)
	apply, out = tf.command("apply", "-auto-approve", "-input=false", "-no-color"), new(bytes.Buffer)
	apply.Stdout, apply.Stderr = out, out
	testkit.WantNil(tf, "Start", apply.Start())
	for deadline := time.Now().Add(2 * hang); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(tf.begun); err == nil {
			return apply, out
		}
		if time.Now().After(deadline) {
			_ = apply.Process.Kill()
			_ = apply.Wait()
			tf.Fatalf("the apply does not begin: %s", out)
		}
	}
}

func (tf *terraform) open() { testkit.WantNil(tf, "WriteFile", os.WriteFile(tf.gate, nil, 0o600)) }

// stateServer stores the state of Terraform, as the HTTP server next to the locks does.
type stateServer struct {
	mu sync.Mutex
	of map[string][]byte
}

func (s *stateServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state, known := s.of[r.URL.Path]; {
	case r.Method == http.MethodPost:
		s.of[r.URL.Path] = body
	case r.Method == http.MethodGet && known:
		_, _ = w.Write(state)
	default:
		http.NotFound(w, r)
	}
}

// A real Terraform locks, is kept out, shows who has the lock, dies, and is unlocked by force.
func TestTerraformClient(t *testing.T) {
	path := os.Getenv(terraformEnv)
	for _, name := range []string{"terraform", "tofu"} {
		if found, err := exec.LookPath(name); path == "" && err == nil {
			path = found
		}
	}
	if path == "" || testing.Short() {
		t.Skip("not run: no terraform, or -short")
	}
	t.Parallel()
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	redistest.Ran(t, rs.Backend())
	a := newReplica(t, testkit.Must(redisstore.New(rs.Client(t), nil)), people(map[string]server.Scope{"ann": server.ScopeLock, "bob": server.ScopeLock, "ops": server.ScopeOperate}),
		func(cfg *server.Config) { cfg.Redis = rdb })
	mux := http.NewServeMux()
	mux.Handle("/terraform/", http.StripPrefix("/terraform", mounted(t)(Terraform(a.s, ""))))
	mux.Handle("/state/", &stateServer{of: make(map[string][]byte)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.WantNil(t, "Listen", err)
	hs := server.HTTPServer(mux)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(l)
	}()
	t.Cleanup(func() {
		_ = hs.Close()
		<-served
	})
	person := func(who string) *terraform {
		dir := t.TempDir()
		tf := &terraform{t, path, dir, filepath.Join(dir, "gate"), filepath.Join(dir, "begun"), "http://" + l.Addr().String(), who}
		testkit.WantNil(t, "WriteFile", os.WriteFile(filepath.Join(dir, "main.tf"), []byte(work), 0o600))
		tf.run(true, "init", "-input=false", "-no-color")
		return tf
	}
	ann, bob, admin := person("ann"), person("bob"), person("ops")
	t.Logf("%s", ann.run(true, "version"))
	const key = "terraform:network"
	plan := []string{"plan", "-input=false", "-no-color", "-lock-timeout=0s"}
	holderOf := regexp.MustCompile(`already locked:\s+ID=([0-9a-f-]{36})`)
	// refused runs bob's plan, which must find the lock of another user, and returns the ID in its message. Behind
	// "Lock Info" Terraform shows bob's own lock.
	refused := func() string {
		t.Helper()
		out := bob.run(false, plan...)
		m := holderOf.FindStringSubmatch(out)
		if m == nil || !strings.Contains(out, "Error acquiring the state lock") {
			t.Fatalf("the error does not show the holder: %s", out)
		}
		return m[1]
	}
	end := func(apply *exec.Cmd, out fmt.Stringer) {
		t.Helper()
		err := apply.Wait()
		t.Logf("%v\n%s", err, out)
		if err != nil || !strings.Contains(out.String(), "Apply complete!") {
			t.Errorf("apply: %v", err)
		}
	}

	// Contention. ann's apply goes on, and bob may plan afterwards.
	apply, out := ann.start()
	if st := a.wantState(key, joblock.StateHeld); !strings.Contains(st.Holder, "@") {
		t.Errorf("the holder is %q", st.Holder)
	}
	id := refused()
	bob.run(false, "force-unlock", "-force", id) // which he may not
	a.wantState(key, joblock.StateHeld)
	ann.open()
	end(apply, out)
	a.wantState(key, joblock.StateFree)
	bob.run(true, plan...)
	a.wantState(key, joblock.StateFree)

	// Death. The lock stays until a user with that right unlocks it by force.
	apply, out = ann.start()
	testkit.WantNil(t, "Kill", apply.Process.Kill())
	t.Logf("killed: %v\n%s", apply.Wait(), out)
	a.wantState(key, joblock.StateHeld)
	id = refused()
	if out := admin.run(true, "force-unlock", "-force", id); !strings.Contains(out, "successfully unlocked") {
		t.Errorf("%s", out)
	}
	st := a.wantState(key, joblock.StateFree)
	if !strings.Contains(st.Reason, "terraform force-unlock") {
		t.Errorf("%+v", st)
	}
	n := 0
	for e, err := range a.s.Host().Desk().Audit(context.Background(), ops.AuditQuery{Key: key}) {
		testkit.WantNil(t, "Audit", err)
		if n++; e.By != "ops" {
			t.Errorf("%+v", e)
		}
	}
	if n == 0 {
		t.Error("the forced unlock is not in the audit")
	}
	apply, out = bob.start()
	bob.open()
	end(apply, out)
	a.wantState(key, joblock.StateFree)
}
