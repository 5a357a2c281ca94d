//go:build linux

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/joblock/toolkit/joblock"
)

// A block of code of a page.
type codeBlock struct {
	fragment string // the file that the block is said to be a part of; "": the block stands for itself
	language string
	text     string
}

var fenced = regexp.MustCompile("(?ms)^(?:<!-- fragment of (\\S+) -->\n)?```(\\w*)\n(.*?)^```$")

func codeBlocks(t *testing.T, page string) (blocks []codeBlock) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, codeBlock{m[1], m[2], m[3]})
	}
	if n := strings.Count(string(text), "\n```"); n != 2*len(blocks) {
		t.Fatalf("%s has %d fences, and %d blocks were found", page, n, len(blocks))
	}
	return blocks
}

// A reader does what docs/server.md shows, in one directory. What the reader has in place of the page's hosts and ports is
// in the method own.
type reader struct {
	*workshop
	dir    string
	server *process // of the last "joblock serve"
	at     string   // its host:port
}

// own returns a script of the page with the names of this machine.
func (r *reader) own(script string) string {
	return strings.NewReplacer(
		"redis://redis.internal", "redis://"+r.redis.Addr(),
		"locks.internal:7420", r.at,
		"--listen :7420", "--listen "+r.at,
	).Replace(script)
}

func (r *reader) shell(script string) *process {
	cmd := exec.Command("sh", "-e", "-u", "-c", script)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), envAs+"=1", "GORACE=atexit_sleep_ms=0", "PATH="+r.bin+":"+os.Getenv("PATH"), "TMPDIR="+r.tmp)
	return r.launch(strings.TrimSpace(script), cmd)
}

// follow runs a block. The command "joblock serve" goes on, as in a shell of its own, and is the last one of its
// block.
func (r *reader) follow(script string) {
	r.Helper()
	before, serve := script, ""
	if lines := strings.SplitAfter(strings.TrimSuffix(script, "\n"), "\n"); strings.HasPrefix(lines[len(lines)-1], "joblock serve") && !strings.Contains(script, "--check") {
		serve = lines[len(lines)-1]
		before = strings.TrimSuffix(strings.TrimSuffix(script, "\n"), serve)
	}
	if strings.TrimSpace(before) != "" {
		p := r.shell(r.own(before))
		<-p.done
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			r.Fatalf("%s\nexits with %d: %s%s", before, code, p.stdout, p.stderr)
		}
		r.Logf("%s\nprints %s", before, p.stdout)
	}
	if serve == "" {
		return
	}
	r.leave()
	r.at = "127.0.0.1:0"
	if !strings.Contains(serve, "--listen") {
		serve += " --listen :7420"
	}
	r.server = r.shell("exec " + r.own(serve))
	r.until("serve listens", func() bool {
		select {
		case <-r.server.done:
			r.Fatalf("%s\nhas ended: %s", serve, r.server.stderr)
		default:
		}
		return strings.HasSuffix(r.server.stdout.String(), "\n")
	})
	_, r.at, _ = strings.Cut(strings.TrimSpace(r.server.stdout.String()), "://")
}

// leave ends the server that runs, if there is one.
func (r *reader) leave() {
	r.Helper()
	if r.server != nil {
		r.server.signal(syscall.SIGTERM)
		r.server.exits(0)
	}
	r.server = nil
}

// Each block of docs/server.md runs as it stands, or is a part of an example that the tests run.
func TestServerPage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("curl is missing: .ci/setup.sh installs it")
		}
		t.Skip("curl is missing: the page needs it")
	}
	r := &reader{workshop: newWorkshop(t, ""), dir: t.TempDir()}
	cert, key := certificate(t)
	for name, file := range map[string]string{"tls.crt": cert, "tls.key": key, "ca.crt": cert} {
		if err := os.Symlink(file, filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	bill := fmt.Sprintf("#!/bin/sh\nenv -u %s joblock get --redis redis://%s billing:nightly >billed\n", envServer, r.redis.Addr())
	if err := os.WriteFile(filepath.Join(r.dir, "bill"), []byte(bill), 0o700); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, b := range codeBlocks(t, "../../../../docs/server.md") {
		switch {
		case b.fragment != "":
			text, err := os.ReadFile(filepath.Join("../../../..", b.fragment))
			if err != nil || !strings.Contains(string(text), b.text) {
				t.Errorf("no part of %s, %v:\n%s", b.fragment, err, b.text)
			}
		case b.language == "sh":
			ran++
			r.follow(b.text)
		default:
			t.Errorf("a block of %q neither runs nor is said to be a fragment:\n%s", b.language, b.text)
		}
	}
	if ran < 4 {
		t.Errorf("%d blocks ran", ran)
	}
	billed, err := os.ReadFile(filepath.Join(r.dir, "billed"))
	if err != nil || !strings.Contains(string(billed), "held") {
		t.Errorf("./bill saw the lock as %s, %v; want it held", billed, err)
	}
	if st := r.lock("billing:acct-7"); st.State != joblock.StateHeld {
		t.Errorf("the lock of curl: %+v", st)
	}
	if st := r.lock("billing:nightly"); st.State != joblock.StateFree {
		t.Errorf("the lock of joblock run: %+v", st)
	}
	r.leave()
}

// Each shell block of these pages runs as it stands.
func TestPages(t *testing.T) {
	for page, programs := range map[string][]string{"pausing": nil, "scripts": {"prepare", "export"}} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			r := &reader{workshop: newWorkshop(t, ""), dir: t.TempDir()}
			for _, name := range programs {
				script := "#!/bin/sh\njoblock get export:$1 >" + name + ".saw\n"
				if err := os.WriteFile(filepath.Join(r.dir, name), []byte(script), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			ran := 0
			for _, b := range codeBlocks(t, "../../../../docs/"+page+".md") {
				if b.language == "sh" {
					ran++
					r.follow("export " + envRedis + "=redis://" + r.redis.Addr() + "\n" + b.text)
				}
			}
			if ran == 0 {
				t.Error("the page has no shell block")
			}
			for _, name := range programs {
				if saw, err := os.ReadFile(filepath.Join(r.dir, name+".saw")); err != nil || !strings.Contains(string(saw), "held") {
					t.Errorf("./%s saw the lock as %s, %v; want it held", name, saw, err)
				}
			}
			if st := r.lock(key); st.State != joblock.StateFree {
				t.Errorf("after the script: %+v", st)
			}
			r.clean()
		})
	}
}
