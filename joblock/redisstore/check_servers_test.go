//go:build servers

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// wellKept are the settings of a server that Check has nothing to say about.
var wellKept = []string{"--appendonly", "yes", "--appendfsync", "always"}

func TestCheckHasNothingToSayOfAWellKeptServer(t *testing.T) {
	srv := redistest.Start(t, wellKept...)
	redistest.Ran(t, srv.Backend())
	rdb := srv.Client(t)
	if r := report(t, rdb); len(r) != 0 || r.Err() != nil {
		t.Errorf("Check found %v", r)
	}
	keys, err := rdb.Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys { // what is left runs out in a moment
		if ttl := rdb.PTTL(context.Background(), key).Val(); ttl > 2*time.Millisecond {
			t.Errorf("Check left %s behind, for %s", key, ttl)
		}
	}
}

// Check says of each thing whether it is well. What could not be looked at is not said to be well.
func TestCheckSaysWhatIsWell(t *testing.T) {
	wells := func(rdb redis.UniversalClient) string {
		t.Helper()
		s := must(newStore(rdb, nil))
		defer s.Close()
		all, err := Check(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range all {
			if f.Severity == Well {
				if f.Found == "" || f.Means != "" || f.Fix != "" {
					t.Errorf("%+v", f)
				}
				names = append(names, f.Subject)
			}
		}
		return strings.Join(names, " ")
	}
	srv := redistest.Start(t, wellKept...)
	const whole = "appendfsync appendonly clock maxmemory maxmemory-policy permissions pub/sub replication role scripts version"
	if got := wells(srv.Client(t)); got != whole {
		t.Errorf("well are %s; want %s", got, whole)
	}
	if err := srv.Client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := wells(srv.Client(t)), strings.Replace(whole, "maxmemory-policy ", "", 1); got != want {
		t.Errorf("with a policy that evicts, well are %s; want %s", got, want)
	}
	srv.SetUser(t, "few", "~*", "&*", "+@all", "-info", "-config")
	few := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "few", Password: redistest.Password})
	defer few.Close()
	if got := wells(few); got != "clock pub/sub" {
		t.Errorf("for a user who may not run INFO, well are %s", got)
	}
}

func TestCheckFindsWhatEndangersLocks(t *testing.T) {
	for _, c := range []struct {
		name     string
		args     []string
		severity Severity
		subject  string
		fix      string
	}{
		{"eviction", []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, Fault, "maxmemory-policy", "noeviction"},
		{"eviction to come", []string{"--maxmemory-policy", "volatile-ttl"}, Note, "maxmemory-policy", "noeviction"},
		{"no persistence", []string{"--appendonly", "no", "--save", ""}, Warning, "persistence", "appendonly yes"},
		{"snapshots", []string{"--appendonly", "no", "--save", "3600 1"}, Warning, "appendonly", "appendonly yes"},
		{"some persistence", []string{"--appendfsync", "everysec"}, Note, "appendfsync", "always"},
		{"cluster", []string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"}, Fault, "client", "NewClusterClient"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := redistest.Start(t, append(append([]string{}, wellKept...), c.args...)...)
			if c.subject == "client" { // its slots have no owner yet: nothing can be played
				s := must(newStore(srv.Client(t), nil))
				defer s.Close()
				r, err := Check(context.Background(), s)
				if err == nil {
					t.Error("a cluster without slots passes")
				}
				wantFinding(t, r, c.severity, c.subject)
				return
			}
			r := report(t, srv.Client(t))
			f := wantFinding(t, r, c.severity, c.subject)
			if !strings.Contains(f.Fix, c.fix) || f.Node != srv.Addr() {
				t.Errorf("the finding is %+v, want one about %s with the fix %s", f, srv.Addr(), c.fix)
			}
			if len(r) != 1 {
				t.Errorf("found %d things, want one", len(r))
			}
			if err := r.Err(); (err != nil) != (c.severity == Fault) || err != nil && !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("Err is %v", err)
			}
		})
	}
}

func TestCheckFindsAFullServer(t *testing.T) {
	srv := redistest.Start(t, wellKept...)
	rdb := srv.Client(t)
	ctx := context.Background()
	// Made by the server: what it reads into is memory too, and is freed when it likes.
	if err := rdb.SetRange(ctx, "big", 64<<20, "x").Err(); err != nil {
		t.Fatal(err)
	}
	used := parseInfo(rdb.Info(ctx, "memory").Val()).num("used_memory")
	if err := rdb.ConfigSet(ctx, "maxmemory", fmt.Sprint(used+used/50)).Err(); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, report(t, rdb), Warning, "maxmemory")
}

func TestCheckFindsReplicas(t *testing.T) {
	master := redistest.Start(t, wellKept...)
	_, port, _ := strings.Cut(master.Addr(), ":")
	replica := redistest.Start(t, append([]string{"--replicaof", "127.0.0.1 " + port}, wellKept...)...)
	rdb, ctx := master.Client(t), context.Background()
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(rdb.Info(ctx, "replication").Val(), "state=online") { // before, it does not count for min-replicas-to-write
		if time.Now().After(deadline) {
			t.Fatal("the replica does not connect")
		}
		time.Sleep(5 * time.Millisecond)
	}
	r := report(t, rdb)
	wantFinding(t, r, Note, "replication")
	wantFinding(t, r, Warning, "min-replicas-to-write")
	if r[0].Severity != Warning {
		t.Error("the worst does not come first")
	}
	if err := rdb.ConfigSet(ctx, "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, f := range report(t, rdb) {
		if f.Subject == "min-replicas-to-write" {
			t.Errorf("still found %v", f)
		}
	}

	s := must(newStore(replica.Client(t), nil))
	defer s.Close()
	r, err := Check(ctx, s)
	if err != nil {
		t.Errorf("Check of a replica returned %v", err)
	}
	wantFinding(t, r, Fault, "role") // and none about the writes that the replica refuses
}

func TestCheckOfACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0, wellKept...)
	redistest.Ran(t, "cluster of "+cluster.Node(0).Backend())
	if r := report(t, cluster.Client(t)); len(r) != 0 {
		t.Errorf("found %v", r)
	}
	if err := cluster.Node(1).Client(t).ConfigSet(context.Background(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, report(t, wrapped{cluster.Client(t)}), Fault, "client")
	if f := wantFinding(t, report(t, cluster.Client(t)), Note, "maxmemory-policy"); f.Node != cluster.Node(1).Addr() {
		t.Errorf("found at %s, want %s", f.Node, cluster.Node(1).Addr())
	}
}

func TestCheckReportsThatItCannotLook(t *testing.T) {
	locked := redistest.Start(t)
	if err := locked.Client(t).ConfigSet(context.Background(), "requirepass", "right").Err(); err != nil {
		t.Fatal(err)
	}
	wrong := redis.NewClient(&redis.Options{Addr: locked.Addr(), Password: "wrong"})
	defer wrong.Close()
	dead := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer dead.Close()
	for name, rdb := range map[string]*redis.Client{"WRONGPASS": wrong, "refused": dead} {
		s := must(newStore(rdb, nil))
		defer s.Close()
		if r, err := Check(context.Background(), s); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Check returned %v, %v, want an error with %s", r, err, name)
		}
	}
	if _, err := Check(context.Background(), nil); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("Check of no store returned %v", err)
	}
}
