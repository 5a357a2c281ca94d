//go:build linux

package cli

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// Each situation of docs/on-call.md is made for real, and the commands of the page print there what the page says.
func TestOnCall(t *testing.T) {
	scenes := map[string]func(s *scene){
		"An export hangs": func(s *scene) {
			s.process(roleConfig{Role: "worker", Holder: "jobs2:88"})
			s.keeper("jobs2:88")
			s.export("exports:acct-7", "export-41", 0)
			s.task("exports", "export-41", asynq.TaskStateActive)
			s.awaitState("exports:acct-7", joblock.StateHeld)
			s.waits("web2:72", "exports:acct-7")
			s.next()
			s.next()
			s.task("exports", "export-41", asynq.TaskStateArchived)
		},
		"A lock that is never released": func(s *scene) {
			s.export("exports:acct-7", "export-41", time.Hour)
			if err := s.asynq.DeleteTask("exports", "export-41"); err != nil {
				s.Fatal(err)
			}
			s.next()
			s.next()
			s.next()
			if st := s.status("exports:acct-7"); st.Locked() {
				s.Errorf("the key is %+v", st)
			}
		},
		"A deploy is stuck behind a lock": func(s *scene) {
			s.shell("joblock run deploy:shop -- sleep 600")
			s.awaitState("deploy:shop", joblock.StateHeld)
			s.shell("joblock run deploy:shop -- true")
			s.awaitWaiters("deploy:shop", 1)
			s.next()
			s.next()
		},
		"A cron job did not run": func(s *scene) {
			s.noTickNow()
			node := s.process(roleConfig{Role: "cron", Holder: "app1:31"})
			s.awaitJobs(1)
			s.next()
			s.next()
			s.next()
			if err := s.redis.Client(s.T).Set(context.Background(), roleTable, 1, 0).Err(); err != nil {
				s.Fatal(err)
			}
			s.next()
			if err := node.Process.Signal(syscall.SIGTERM); err != nil {
				s.Fatal(err)
			}
			_ = node.Wait()
			s.next()
			s.next()
		},
		"One customer's jobs do not run": func(s *scene) {
			s.process(roleConfig{Role: "worker", Holder: "jobs2:88"})
			s.keeper("jobs2:88")
			s.webhook("acme-1", "bad")
			s.task("webhooks", "acme-1", asynq.TaskStateArchived)
			s.awaitState("webhooks:acme", joblock.StateParked)
			s.webhook("acme-2", "good")
			s.webhook("acme-3", "good")
			s.next()
			s.next()
			s.next()
			before := s.info("webhooks", "acme-1").LastFailedAt
			time.Sleep(time.Second) // asynq's clock of failures has whole seconds
			s.next()
			s.until("acme-1 has failed again", func() bool {
				info := s.info("webhooks", "acme-1")
				return info.State == asynq.TaskStateArchived && info.LastFailedAt.After(before)
			})
			s.awaitState("webhooks:acme", joblock.StateParked)
			s.next()
			s.until("the line is empty", func() bool { return !s.status("webhooks:acme").Locked() })
		},
		"Is the keeper alive?": func(s *scene) {
			s.export("exports:acct-7", "export-41", time.Hour)
			s.next()
			s.process(roleConfig{Role: "worker", Holder: "jobs2:88"})
			s.keeper("jobs2:88")
			s.next()
		},
		"The worker died": func(s *scene) {
			w := s.process(roleConfig{Role: "worker", Holder: "jobs2:88"})
			s.export("exports:acct-7", "export-41", 0, joblock.TTL(3*time.Second)) // so that the test need not wait for long
			s.task("exports", "export-41", asynq.TaskStateActive)
			s.awaitState("exports:acct-7", joblock.StateHeld)
			s.process(roleConfig{Role: "worker", Holder: "jobs3:89"})
			_ = w.Process.Kill()
			_ = w.Wait()
			s.awaitState("exports:acct-7", joblock.StateOrphaned)
			s.keeper("jobs3:89")
			s.next()
		},
		"A lock was lost": func(s *scene) {
			done := s.begin()
			s.awaitState("nightly", joblock.StateHeld)
			s.awaitCommand("sleep", "600")
			s.awaitWatch()
			fence := s.status("nightly").Fence
			s.runs(fence) // before that, the text is another one
			s.do("force-release", "nightly", "--fence", strconv.FormatInt(fence, 10), "--reason", "cleaning up", "--yes").wants(0)
			done()
			s.next()
		},
		"Who paused it?": func(s *scene) {
			s.noTickNow()
			s.process(roleConfig{Role: "cron", Holder: "app1:31"})
			s.awaitJobs(1)
			if out, err := s.bash(`joblock cron pause invoices --reason "the tax office is closed"`).CombinedOutput(); err != nil {
				s.Fatalf("%v: %s", err, out)
			}
			s.next()
			s.next()
		},
		"Too many wait": func(s *scene) {
			lock, err := s.locks.TryAcquire(context.Background(), "geocoder")
			if err != nil {
				s.Fatal(err)
			}
			defer func() { _ = lock.Release(context.Background()) }()
			for i, label := range []string{"web2:72", "web3:73", "web4:74"} {
				s.waits(label, "geocoder")
				s.awaitWaiters("geocoder", i+1)
			}
			s.next()
			s.next()
			s.next()
		},
	}
	headings := 0
	for _, line := range pageLines(t) {
		heading, ok := strings.CutPrefix(line, "## ")
		if !ok {
			continue
		}
		headings++
		make, ok := scenes[heading]
		if !ok {
			t.Errorf("no test makes %q", heading)
			continue
		}
		t.Run(heading, func(t *testing.T) {
			s := newScene(t, heading)
			make(s)
			s.end()
		})
	}
	if headings != len(scenes) {
		t.Errorf("the page has %d situations, the test %d", headings, len(scenes))
	}
}

