package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// keep does as a keeper does that works: it holds a permit, and writes figures.
func (s *stage) keep(key string, number int, f workerstats.Keeper) *joblock.Lock {
	s.Helper()
	lock, err := s.locks.TryAcquire(s.Context(), keyspace.Permit(key, number), core.OwnKey,
		joblock.Holder(fmt.Sprint("worker:", number)), joblock.Retain(time.Hour))
	testkit.WantNil(s, "TryAcquire", err)
	f.Began = time.Now()
	testkit.WantNil(s, "Write", memo.Write(s.Context(), lock, f.Encode()))
	return lock
}

func TestKeepersAreShown(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		k, err := s.Keeper(t.Context())
		if err != nil || k.Works() != nil || len(k.Places) != 0 {
			t.Fatalf("without a keeper: %+v, %v", k, err)
		}
		old := s.keep(keyspace.Keepers, 2, workerstats.Keeper{Every: 1000, Checked: 3})
		testkit.WantNil(t, "Release", old.Release(t.Context()))
		time.Sleep(time.Second)
		s.keep(keyspace.DryKeepers, 1, workerstats.Keeper{Every: 2000, DryRun: true})
		s.keep(keyspace.Keepers, 3, workerstats.Keeper{Every: 5000, Freed: map[string]int64{"why": 4}, Strangers: []string{"q"}})
		k, err = s.Keeper(t.Context())
		testkit.WantNil(t, "Keeper", err)
		var got []string
		for _, p := range k.Places {
			got = append(got, fmt.Sprintf("%d works %t dry %t %s %s %s", p.Number, p.Works, p.DryRun, p.Holder, p.Every, p.Problem))
		}
		want := "3 works true dry false worker:3 5s , 1 works true dry true worker:1 2s , 2 works false dry false worker:2 1s "
		if strings.Join(got, ", ") != want {
			t.Errorf("%s; want %s", strings.Join(got, ", "), want)
		}
		if p := k.Works(); p == nil || p.Number != 3 || p.Freed["why"] != 4 || !slices.Equal(p.Strangers, []string{"q"}) || k.every() != 5*time.Second {
			t.Errorf("%+v", p)
		}
	})
}

// The figures of the keeper before are not taken for those of the keeper that has the place now.
func TestFiguresOfTheKeeperBefore(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		testkit.WantNil(t, "Release", s.keep(keyspace.Keepers, 1, workerstats.Keeper{Checked: 3}).Release(t.Context()))
		time.Sleep(time.Minute)
		_, err := s.locks.TryAcquire(t.Context(), keyspace.Permit(keyspace.Keepers, 1), core.OwnKey)
		testkit.WantNil(t, "TryAcquire", err)
		k, err := s.Keeper(t.Context())
		if err != nil || len(k.Places) != 1 || k.Places[0].Checked != 0 || k.Places[0].Problem == "" {
			t.Errorf("%+v, %v", k, err)
		}
	})
}

// Whether locks are safe is said as far as the doctor came. A look at the servers that was cut short may have missed a fault.
func TestTheDoctorIsCutShort(t *testing.T) {
	t.Parallel()
	well := redisstore.Report{{Severity: redisstore.Well, Subject: "appendonly", Node: "r:1", Found: "yes"}}
	fault := append(redisstore.Report{{Severity: redisstore.Fault, Subject: "role", Node: "r:1", Found: "It is a replica.", Means: "m", Fix: "f"}}, well...)
	for name, c := range map[string]struct {
		report  redisstore.Report
		servers bool // while the doctor looks at them
		want    Safety
	}{
		"while it looks at the servers":                {well, true, Safety{Word: "unknown", Because: "the look at the servers of the locks was cut short"}},
		"while it looks at the servers, after a fault": {fault, true, Safety{"no", "role at r:1: It is a replica", "role", "r:1"}},
		"later":                {well, false, Safety{Word: "yes", Because: "the doctor has found nothing at the servers of the locks that breaks a promise"}},
		"later, after a fault": {fault, false, Safety{"no", "role at r:1: It is a replica", "role", "r:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			staged(t, func(t *testing.T, s *stage) {
				ctx, cancel := context.WithCancel(t.Context())
				s.cfg.Check = func(ctx context.Context) (redisstore.Report, error) {
					cancel()
					if c.servers {
						return c.report, ctx.Err()
					}
					return c.report, nil
				}
				all, err := s.Doctor(ctx)
				if !errors.Is(err, context.Canceled) || all.Safe != c.want {
					t.Errorf("%+v, %v, want %+v", all.Safe, err, c.want)
				}
				if of := all.Deciding(); (of != nil) != (c.want.Subject != "") || of != nil && of.Found != "It is a replica." {
					t.Errorf("%+v decides", of)
				}
			})
		})
	}
}

