//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// company is what examples/http is about: a lock server, a web service in Python, and a worker in Go.
type company struct {
	*workshop
	api    string
	server *serverProcess
	web    *process
}

func newCompany(t *testing.T, programs string, redisArgs ...string) *company {
	t.Helper()
	c := &company{workshop: newWorkshop(t, programs, redisArgs...)}
	c.server = c.serves("127.0.0.1:0")
	c.api = c.server.url
	c.web = c.publishes(c.api)
	return c
}

// publishes starts a web service that asks these lock servers, the first one first.
func (c *company) publishes(servers ...string) *process {
	c.Helper()
	web := c.run("/bin/sh", "-c", "JOBLOCK_SERVER="+strings.Join(servers, ",")+" exec python3 "+examples+"/http/web.py 0")
	c.until("the web service listens", func() bool { return strings.HasSuffix(web.stdout.String(), "\n") })
	return web
}

// serves starts a lock server with the default prefix, which the worker has.
func (c *company) serves(listen string, flags ...string) *serverProcess {
	c.Helper()
	args := append([]string{filepath.Join(c.bin, "joblock"), "serve", "--listen", listen}, flags...)
	p := &serverProcess{process: c.run(args...), client: http.DefaultClient}
	c.until("serve listens", func() bool { return strings.HasSuffix(p.stdout.String(), "\n") })
	p.url = strings.TrimPrefix(strings.TrimSpace(p.stdout.String()), "export "+envServer+"=")
	return p
}

// post asks for an export, and returns the status; 0 for no answer.
func (c *company) post(name string) int {
	status, _ := c.send(strings.TrimSpace(c.web.stdout.String())+"/exports/acct-7", nil, name)
	return status
}

// send posts a body, with an Idempotency-Key unless name is "". It returns the answer, or 0.
func (c *company) send(url string, body any, name string) (int, object) {
	text, err := json.Marshal(body)
	if err != nil {
		c.Error(err)
		return 0, nil
	}
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		c.Error(err)
		return 0, nil
	}
	r.Header.Set("Content-Type", "application/json")
	if name != "" {
		r.Header.Set("Idempotency-Key", name)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	o := object{}
	_ = json.NewDecoder(res.Body).Decode(&o)
	return res.StatusCode, o
}

// ends waits until the job has run under its lock, and checks that it has run once.
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

// The lock server is killed after each command of an enqueue that Redis has carried out, before the server knows of it. With
// an Idempotency-Key another lock server finishes the call: there is one task, and its lock is kept for it. Without one the
// call has a task, or it has none and the key is kept for a reservation at most. Each task runs once, under its lock.
func TestServerKilledAtEachStep(t *testing.T) {
	t.Parallel()
	programs := build(t)
	for _, repeatable := range []bool{true, false} {
		t.Run(fmt.Sprintf("with an Idempotency-Key: %t", repeatable), func(t *testing.T) {
			t.Parallel()
			newCompany(t, programs).killsAtEachStep(repeatable)
		})
	}
}

// isStep reports whether a command is one of an enqueue, and not one of a connection.
var isStep = redistest.Named("evalsha", "eval", "sadd", "set", "hset", "zadd", "lpush", "exec")

func (c *company) killsAtEachStep(repeatable bool) {
	a := c.serves("127.0.0.1:0", "--redis", "redis://"+c.proxy.Addr())
	at := strings.TrimPrefix(a.url, "http://")
	web := strings.TrimSpace(c.publishes(a.url, c.api).stdout.String())
	account := func(step int) string { return fmt.Sprint("acct-", step) }
	ask := func(url string, step int) (int, object) {
		key := "export:" + account(step)
		if repeatable {
			return c.send(web+"/exports/"+account(step), nil, key)
		}
		return c.send(url+"/v1/enqueue", object{"key": key, "type": "export", "payload": object{"account": account(step)}}, "")
	}
	if status, o := ask(a.url, 0); status/100 != 2 { // what a server loads at its first call
		c.Fatalf("%d %v", status, o)
	}
	tasks := map[string]bool{account(0): true} // by account
	steps := 0
	for over := false; !over; {
		steps++
		key, n := "export:"+account(steps), 0
		struck := c.proxy.Once(func(cmd redistest.Command) bool {
			if isStep(cmd) {
				n++
			}
			return isStep(cmd) && n == steps
		}, redistest.SwallowReply())
		answers := make(chan int, 1)
		go func() {
			status, _ := ask(a.url, steps)
			answers <- status
		}()
		status := -1
		select {
		case <-struck.Ran():
			a.signal(syscall.SIGKILL)
			a.exits(-9)
			status = <-answers
		case status = <-answers: // the call has fewer steps
			over = true
		}
		st := c.lock(key)
		if left := st.Reserved; st.State != joblock.StateParked || left <= 0 || left > time.Hour {
			c.Errorf("step %d: %+v, want the key to be kept for an hour at most", steps, st)
		}
		queue, id, _ := strings.Cut(st.Job, "/")
		_, err := c.inspector.GetTaskInfo(queue, id)
		tasks[account(steps)] = err == nil
		switch {
		case repeatable && (status != http.StatusAccepted || err != nil):
			c.Errorf("step %d: the web service answers %d; the task: %v", steps, status, err)
		case !repeatable && !over && status != 0:
			c.Errorf("step %d: %d, want no answer", steps, status)
		case over && (status/100 != 2 || err != nil):
			c.Errorf("without a fault: %d; the task: %v", status, err)
		}
		if status, o := ask(c.api, steps); !repeatable && (status != http.StatusConflict || o["job"] != st.Job) || repeatable && status != http.StatusAccepted {
			c.Errorf("step %d: asked again, %d %v", steps, status, o)
		}
		c.proxy.Heal()
		if !over {
			a = c.serves(at, "--redis", "redis://"+c.proxy.Addr())
		}
	}
	if steps < 3 {
		c.Errorf("the call has only %d steps", steps-1)
	}
	pending, err := c.inspector.ListPendingTasks("default")
	want := 0
	for _, there := range tasks {
		if there {
			want++
		}
	}
	if err != nil || len(pending) != want {
		c.Errorf("%d tasks, want %d; %v", len(pending), want, err)
	}
	w := c.run(filepath.Join(c.bin, "worker"))
	for i := range steps + 1 {
		key := "export:" + account(i)
		if tasks[account(i)] {
			c.until("the job of "+key+" has ended", func() bool { return c.lock(key).State == joblock.StateFree })
			if st := c.lock(key); st.Reason != "job done" {
				c.Errorf("%+v", st)
			}
		}
		runs := 0
		for _, m := range fenceLine.FindAllStringSubmatch(w.stderr.String(), -1) {
			if m[1] == account(i) {
				runs++
			}
		}
		if (runs == 1) != tasks[account(i)] {
			c.Errorf("%s: %d exports; there is a task: %t", key, runs, tasks[account(i)])
		}
	}
	c.Logf("the server was killed after each of %d steps; tasks: %v", steps-1, tasks)
}

