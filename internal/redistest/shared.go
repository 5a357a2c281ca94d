package redistest

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// SharedEnv names the environment variable with the address of the redis-server that the tests of all packages share.
// .ci/shared.sh starts that server and sets the variable. Without it, [Shared] starts a server for this test binary.
const SharedEnv = "JOBLOCK_REDIS"

// sharedDatabases is how many databases the shared server has: more than there are tests at a time.
const sharedDatabases = 1024

// Database is one database of the shared redis-server, empty at first and for one test alone. What belongs to the whole
// server is shared: scripts, channels, the configuration and the statistics. A test that needs these for itself needs a
// server of its own, see [Start].
type Database struct {
	addr    string
	number  int
	backend string
}

// Shared returns a database of the shared redis-server. Without a redis-server the test is skipped, or fails if the
// environment variable CI is set: what is left out on a laptop must not go unnoticed in continuous integration.
func Shared(t testing.TB) *Database {
	t.Helper()
	addr := os.Getenv(SharedEnv)
	if addr == "" {
		addr = shared.use(t)
	}
	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = admin.Close() })
	number, err := takeDatabase(t.Context(), admin)
	if err != nil {
		t.Fatalf("take a database of the shared redis-server: %v", err)
	}
	d := &Database{addr: addr, number: number}
	t.Cleanup(func() {
		if err := d.giveBack(admin); err != nil {
			t.Errorf("give database %d of the shared redis-server back: %v", number, err)
		}
	})
	info, err := admin.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	d.backend = backend(info)
	return d
}

// freeDatabases and lastDatabase are keys in database 0, which no test gets: the numbers to use again, and the largest
// one in use so far. Small numbers are used again because a server looks for expired keys in a few databases at a time.
const (
	freeDatabases = "redistest:free"
	lastDatabase  = "redistest:last"
)

func takeDatabase(ctx context.Context, admin *redis.Client) (int, error) {
	number, err := admin.LPop(ctx, freeDatabases).Int()
	if errors.Is(err, redis.Nil) {
		last, err := admin.Incr(ctx, lastDatabase).Result()
		return int(last), err
	}
	return number, err
}

func (d *Database) giveBack(admin *redis.Client) error {
	ctx := context.Background() // that of the test has ended
	_, err := admin.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Do(ctx, "SELECT", d.number)
		tx.FlushDB(ctx)
		tx.Do(ctx, "SELECT", 0)
		tx.LPush(ctx, freeDatabases, d.number)
		return nil
	})
	return err
}

// Addr returns the server's address, "127.0.0.1:port". A client also needs the Number.
func (d *Database) Addr() string { return d.addr }

// Number returns the number of the database, for the command SELECT.
func (d *Database) Number() int { return d.number }

// Options returns the options of a client with default settings.
func (d *Database) Options() *redis.Options { return &redis.Options{Addr: d.addr, DB: d.number} }

// Client returns a client with default settings. The client is closed at the end of the test.
func (d *Database) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(d.Options())
	t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Backend returns the server's name for [Ran], as [Server.Backend] does.
func (d *Database) Backend() string { return d.backend }

// backend returns the name and the version of a server from its answer to INFO. A server that is not Redis reports two
// versions: redis_version is that of the Redis that the server can stand in for, and another field has its own.
func backend(info string) string {
	name := cmp.Or(infoField(info, "server_name"), "redis")
	return name + "-server " + cmp.Or(infoField(info, name+"_version"), infoField(info, "redis_version"))
}

// shared is the server of this test binary, if SharedEnv names none.
var shared sharedServer

// sharedServer is started for its first user and killed after its last one, so that no process and no goroutine
// outlives the tests.
type sharedServer struct {
	mu    sync.Mutex
	users int
	p     *process
}

// use returns the address of the server, which runs until the end of the test.
func (s *sharedServer) use(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		s.start(t)
	}
	s.users++
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users--; s.users > 0 {
			return
		}
		s.p.t = t // the test that started it may have ended
		s.p.kill()
		if err := os.RemoveAll(s.p.dir); err != nil {
			t.Error(err)
		}
	})
	return s.p.addr()
}

func (s *sharedServer) start(t testing.TB) {
	t.Helper()
	bin, err := program()
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "" {
		t.Skip("not run: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.p, err = startOnFreePort(func() *process {
		dir, err := os.MkdirTemp("", "redistest")
		if err != nil {
			t.Fatal(err)
		}
		port := freePort(t)
		args := serverArgs(port, []string{"--databases", strconv.Itoa(sharedDatabases)})
		return &process{t: t, bin: bin, dir: dir, port: port, args: args}
	})
	if err != nil {
		t.Fatal(err)
	}
}
