package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// report runs Check and prints what it finds.
func report(t *testing.T, rdb redis.UniversalClient) Report {
	t.Helper()
	s := must(newStore(rdb, nil))
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := Check(ctx, s)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	if r = toChange(r); len(r) > 0 {
		t.Logf("\n%s", r)
	}
	return r
}

// toChange returns the findings of r that are not well.
func toChange(r Report) Report {
	return slices.DeleteFunc(slices.Clone(r), func(f Finding) bool { return f.Severity == Well })
}

// wantFinding finds the one finding about subject.
func wantFinding(t *testing.T, r Report, severity Severity, subject string) Finding {
	t.Helper()
	var found []Finding
	for _, f := range r {
		if f.Subject == subject {
			found = append(found, f)
		}
	}
	if len(found) != 1 || found[0].Severity != severity {
		t.Fatalf("findings about %s are %v, want one %s", subject, found, severity)
	}
	return found[0]
}

// Who lists the locks right after Check finds no lock of Check, also if the server answers quickly.
func TestCheckRemovesItsLock(t *testing.T) {
	t.Parallel()
	s := must(newStore(redistest.Shared(t).Client(t), nil))
	defer s.Close()
	for range 20 {
		if _, err := Check(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		page, err := s.List(t.Context(), driver.ListRequest{Count: 100})
		if err != nil || len(page.Records) > 0 {
			t.Fatalf("after Check there are %+v, %v", page.Records, err)
		}
	}
}

// A server that stands still in the middle of a script counts a time to live from later on. Check still leaves nothing behind.
func TestCheckRemovesItsLockFromAServerThatStandsStill(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	rdb, server := db.Client(t), db.Client(t)
	var kept int
	rdb.AddHook(scriptsSeen(func() {
		for _, key := range server.Keys(t.Context(), "*joblock-check-*").Val() {
			if left := server.PTTL(t.Context(), key).Val(); left > probeTTL/2 {
				server.PExpire(t.Context(), key, left+probeCleanUp)
				kept++
			}
		}
	}))
	s := must(newStore(rdb, nil))
	defer s.Close()
	if _, err := Check(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(t.Context(), driver.ListRequest{Count: 100})
	if err != nil || len(page.Records) > 0 || kept == 0 {
		t.Fatalf("after Check, which kept its lock for longer %d times, there are %+v, %v", kept, page.Records, err)
	}
}

// A server that does not say whether it keeps anything on disk may be volatile.
func TestCheckOfAServerThatSaysNothingOfItsDisk(t *testing.T) {
	n := &checkedServer{check: &check{}, addr: "a:1", info: info{"redis_version": "8.0.0"}}
	n.persistence(func(string) (string, bool) { return "", false })
	wantFinding(t, n.report, Note, "persistence")
}

// A replica that does not have what its master has is named. That is worse if there is no other one.
func TestCheckFindsReplicasThatAreBehind(t *testing.T) {
	const (
		well = "ip=10.0.0.2,port=6379,state=online,offset=7,lag=1"
		late = "ip=::1,port=6380,state=online,offset=7,lag=11"
		sync = "ip=10.0.0.4,port=6379,state=send_bulk,offset=0,lag=0"
	)
	for _, c := range []struct {
		replicas []string
		want     string
	}{
		{[]string{well}, ""},
		{[]string{well, well}, ""},
		{[]string{late}, "warning: replica lag at r:1: [::1]:6380 has reported nothing for 11 s; "},
		{[]string{well, sync}, "note: replica lag at r:1: 10.0.0.4:6379 is not in sync yet (send_bulk); "},
		{[]string{late, sync}, "warning: replica lag at r:1: [::1]:6380 has reported nothing for 11 s, 10.0.0.4:6379 is not in sync yet (send_bulk); "},
		{[]string{""}, ""}, // a server that tells nothing of its replicas
	} {
		n := &checkedServer{check: &check{s: &store{replicas: 1}}, addr: "r:1", info: info{"connected_slaves": strconv.Itoa(len(c.replicas))}}
		for i, r := range c.replicas {
			n.info["slave"+strconv.Itoa(i)] = r
		}
		n.replication("1", false)
		got := ""
		for _, f := range n.report {
			if f.Severity != Well {
				got += f.line()
			}
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%q: %q, want %q", c.replicas, got, c.want)
		}
	}
}

func TestCheckWarnsOfARing(t *testing.T) {
	db := redistest.Shared(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": db.Addr()}})
	defer ring.Close()
	wantFinding(t, report(t, ring), Fault, "client")
}

func TestReportIsReadable(t *testing.T) {
	r := Report{{Fault, "h:1", "role", "a replica", "no writes", "use the master"}}
	const line = "fault: role at h:1: a replica; no writes; use the master"
	if got := r.String(); got != line+"\n" {
		t.Errorf("String is %q", got)
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), line) {
		t.Errorf("Err is %v", err)
	}
	b, err := json.Marshal(r)
	const want = `[{"severity":"fault","node":"h:1","subject":"role","found":"a replica","means":"no writes","fix":"use the master"}]`
	if err != nil || string(b) != want {
		t.Errorf("JSON is %s, %v", b, err)
	}
}

// redis.NewFailoverClusterClient returns such a client.
func TestCheckFindsAClusterClientWithoutACluster(t *testing.T) {
	db := redistest.Shared(t)
	many := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: db.Addr()}}}}, nil
	}})
	defer many.Close()
	wantFinding(t, report(t, many), Fault, "client")
}

