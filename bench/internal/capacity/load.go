package capacity

import (
	"cmp"
	"flag"
	"fmt"
	"strings"
	"time"
)

// Load is what a fleet does. WithDefaults fills in what is zero, as far as a default is documented.
type Load struct {
	Jobs      float64       // a second: each is enqueued with a lock, run under it, and released
	Work      time.Duration // how long a job runs
	Pairs     float64       // acquire and release on free keys, a second
	Handovers float64       // releases for which somebody waits, a second
	Held      int           // locks that are held for long
	Waiting   int           // calls of Acquire that wait for one of the held locks
	Parked    int           // locks of tasks that wait in asynq
	Backlog   int           // of Parked: tasks that are due, so that their reservations have to be prolonged
	Cron      int           // entries of package scheduler
	CronEvery time.Duration // between two ticks of an entry. Default 1 min

	Web     int // processes that enqueue and that take locks. Default 1
	Workers int // processes that run jobs, a keeper and the cron entries. Default 1
	Masters int // of the Redis Cluster of the locks. Default 1: a single server
	Asynqs  int // Redis servers that the queues of asynq are divided among. Each worker serves one. Default 1
	Pool    int // connections of a Redis client at most. Default 20: ten for each of two cores, as in go-redis
	Payload int // bytes of a task. Default: that of the Costs

	TTL     time.Duration // joblock.Config.TTL. Default 30 s
	Poll    time.Duration // joblock.Config.Poll. Default 4 s
	Retain  time.Duration // joblock.Config.Retain. Default 5 min
	Grace   time.Duration // joblock.Config.JobGrace. Default 20 s
	Every   time.Duration // worker.Config.Every. Default 30 s
	Reserve time.Duration // worker.Config.Reserve. Default 1 h
	Keepers int           // worker.Config.Keepers. Default 1
	Share   float64       // worker.Config.Share. Default 0.1

	// Machine is the processor time of the Floor on the machine to be used, to that of the Costs. Default 1.
	Machine float64
}

// WithDefaults returns l with defaults in place of zeros.
func (l Load) WithDefaults(c Costs) Load {
	l.CronEvery = cmp.Or(l.CronEvery, time.Minute)
	l.Web, l.Workers, l.Masters = cmp.Or(l.Web, 1), cmp.Or(l.Workers, 1), cmp.Or(l.Masters, 1)
	l.Asynqs = cmp.Or(l.Asynqs, 1)
	l.Pool, l.Payload = cmp.Or(l.Pool, 20), cmp.Or(l.Payload, c.Payload)
	l.TTL, l.Poll = cmp.Or(l.TTL, 30*time.Second), cmp.Or(l.Poll, 4*time.Second)
	l.Retain = cmp.Or(l.Retain, 5*time.Minute)
	l.Grace = cmp.Or(l.Grace, 20*time.Second)
	l.Every, l.Reserve = cmp.Or(l.Every, 30*time.Second), cmp.Or(l.Reserve, time.Hour)
	l.Keepers, l.Share = cmp.Or(l.Keepers, 1), cmp.Or(l.Share, 0.1)
	l.Machine = cmp.Or(l.Machine, 1)
	return l
}

// Check refuses values that no fleet has. Call Check after WithDefaults.
func (l Load) Check() error {
	for _, f := range []struct {
		name     string
		val, min float64
	}{
		{"jobs", l.Jobs, 0}, {"work", float64(l.Work), 0}, {"pairs", l.Pairs, 0}, {"handovers", l.Handovers, 0},
		{"held", float64(l.Held), 0}, {"waiting", float64(l.Waiting), 0}, {"parked", float64(l.Parked), 0},
		{"backlog", float64(l.Backlog), 0}, {"cron", float64(l.Cron), 0}, {"cron-every", l.CronEvery.Seconds(), 1},
		{"web", float64(l.Web), 1}, {"workers", float64(l.Workers), 1}, {"masters", float64(l.Masters), 1},
		{"asynqs", float64(l.Asynqs), 1}, {"pool", float64(l.Pool), 1}, {"payload", float64(l.Payload), 0}, {"ttl", float64(l.TTL), float64(time.Millisecond)},
		{"poll", float64(l.Poll), float64(time.Millisecond)}, {"retain", float64(l.Retain), float64(time.Millisecond)},
		{"grace", float64(l.Grace), float64(time.Millisecond)},
		{"every", float64(l.Every), float64(100 * time.Millisecond)}, {"reserve", float64(l.Reserve), float64(time.Second)},
		{"keepers", float64(l.Keepers), 1}, {"share", l.Share, 0.001}, {"machine", l.Machine, 0.001},
	} {
		if !(f.val >= f.min) {
			return fmt.Errorf("-%s is %v, must be at least %v", f.name, f.val, f.min)
		}
	}
	switch {
	case l.Masters > Tags:
		return fmt.Errorf("-masters is %d, must be at most %d: the locks have so many tags", l.Masters, Tags)
	case l.Asynqs > l.Workers:
		return fmt.Errorf("-asynqs is %d, must be at most -workers, %d: each worker serves one", l.Asynqs, l.Workers)
	case l.Backlog > l.Parked:
		return fmt.Errorf("-backlog is %d, must be at most -parked, %d", l.Backlog, l.Parked)
	case l.Waiting > 0 && l.Held == 0:
		return fmt.Errorf("-waiting is %d, but nobody holds a lock to wait for: set -held", l.Waiting)
	case l.Handovers > 0 && l.Waiting == 0:
		return fmt.Errorf("-handovers is %v, but nobody waits: set -waiting", l.Handovers)
	case l.Share > 1:
		return fmt.Errorf("-share is %v, must be at most 1", l.Share)
	}
	return nil
}

