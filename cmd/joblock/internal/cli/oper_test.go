//go:build linux

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
)

// steerers are the commands about cron jobs, jobs of asynq and the whole, each with the arguments of a call that asks
// Redis. The second half changes something.
var steerers = map[string]string{
	"cron ls": "", "cron get": "rollup", "cron next": "rollup", "cron history": "rollup", "cron nodes": "", "cron scopes": "",
	"jobs ls": "", "jobs get": "exports/41", "outbox": "", "doctor": "",

	"cron pause": "rollup", "cron resume": "rollup", "cron trigger": "rollup", "cron forget": "rollup --yes", "cron backfill": "rollup --stop",
	"jobs run": "exports/41", "jobs cancel": "exports/41 --yes", "jobs drop": "exports/41 --yes", "jobs skip": "webhooks:acme --yes", "jobs annotate": "exports/41 note",
	"jobs pause": "tenant:42", "jobs resume": "tenant:42", "jobs pauses": "", "limits": "", "limits set": "acme 2", "limits clear": "acme",
}

func TestHelpOfTheSteerers(t *testing.T) {
	for name := range steerers {
		a := ask(t, append(strings.Fields(name), "--help")...).wants(exitOK, "Usage:\n  joblock "+name, "Examples:\n  joblock "+name, "--timeout", "--redis URL")
		for line := range strings.Lines(a.out) {
			if n := len([]rune(line)); n > 230 {
				t.Errorf("joblock %s --help has a line of %d characters: %s", name, n, line)
			}
		}
		parent, last, nested := strings.Cut(name, " ")
		if !nested {
			parent, last = "", name
		}
		ask(t, append(strings.Fields(parent), "--help")...).wants(exitOK, "\n  "+last+" ")
	}
}

// While Redis is silent or absent, every command ends in time with 69 and prints no data.
func TestSteerersWhileRedisIsAway(t *testing.T) {
	redis := redistest.Start(t)
	silent, absent := redistest.NewProxy(t, redis.Addr()), redistest.NewProxy(t, redis.Addr())
	silent.BlackHole()
	absent.Refuse()
	for state, addr := range map[string]string{"silent": silent.Addr(), "absent": absent.Addr()} {
		for name, args := range steerers {
			t.Run(state+"/"+name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				line := append([]string{"--timeout", "300ms", "--redis", "redis://" + addr}, append(strings.Fields(name), strings.Fields(args)...)...)
				if strings.HasPrefix(name, "cron") && name != "cron scopes" {
					line = append(line, "--scope", "shop")
				}
				a := ask(t, line...).wants(exitUnavailable)
				if strings.Count(a.talk, "\n") != 1 {
					t.Errorf("said %q, want one line", a.talk)
				}
				if last := name[strings.LastIndex(name, " ")+1:]; !strings.Contains("pause resume trigger forget backfill run cancel drop skip", last) {
					if !strings.HasPrefix(a.talk, "joblock: no answer from Redis at "+addr) || strings.Contains(a.talk, "outcome") {
						t.Errorf("said %q", a.talk)
					}
				}
				if a.out != "" {
					t.Errorf("printed %q", a.out)
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("took %s", took)
				}
			})
		}
	}
}

// An ACL user who may do nothing gets 77, except from doctor, which says what it was not allowed to look at.
func TestSteerersWithoutRights(t *testing.T) {
	redis := redistest.Start(t)
	testkit.WantNil(t, "ACL SETUSER", redis.Client(t).Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">geheim", "+ping").Err())
	file := filepath.Join(t.TempDir(), "password")
	testkit.WantNil(t, "WriteFile", os.WriteFile(file, []byte("geheim\n"), 0o600))
	for name, args := range steerers {
		line := append([]string{"--redis", "redis://limited@" + redis.Addr(), "--redis-password-file", file}, append(strings.Fields(name), strings.Fields(args)...)...)
		if strings.HasPrefix(name, "cron") && name != "cron scopes" {
			line = append(line, "--scope", "shop")
		}
		if name == "doctor" {
			ask(t, line...).wants(exitNo, "fault: ", "NOPERM")
			continue
		}
		ask(t, line...).wants(exitDenied)
	}
}

// A user with no more than the rights that package redisstore asks for sees all locks, keepers and cron jobs. What doctor
// may not look at is a note.
func TestDoctorWithTheLeastRights(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.export("exports:acct-7", "41")
	q.shop()
	rules := redistest.Rules(t, "../../../../joblock/redisstore/doc.go", "Permissions")
	q.redis.SetUser(t, "locks", append([]string{"~" + q.prefix + "*", "resetchannels", "&" + q.prefix + "*"}, rules...)...)
	file := filepath.Join(t.TempDir(), "password")
	testkit.WantNil(t, "WriteFile", os.WriteFile(file, []byte(redistest.Password+"\n"), 0o600))
	as := func(args ...string) answer {
		return ask(t, append([]string{"--redis", "redis://locks@" + q.redis.Addr(), "--redis-password-file", file, "--prefix", q.prefix}, args...)...)
	}
	as("cron", "ls").wants(0, "rollup")
	as("doctor").wants(exitNo, "fault: keeper", "no keeper works", "note: asynq", "this user may not look at that", `cron    scopes "shop"`).lacks("could not be read")
	as("jobs", "ls").wants(0, "exports/41", "unknown")
}