func TestCheckReportsServersWithoutShardChannels(t *testing.T) {
	closed := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	closed.Close()
	for version, want := range map[string]int{"6.2.14": 1, "7.0.0": 0} {
		for sharded, want := range map[bool]int{true: want, false: 0} {
			c := &check{s: &store{sharded: sharded}}
			(&checkedServer{check: c, info: info{"redis_version": version}}).shards(t.Context(), closed)
			if len(c.report) != want {
				t.Errorf("Redis %s, in a cluster %v: found %v", version, sharded, c.report)
			}
		}
	}
}

func TestOlderThan(t *testing.T) {
	for v, want := range map[string]bool{
		"6.0.16": true, "5.0": true, "2.8.24": true, "6.2": true, "6.2.0": true, "7.0": false, "7.0.15": false, "10.1": false, "": false, "unstable": false, "7": false,
	} {
		if got := olderThan(v, minVersion); got != want {
			t.Errorf("olderThan(%q) is %v", v, got)
		}
	}
}

// What endangers locks is found in what the server says of itself. TestCheckFindsWhatEndangersLocks has servers that are
// really so.
func TestCheckFindsDangerousSettings(t *testing.T) {
	for name, c := range map[string]struct {
		says     info
		config   map[string]string
		severity Severity
		subject  string
	}{
		"eviction":           {info{"maxmemory": "100", "maxmemory_policy": "allkeys-lru"}, nil, Fault, "maxmemory-policy"},
		"eviction to come":   {info{"maxmemory": "0", "maxmemory_policy": "volatile-ttl"}, nil, Note, "maxmemory-policy"},
		"no eviction":        {info{"maxmemory": "100", "maxmemory_policy": "noeviction"}, nil, Well, "maxmemory-policy"},
		"full":               {info{"maxmemory": "100", "used_memory": "91", "maxmemory_policy": "noeviction"}, nil, Warning, "maxmemory"},
		"not full":           {info{"maxmemory": "100", "used_memory": "90", "maxmemory_policy": "noeviction"}, nil, Well, "maxmemory"},
		"no persistence":     {info{"aof_enabled": "0"}, map[string]string{"save": ""}, Warning, "persistence"},
		"snapshots":          {info{"aof_enabled": "0"}, map[string]string{"save": "3600 1"}, Warning, "appendonly"},
		"some persistence":   {info{"aof_enabled": "1"}, map[string]string{"appendfsync": "everysec"}, Note, "appendfsync"},
		"persistence":        {info{"aof_enabled": "1"}, map[string]string{"appendfsync": "always"}, Well, "appendfsync"},
		"a replica":          {info{"role": "slave", "master_host": "h", "master_port": "1"}, nil, Fault, "role"},
		"a master":           {info{"role": "master"}, nil, Well, "role"},
		"fail-over":          {info{"connected_slaves": "1"}, map[string]string{"min-replicas-to-write": "1"}, Note, "replication"},
		"two masters":        {info{"connected_slaves": "1"}, map[string]string{"min-replicas-to-write": "0"}, Warning, "min-replicas-to-write"},
		"no fail-over":       {info{"connected_slaves": "0"}, nil, Well, "replication"},
		"an old server":      {info{"redis_version": "6.2.14"}, nil, Warning, "version"},
		"a server of 32 bit": {info{"redis_version": "7.0.0", "arch_bits": "32"}, nil, Fault, "version"},
		"a server of now":    {info{"redis_version": "7.0.0", "arch_bits": "64"}, nil, Well, "version"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &checkedServer{check: &check{s: &store{}}, addr: "a:1", info: c.says}
			config := func(name string) (string, bool) {
				val, ok := c.config[name]
				return val, ok
			}
			n.version()
			n.role()
			n.memory()
			n.persistence(config)
			n.replication(config("min-replicas-to-write"))
			wantFinding(t, n.report, c.severity, c.subject)
		})
	}
}