// Flags defines a flag for each field of l.
func (l *Load) Flags(f *flag.FlagSet) {
	f.Float64Var(&l.Jobs, "jobs", 0, "jobs a second, each with a lock")
	f.DurationVar(&l.Work, "work", 0, "how long a job runs")
	f.Float64Var(&l.Pairs, "pairs", 0, "acquire and release on free keys, a second")
	f.Float64Var(&l.Handovers, "handovers", 0, "releases for which somebody waits, a second")
	f.IntVar(&l.Held, "held", 0, "locks that are held for long")
	f.IntVar(&l.Waiting, "waiting", 0, "calls that wait for one of the held locks")
	f.IntVar(&l.Parked, "parked", 0, "locks of tasks that wait in asynq")
	f.IntVar(&l.Backlog, "backlog", 0, "of these: tasks that are due already")
	f.IntVar(&l.Cron, "cron", 0, "cron entries")
	f.DurationVar(&l.CronEvery, "cron-every", 0, "between two ticks of an entry (default 1m)")
	f.IntVar(&l.Web, "web", 0, "processes that enqueue (default 1)")
	f.IntVar(&l.Workers, "workers", 0, "processes that run jobs (default 1)")
	f.IntVar(&l.Masters, "masters", 0, "masters of the locks' cluster (default 1: a single server)")
	f.IntVar(&l.Asynqs, "asynqs", 0, "Redis servers that asynq's queues are divided among (default 1)")
	f.IntVar(&l.Pool, "pool", 0, "connections of a Redis client, at most (default 20)")
	f.IntVar(&l.Payload, "payload", 0, "bytes of a task (default that of the costs)")
	f.DurationVar(&l.TTL, "ttl", 0, "joblock.Config.TTL (default 30s)")
	f.DurationVar(&l.Poll, "poll", 0, "joblock.Config.Poll (default 4s)")
	f.DurationVar(&l.Retain, "retain", 0, "joblock.Config.Retain (default 5m)")
	f.DurationVar(&l.Grace, "grace", 0, "joblock.Config.JobGrace (default 20s)")
	f.DurationVar(&l.Every, "every", 0, "worker.Config.Every (default 30s)")
	f.DurationVar(&l.Reserve, "reserve", 0, "worker.Config.Reserve (default 1h)")
	f.IntVar(&l.Keepers, "keepers", 0, "worker.Config.Keepers (default 1)")
	f.Float64Var(&l.Share, "share", 0, "worker.Config.Share (default 0.1)")
	f.Float64Var(&l.Machine, "machine", 0, "processor time of a SET on your machine, to that of the costs (default 1)")
}

// Args returns the flags that make l, in alphabetical order, as a line of code in Markdown.
func (l Load) Args() string {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	var zero Load
	zero.Flags(set)
	own := flag.NewFlagSet("", flag.ContinueOnError)
	values := l
	values.Flags(own) // sets all to their defaults
	values = l
	var b strings.Builder
	own.VisitAll(func(f *flag.Flag) {
		if text := f.Value.String(); text != set.Lookup(f.Name).Value.String() {
			b.WriteString(" -" + f.Name + " " + text)
		}
	})
	return "`-capacity" + b.String() + "`"
}