// export is a request that takes the lock on key, and hands the lock over to a task.
func (s *scene) export(key, id string, in time.Duration, opts ...joblock.AcquireOption) {
	s.Helper()
	lock, err := s.locks.TryAcquire(context.Background(), key, opts...)
	if err == nil {
		_, err = s.sender.Enqueue(context.Background(), handoff.Carry(lock), asynq.NewTask("export", nil), asynq.Queue("exports"), asynq.TaskID(id),
			asynq.MaxRetry(3), asynq.ProcessIn(in))
	}
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) webhook(id, payload string) {
	s.Helper()
	_, err := s.sender.Enqueue(context.Background(), handoff.Sequence{Key: "webhooks:acme", HaltOnFailure: true},
		asynq.NewTask("webhook", []byte(payload)), asynq.Queue("webhooks"), asynq.TaskID(id), asynq.MaxRetry(3))
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) info(queue, id string) *asynq.TaskInfo {
	s.Helper()
	info, err := s.asynq.GetTaskInfo(queue, id)
	if err != nil {
		s.Fatal(err)
	}
	return info
}

// task waits until a task has this state.
func (s *scene) task(queue, id string, state asynq.TaskState) {
	s.Helper()
	s.until(id+" is "+state.String(), func() bool { return s.info(queue, id).State == state })
}

func (s *scene) status(key string) joblock.Status {
	s.Helper()
	st, err := s.locks.Status(context.Background(), key)
	if err != nil {
		s.Fatal(err)
	}
	return st[0]
}

func (s *scene) awaitState(key string, state joblock.State) {
	s.Helper()
	s.until(key+" is "+state.String(), func() bool { return s.status(key).State == state })
}

// awaitCommand waits until a process of the scene runs the command argv. A lock is held a moment before its
// command is started.
func (s *scene) awaitCommand(argv ...string) {
	s.Helper()
	line, env := strings.Join(argv, "\x00")+"\x00", envRedis+"=redis://"+s.redis.Addr()+"\x00"
	s.until(strings.Join(argv, " ")+" runs", func() bool {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			s.Fatal(err)
		}
		for _, file := range files { // of which some are gone when they are read
			if text, err := os.ReadFile(file); err != nil || string(text) != line {
				continue
			}
			if text, err := os.ReadFile(filepath.Dir(file) + "/environ"); err == nil && strings.Contains(string(text), env) {
				return true
			}
		}
		return false
	})
}

// awaitWatch waits until a holder is notified of forced releases at once. Before that it finds them when it renews,
// which it says in other words.
func (s *scene) awaitWatch() {
	s.Helper()
	rdb := s.redis.Client(s.T)
	s.until("a process listens for forced releases", func() bool {
		n, err := rdb.PubSubNumSub(context.Background(), s.prefix+"forced").Result()
		if err != nil {
			s.Fatal(err)
		}
		return n[s.prefix+"forced"] > 0
	})
}

func (s *scene) awaitWaiters(key string, n int) {
	s.Helper()
	s.until("so many wait for "+key, func() bool { return s.status(key).Waiters == n })
}

// awaitJobs waits until the two jobs of the role "cron" have run so often, and are seen on their node.
func (s *scene) awaitJobs(n int64) {
	s.Helper()
	s.until("both jobs have run", func() bool {
		jobs := s.jobs()
		return jobs["invoices"].Counts.Done == n && jobs["rollup"].Counts.Failed == n &&
			len(jobs["rollup"].Nodes) == 1 && len(jobs["invoices"].Nodes) == 1
	})
}

// keeper waits until the process with this label works as the keeper.
func (s *scene) keeper(label string) {
	s.Helper()
	s.until(label+" works as the keeper", func() bool { return strings.Contains(s.do("doctor").talk, label+" has worked") })
}

// noTickNow skips the test if a tick of the role "cron" is near. The tick would be in the counts.
func (s *scene) noTickNow() {
	s.Helper()
	for _, spec := range []string{specInvoices, specRollup} {
		plan, err := ops.CronPreview(spec, nil, time.Now().Add(-time.Minute), 1)
		if err != nil {
			s.Fatal(err)
		}
		if time.Until(plan.Ticks[0].At) < 2*time.Minute && os.Getenv(envWrite) == "" {
			s.Skipf("%s ticks at %s", spec, plan.Ticks[0].At)
		}
	}
}

// waits makes a request with this label wait for key until the end of the test.
func (s *scene) waits(label, key string) {
	s.Helper()
	locks := s.holder(label)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n := s.status(key).Waiters
	go func() {
		defer close(done)
		if lock, err := locks.Acquire(ctx, key); err == nil {
			_ = lock.Release(context.Background())
		}
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	s.awaitWaiters(key, n+1)
}

// shell runs a command line until the end of the test.
func (s *scene) shell(line string) {
	s.Helper()
	cmd := s.bash(line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait()
	})
}
