//go:build linux

package cli

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/joblock/toolkit/joblock"
)

// The type company is what examples/http is about: a lock server, a web service in Python, and a worker in Go.
type company struct {
	*workshop
	api    string
	server *serverProcess
	web    *process
}

func newCompany(t *testing.T, programs string) *company {
	t.Helper()
	c := &company{workshop: newWorkshop(t, programs)}
	c.server = c.serves("127.0.0.1:0")
	c.api = c.server.url
	c.web = c.run("/bin/sh", "-c", "JOBLOCK_SERVER="+c.api+" exec python3 "+examples+"/http/web.py 0")
	c.until("the web service listens", func() bool { return strings.HasSuffix(c.web.stdout.String(), "\n") })
	return c
}

// The method serves starts a lock server with the default prefix, which the worker has.
func (c *company) serves(listen string) *serverProcess {
	c.Helper()
	p := &serverProcess{process: c.run(filepath.Join(c.bin, "joblock"), "serve", "--listen", listen), client: http.DefaultClient}
	c.until("serve listens", func() bool { return strings.HasSuffix(p.stdout.String(), "\n") })
	p.url = strings.TrimPrefix(strings.TrimSpace(p.stdout.String()), "export "+envServer+"=")
	return p
}

// The method post asks for an export, and returns the status; 0 for no answer.
func (c *company) post(name string) int {
	r, err := http.NewRequest(http.MethodPost, strings.TrimSpace(c.web.stdout.String())+"/exports/acct-7", nil)
	if err != nil {
		c.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", name)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}

// The method ends waits until the job has run under its lock, and checks that it has run once.
func (c *company) ends(workers ...*process) {
	c.Helper()
	c.until("the job has ended", func() bool { return c.lock("export:acct-7").State == joblock.StateFree })
	said := ""
	for _, w := range workers {
		said += w.stderr.String()
	}
	if n := len(fenceLine.FindAllString(said, -1)); n != 1 || c.lock("export:acct-7").Reason != "job done" {
		c.Errorf("%d exports; the lock: %+v; the worker said %s", n, c.lock("export:acct-7"), said)
	}
}

// A request in Python takes a lock and enqueues a task with it in one call, and a Go worker runs under it. The rows say what
// is killed, and when. The lock is never with two, and never with none before the job has ended.
func TestOtherLanguages(t *testing.T) {
	const key = "export:acct-7"
	programs := build(t)
	kept := func(c *company) {
		c.Helper()
		if st := c.lock(key); st.State != joblock.StateParked || !strings.HasPrefix(st.Job, "default/") {
			c.Errorf("%+v, want the lock to be kept for the job", st)
		}
	}
	for name, row := range map[string]func(c *company){
		"nothing": func(c *company) {
			if first, second := c.post("1"), c.post("2"); first != 202 || second != 429 {
				c.Errorf("%d, %d", first, second)
			}
			if again := c.post("1"); again != 202 {
				c.Errorf("the first request again: %d", again)
			}
			kept(c)
			c.ends(c.run(filepath.Join(c.bin, "worker")))
		},
		"the shell script": func(c *company) {
			script := []string{"/bin/sh", "-c", "JOBLOCK_SERVER=" + c.api + " exec " + examples + "/http/export.sh acct-7"}
			c.run(script...).exits(0)
			c.run(script...).exits(75)
			kept(c)
			c.ends(c.run(filepath.Join(c.bin, "worker")))
		},
		"the web service, after the call": func(c *company) {
			if status := c.post("1"); status != 202 {
				c.Error(status)
			}
			c.web.signal(syscall.SIGKILL)
			c.web.exits(-9)
			kept(c)
			c.ends(c.run(filepath.Join(c.bin, "worker")))
		},
		"the lock server, after the call": func(c *company) {
			if status := c.post("1"); status != 202 {
				c.Error(status)
			}
			kill(c)
			kept(c)
			if status := c.post("1"); status != 503 {
				c.Errorf("without a lock server: %d", status)
			}
			c.serves(strings.TrimPrefix(c.api, "http://"))
			if status := c.post("1"); status != 202 { // the same call, which has a task
				c.Errorf("the same call: %d", status)
			}
			if tasks, err := c.inspector.ListPendingTasks("default"); err != nil || len(tasks) != 1 {
				c.Errorf("%d tasks, %v", len(tasks), err)
			}
			c.ends(c.run(filepath.Join(c.bin, "worker")))
		},
		"the worker, before the job": func(c *company) {
			w := c.run(filepath.Join(c.bin, "worker"))
			w.signal(syscall.SIGKILL)
			w.exits(-9)
			if status := c.post("1"); status != 202 {
				c.Error(status)
			}
			c.ends(c.run(filepath.Join(c.bin, "worker")))
		},
		"the worker, in the job": func(c *company) {
			w := c.run(filepath.Join(c.bin, "worker"))
			c.until("the job runs", func() bool { c.post("1"); return strings.Contains(w.stderr.String(), "exporting") })
			w.signal(syscall.SIGKILL)
			w.exits(-9)
			// asynq gives the task to another worker within minutes, and the lock stays the job's until then.
			if st := c.lock(key); st.State == joblock.StateFree && !strings.Contains(w.stderr.String(), "exported") {
				c.Errorf("%+v", st)
			}
		},
	} {
		t.Run(fmt.Sprintf("kill -9 of %s", name), func(t *testing.T) {
			t.Parallel()
			row(newCompany(t, programs))
		})
	}
}

// kill kills the lock server of the company.
func kill(c *company) {
	c.Helper()
	p := c.server
	p.signal(syscall.SIGKILL)
	p.exits(-9)
}

// What docs/server.md shows is what the tests run: its Python is a part of the example, and its commands have these flags.
func TestServerPage(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	blocks := regexp.MustCompile("(?s)```(python|sh)\n(.*?)```").FindAllStringSubmatch(read("../../../../docs/server.md"), -1)
	if len(blocks) < 3 {
		t.Fatalf("found %d blocks", len(blocks))
	}
	for _, b := range blocks {
		if b[1] == "python" {
			if !strings.Contains(read(examples+"/http/web.py"), b[2]) {
				t.Errorf("no part of web.py:\n%s", b[2])
			}
			continue
		}
		for line := range strings.Lines(b[2]) {
			words := strings.Fields(line)
			help := ask(t, append(words[1:2], "--help")...)
			if words[1] == "token" {
				help = ask(t, "token", "new", "--help")
			}
			for _, word := range words {
				if strings.HasPrefix(word, "--") {
					help.wants(exitOK, " "+word+" ")
				}
			}
		}
	}
}