func findings(c Report, err error) ([]Finding, error) { return c.Findings, err }

func TestDoctor(t *testing.T) {
	found := func(s *stage) string {
		s.Helper()
		all, err := s.Doctor(s.Context())
		testkit.WantNil(s, "Doctor", err)
		if n := len(all.Findings); len(all.Checks) < n || n == 0 && !slices.ContainsFunc(all.Checks, func(c Probe) bool { return c.Status == Well }) {
			s.Errorf("the checks are %+v", all.Checks)
		}
		var lines []string
		for _, f := range all.Findings {
			if f.Found == "" || f.Means == "" || f.Fix == "" {
				s.Errorf("not complete: %+v", f)
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s", f.Severity, f.Subject, f.Found))
		}
		return strings.Join(lines, "\n")
	}
	good := workerstats.Keeper{Every: 30_000, Keepers: 1, Databases: 1}
	now := func(f workerstats.Keeper) workerstats.Keeper {
		f.At, f.Asked = time.Now(), time.Now()
		return f
	}
	const lone = "note keeper: worker:1 is the only keeper, and none stands by"
	for _, c := range []struct {
		name string
		do   func(s *stage)
		want []string // each is in one line, in order
	}{
		{"nothing", func(s *stage) { testkit.WantNil(s, "Release", s.some.Release(s.Context())); time.Sleep(time.Hour) }, []string{"warning prefix: no keeper, no scheduler and no lock was found"}},
		{"a lock and nothing else", func(*stage) {}, nil},
		{"a keeper that works, and jobs", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			s.keep(keyspace.Keepers, 1, now(good))
		}, []string{lone}},
		{"a keeper that works, and one that stands by", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			s.keep(keyspace.Keepers, 1, now(good))
			_, err := s.locks.TryAcquire(s.Context(), keyspace.Gate(keyspace.Keepers), core.OwnKey)
			testkit.WantNil(s, "TryAcquire", err)
		}, nil},
		{"jobs and no keeper", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
		}, []string{"fault keeper: no keeper works"}},
		{"jobs and no keeper for long", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			time.Sleep(10*time.Minute + 20*time.Second) // the first check is due after Config.JobGrace
		}, []string{"fault keeper: no keeper works, and jobs have locks; a check has been due for 10 min"}},
		{"checks that no keeper knows to be late", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			time.Sleep(3*time.Minute + 20*time.Second)
			s.keep(keyspace.Keepers, 1, now(good))
		}, []string{"warning keeper: the check of a lock has been due for 3 min, and the keepers do not say that they are behind", lone}},
		{"checks that the keeper knows to be late", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			time.Sleep(3*time.Minute + 20*time.Second)
			f := now(good)
			f.Behind, f.Late = true, 180_000
			s.keep(keyspace.Keepers, 1, f)
		}, []string{"warning keeper: it is behind", lone}},
		{"checks that are a little late", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			time.Sleep(time.Minute + 20*time.Second)
			s.keep(keyspace.Keepers, 1, now(good))
		}, []string{lone}},
		{"jobs and a keeper that changes nothing", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			s.keep(keyspace.DryKeepers, 1, now(good))
		}, []string{"fault keeper: the only keepers that work have DryRun"}},
		{"a keeper without figures", func(s *stage) {
			_, err := s.locks.TryAcquire(s.Context(), keyspace.Permit(keyspace.Keepers, 1), core.OwnKey)
			testkit.WantNil(s, "TryAcquire", err)
			time.Sleep(time.Minute)
		}, []string{"note keeper: The keeper has not written figures yet."}},
		{"a keeper that hangs", func(s *stage) {
			s.keep(keyspace.Keepers, 1, now(good))
			time.Sleep(time.Minute)
		}, []string{"warning keeper: its latest report is 1 min old"}},
		{"a keeper without answers", func(s *stage) {
			time.Sleep(time.Second)
			f := good
			f.At, f.Asked = time.Now().Add(2*time.Minute), time.Now()
			s.keep(keyspace.Keepers, 1, f)
			time.Sleep(2 * time.Minute)
		}, []string{"fault keeper: for longer than two of its periods, the store has not answered"}},
		{"a keeper that is behind", func(s *stage) {
			f := now(good)
			f.Behind, f.Late, f.Checked, f.Unanswered = true, 45_000, 10, 5
			s.keep(keyspace.Keepers, 1, f)
		}, []string{"warning keeper: it is behind: the latest check was late by 45 s", "warning keeper: 5 of 10 checks had no answer"}},
		{"a keeper that was a little late", func(s *stage) {
			f := now(good)
			f.Behind, f.Late = true, 5000
			s.keep(keyspace.Keepers, 1, f)
		}, nil},
		{"a keeper with more to do than it asks for at a time, and not late", func(s *stage) {
			f := now(good)
			f.Behind = true
			s.keep(keyspace.Keepers, 1, f)
		}, nil},
		{"a keeper with more to do than it asks for at a time, for long", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.park("k", "default/1")
			time.Sleep(3*time.Minute + 20*time.Second)
			f := now(good)
			f.Behind = true
			s.keep(keyspace.Keepers, 1, f)
		}, []string{"warning keeper: it is behind: more locks are due than it asks for at a time, one for 3 min", lone}},
		{"keepers that are configured differently", func(s *stage) {
			s.keep(keyspace.Keepers, 1, now(good))
			f := now(good)
			f.Keepers = 2
			s.keep(keyspace.Keepers, 2, f)
		}, []string{"warning keeper: its worker.Config differs from that of worker:1"}},
		{"a database that the keeper does not know", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "low", ID: "1"})
			s.park("k", "low/1")
			f := now(good)
			f.Strangers = []string{"low"}
			s.keep(keyspace.Keepers, 1, f)
		}, []string{`fault asynq: its only database does not have the queue "low", whose jobs have locks; the database "jobs" has it`, lone}},
		{"a database that is not configured", func(s *stage) {
			s.park("k", "low/1")
			s.keep(keyspace.Keepers, 1, now(good))
		}, []string{`warning asynq: jobs have locks, and no database known here has their queues: "low"`, lone}},
		{"two databases with one queue", func(s *stage) {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1"})
			s.cfg.Databases = append(s.cfg.Databases, Database{"other", s.asynq})
		}, []string{`note asynq: the queue "default" is also in the database "jobs"`}},
		{"a user without rights for asynq", func(s *stage) { s.asynq.err = errors.New("NOPERM no permissions to access a key") }, []string{"note asynq: this user may not look at that: NOPERM"}},
		{"asynq is away", func(s *stage) { s.asynq.err = context.DeadlineExceeded }, []string{"fault asynq: could not be read: context deadline exceeded"}},
		{"the store is away", func(s *stage) { s.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Inspect) },
			[]string{"fault keeper: could not be read", "fault pauses: could not be read", "fault cron: could not be read"}},
		{"the servers", func(s *stage) {
			s.cfg.Check = func(context.Context) (redisstore.Report, error) {
				return redisstore.Report{{Severity: redisstore.Note, Subject: "clock", Found: "f", Means: "m", Fix: "x"},
					{Severity: redisstore.Fault, Subject: "memory", Found: "f", Means: "m", Fix: "x"}}, context.DeadlineExceeded
			}
		}, []string{"fault memory: f", "fault servers: could not be read", "note clock: f"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				s.some = s.acquire("some", joblock.Retain(time.Second))
				c.do(s)
				got := found(s)
				lines := strings.Split(got, "\n")
				if got == "" {
					lines = nil
				}
				ok := len(lines) == len(c.want)
				for i := range lines {
					ok = ok && strings.HasPrefix(lines[i], c.want[i])
				}
				if !ok {
					t.Errorf("found\n%s\nwant\n%s", got, strings.Join(c.want, "\n"))
				}
			})
		})
	}
}