// Every field of the objects is in the schemas, and every field of the schemas is in the objects.
func TestSchemasOfTheSteerers(t *testing.T) {
	fields := func(v any) (names []string) {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	read := func(file string, path ...string) map[string]any {
		text, err := os.ReadFile(filepath.Join(schemaDir, file))
		testkit.WantNil(t, file, err)
		var v map[string]any
		testkit.WantNil(t, file, json.Unmarshal(text, &v))
		for _, name := range path {
			next, ok := v[name].(map[string]any)
			if !ok {
				t.Fatalf("%s has no %v", file, path)
			}
			v = next
		}
		return v
	}
	for _, tc := range []struct {
		v    any
		file string
		path []string
	}{
		{ops.CronJob{}, "cron.json", []string{"$defs", "job"}}, {ops.CronRun{}, "cron.json", []string{"$defs", "run"}},
		{ops.CronNode{}, "cron.json", []string{"$defs", "node"}}, {ops.CronTick{}, "cron.json", []string{"$defs", "tick"}},
		{cronScope{}, "cron.json", []string{"$defs", "scope"}}, {ops.CronBackfill{}, "cron.json", []string{"$defs", "job", "properties", "backfill"}},
		{ops.Job{}, "jobs.json", []string{"properties", "items", "items"}}, {ops.Finding{}, "doctor.json", []string{"properties", "items", "items"}},
		{ops.Report{}, "doctor.json", nil}, {ops.Safety{}, "doctor.json", []string{"properties", "safe"}}, {ops.Probe{}, "doctor.json", []string{"properties", "checks", "items"}},
		{jobReport{}, "job.json", nil}, {ops.Outbox{}, "outbox.json", []string{"properties", "items", "items"}}, {ops.Sequence{}, "sequences.json", []string{"properties", "items", "items"}},
	} {
		var got []string
		for name := range read(tc.file, append(tc.path, "properties")...) {
			if name != "v" {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if want := fields(tc.v); !slices.Equal(got, want) {
			t.Errorf("%s %v has %q, %T has %q", tc.file, tc.path, got, tc.v, want)
		}
	}
}

// Doctor finds what is wrong, exits accordingly, and prints the findings in every format.
func TestDoctor(t *testing.T) {
	t.Parallel()
	q := newQueues(t, redistest.Start(t))
	q.do("doctor").wants(0, "Safe for locks: yes, but a restart of Redis, which is routine, frees held locks, because of", "persistence at ", "keeper  none works", "cron    no scheduler has run")
	q.do("doctor", "--strict").wants(exitNo, "warning: prefix", "no keeper, no scheduler and no lock was found").lacks("fault:")
	q.do("doctor", "--prefix", "mistyped:").wants(0, "check the address of Redis, the database and the prefix")
	q.export("exports:acct-7", "41")
	q.do("doctor").wants(exitNo, "fault: keeper", "no keeper works, and jobs have locks", "fix", "start a process", "found 1 fault")
	var c ops.Report
	wantJSON(t, "doctor.json", q.do("doctor", "-o", "json").wants(exitNo).out, &c)
	if len(c.Findings) == 0 || c.Findings[0].Severity != ops.Fault || c.Findings[0].Subject != "keeper" {
		t.Errorf("findings %+v", c.Findings)
	}
	of := make(map[string]ops.Severity)
	for _, c := range c.Checks {
		of[c.Subject] = c.Status
	}
	if of["keeper"] != ops.Fault || of["asynq"] != ops.Well || of["maxmemory-policy"] != ops.Well || of["persistence"] != ops.Warning {
		t.Errorf("checks %+v", c.Checks)
	}
	q.do("doctor").wants(exitNo, "\nwell    asynq, clock, cron, maxmemory, maxmemory-policy, pauses, permissions, pub/sub, replication, role, scripts, version\n", "volatile: nothing is kept on disk")
	q.do("doctor", "-o", "name").wants(exitNo, "keeper\n")
	q.do("doctor", "-o", "wide").wants(exitNo, "SUBJECT", "FIX", "noeviction", "well")
	q.shop()()
	q.do("doctor").wants(exitNo, `cron    scopes "shop"`, "no node is up, and the scope has 2 jobs")
	q.do("doctor", "x").wants(exitUsage)

	other := redistest.Start(t)
	q.do("doctor", "--asynq", "redis://"+other.Addr()).wants(exitNo, "asynq   "+other.Addr(), `no database known here has their queues: "exports"`)
	q.do("doctor", "--asynq", "redis://"+other.Addr(), "--asynq", "redis://"+q.redis.Addr()).
		wants(exitNo, "asynq   "+other.Addr()+", "+q.redis.Addr()).lacks("no database known here")
}