// In a cluster each server has its own findings: a bad one does not hide what is well on the others.
func TestCheckFindsWhatIsWellNextToABadServer(t *testing.T) {
	well := info{
		"redis_version": "8.0.0", "role": "master", "maxmemory": "100", "used_memory": "10", "maxmemory_policy": "noeviction",
		"aof_enabled": "1", "connected_slaves": "1",
	}
	bad := info{
		"redis_version": "6.2.14", "role": "slave", "maxmemory": "100", "used_memory": "99", "maxmemory_policy": "allkeys-lru",
		"aof_enabled": "0", "connected_slaves": "1",
	}
	always := func(name string) (string, bool) {
		return map[string]string{"appendfsync": "always", "save": "3600 1"}[name], true
	}
	subjects := []string{"version", "role", "maxmemory-policy", "maxmemory", "appendonly", "min-replicas-to-write"}
	c := &check{s: &store{replicas: 1}}
	for _, addr := range []string{"bad:1", "well:1", "bad:2", "well:2"} {
		n, replicas := &checkedServer{check: c, addr: addr, info: well}, "1"
		if strings.HasPrefix(addr, "bad") {
			n.info, replicas = bad, "0"
		}
		n.version()
		n.role()
		n.memory()
		n.persistence(always)
		n.replication(replicas, true)
	}
	for _, addr := range []string{"bad:1", "well:1", "bad:2", "well:2"} {
		of := slices.DeleteFunc(slices.Clone(c.report), func(f Finding) bool { return f.Node != addr })
		for _, subject := range subjects {
			var got []Severity
			for _, f := range of {
				if f.Subject == subject {
					got = append(got, f.Severity)
				}
			}
			if len(got) != 1 || (got[0] == Well) != strings.HasPrefix(addr, "well") {
				t.Errorf("findings about %s of %s are %v, want one", subject, addr, got)
			}
		}
	}
	for _, subject := range subjects {
		if !c.has(subject) {
			t.Errorf("%s is said to be well", subject)
		}
	}
	c = &check{}
	if c.well("well:1", "role", "master"); c.has("role") {
		t.Error("a role that is well counts as one that is not")
	}
}

// A server that refuses the calls of a lock has answered: the Check is complete, and says which call was refused.
func TestCheckOfAServerThatRefuses(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, answer := range map[string]string{
		"full":       "OOM command not allowed when used memory > 'maxmemory'.",
		"a replica":  "READONLY You can't write against a read only replica.",
		"no replica": "NOREPLICAS Not enough good replicas to write.",
		"no disk":    "MISCONF Errors writing to the AOF file: No space left on device",
	} {
		rdb := server.Client(t)
		rdb.AddHook(refusing{"evalsha", answer})
		f := wantFinding(t, report(t, rdb), Fault, "writes")
		if !strings.Contains(f.Found, "refused to acquire a lock: "+answer) {
			t.Errorf("%s: %+v", name, f)
		}
		s := must(newStore(rdb, nil))
		if all, err := Check(t.Context(), s); err != nil || all.Err() == nil {
			t.Errorf("%s: %v, and the Report is no error", name, err)
		}
		s.Close()
	}
	noList := server.Client(t)
	noList.AddHook(refusing{"scan", "NOPERM this user has no permissions to run the 'scan' command"})
	s := must(newStore(noList, nil))
	defer s.Close()
	if _, err := s.List(t.Context(), driver.ListRequest{Count: 1}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("List: %v, want driver.ErrRefused", err)
	}
}

// refusing is a redis.Hook that answers the commands that begin with a name.
type refusing struct{ name, answer string }

func (r refusing) refuse(cmd redis.Cmder) error {
	if !strings.HasPrefix(cmd.Name(), r.name) {
		return nil
	}
	err := serverError(r.answer)
	cmd.SetErr(err)
	return err
}

func (r refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := r.refuse(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (r refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := r.refuse(cmd); err != nil {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

// A Check that ends half-way leaves no lock behind, wherever that is: an operator who lists the locks must not find one.
func TestCheckThatEndsHalfWayRemovesItsLock(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for calls := int64(1); ; calls++ {
		ctx, cancel := context.WithCancel(t.Context())
		rdb := server.Client(t)
		var seen atomic.Int64
		rdb.AddHook(scriptsSeen(func() {
			if seen.Add(1) == calls {
				cancel()
			}
		}))
		s := must(newStore(rdb, nil))
		_, err := Check(ctx, s)
		page, lerr := s.List(t.Context(), driver.ListRequest{Count: 100})
		s.Close()
		cancel()
		if lerr != nil || len(page.Records) > 0 {
			t.Errorf("after %d scripts and %v there are %+v, %v", calls, err, page.Records, lerr)
		}
		if seen.Load() < calls {
			if calls < 6 {
				t.Errorf("the whole Check has run %d scripts, so this proves little", calls-1)
			}
			return
		}
	}
}

// scriptsSeen is a redis.Hook that calls a function after each script of Check.
type scriptsSeen func()

func (f scriptsSeen) after(cmds ...redis.Cmder) {
	if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return strings.HasPrefix(c.Name(), "evalsha") }) {
		f()
	}
}

func (f scriptsSeen) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f scriptsSeen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		f.after(cmd)
		return err
	}
}

func (f scriptsSeen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		f.after(cmds...)
		return err
	}
}