// Redis is killed after each command of an enqueue that it has carried out, before anybody knows of it, and comes back with
// its append-only file. The same call then has one task. Redis is killed once more while the jobs run: no other caller gets a
// lock before its job has ended.
func TestRedisKilledAtEachStep(t *testing.T) {
	t.Parallel()
	c := newCompany(t, build(t), "--appendonly", "yes", "--appendfsync", "always")
	web := strings.TrimSpace(c.publishes(c.serves("127.0.0.1:0", "--redis", "redis://"+c.proxy.Addr()).url).stdout.String())
	ask := func(step int) int {
		status, _ := c.send(fmt.Sprintf("%s/exports/acct-%d", web, step), nil, fmt.Sprint("call-", step))
		return status
	}
	key := func(step int) string { return fmt.Sprint("export:acct-", step) }
	if status := ask(0); status != http.StatusAccepted { // what a server loads at its first call
		t.Fatal(status)
	}
	steps := 0
	for over := false; !over; {
		steps++
		n := 0
		struck := c.proxy.Once(func(cmd redistest.Command) bool {
			if isStep(cmd) {
				n++
			}
			return isStep(cmd) && n == steps
		}, redistest.SwallowReply())
		answers := make(chan int, 1)
		go func() { answers <- ask(steps) }()
		select {
		case <-struck.Ran():
			c.redis.Kill()
			c.redis.Restart()
			c.proxy.Heal()
			<-answers
		case status := <-answers: // the call has fewer steps
			over = true
			if status != http.StatusAccepted {
				t.Errorf("without a fault: %d", status)
			}
		}
		c.until("the call succeeds", func() bool { return ask(steps) == http.StatusAccepted })
		st := c.lock(key(steps))
		queue, id, _ := strings.Cut(st.Job, "/")
		if _, err := c.inspector.GetTaskInfo(queue, id); err != nil || st.State != joblock.StateParked || st.Reserved > time.Hour {
			t.Errorf("step %d: %+v; the task: %v", steps, st, err)
		}
	}
	if steps < 3 {
		t.Errorf("the call has only %d steps", steps-1)
	}
	if pending, err := c.inspector.ListPendingTasks("default"); err != nil || len(pending) != steps+1 {
		t.Errorf("%d tasks, want %d; %v", len(pending), steps+1, err)
	}

	w := c.run(filepath.Join(c.bin, "worker"))
	c.until("all jobs run", func() bool { return len(fenceLine.FindAllString(w.stderr.String(), -1)) == steps+1 })
	c.redis.Kill()
	c.redis.Restart()
	for i := range steps + 1 {
		var next *joblock.Lock
		c.until("the lock of "+key(i)+" is free", func() bool {
			var err error
			next, err = c.plain.TryAcquire(t.Context(), key(i))
			return err == nil
		})
		run := regexp.MustCompile(fmt.Sprintf(`exporting account=acct-%d fence=(\d+)`, i))
		runs := run.FindAllStringSubmatch(w.stderr.String(), -1)
		if len(runs) != 1 {
			t.Fatalf("%s: %d exports", key(i), len(runs))
		}
		if fence, err := strconv.ParseInt(runs[0][1], 10, 64); err != nil || next.Fence() <= fence || next.Prior() != driver.EndedDone {
			t.Errorf("%s: granted with fence %d after the ownership before %q; the job had fence %d; %v", key(i), next.Fence(), next.Prior(), fence, err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	t.Logf("Redis was killed after each of %d steps, and while %d jobs ran", steps-1, steps+1)
}

// kill kills the lock server of the company.
func kill(c *company) {
	c.Helper()
	p := c.server
	p.signal(syscall.SIGKILL)
	p.exits(-9)
}
