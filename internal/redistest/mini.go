package redistest

import (
	"context"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// RealOnlyEnv is the environment variable that leaves out the tests on miniredis, for a second run on another server:
// they would do the same again.
const RealOnlyEnv = "JOBLOCK_REAL_ONLY"

// Mini returns a miniredis whose keys expire by the clock. In a testing/synctest bubble that is the bubble's clock. The
// miniredis is closed at the end of the test.
//
// The miniredis has no address: a goroutine that waits in Accept keeps the clock of a bubble from advancing.
// [MiniClient] connects in memory. For a test that needs an address there is [MiniServer].
//
// If [RealOnlyEnv] is set, Mini skips the test.
func Mini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := newMini(t)
	conn, err := m.Dial() // starts it
	if err != nil {
		t.Fatalf("start miniredis: %v", err)
	}
	_ = conn.Close()
	if err := serveNative(m); err != nil {
		t.Fatalf("add commands to miniredis: %v", err)
	}
	return m
}

func skipIfRealOnly(t testing.TB) {
	t.Helper()
	if os.Getenv(RealOnlyEnv) != "" {
		t.Skip("the test is on miniredis, and " + RealOnlyEnv + " asks for those on real servers only")
	}
}

func newMini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	skipIfRealOnly(t)
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	return m
}

// MiniServer is [Mini] with an address on 127.0.0.1, which Addr of the result returns. MiniServer does not work inside
// a testing/synctest bubble.
func MiniServer(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := newMini(t)
	if err := m.Start(); err != nil {
		t.Fatalf("start miniredis: %v", err)
	}
	if err := serveNative(m); err != nil {
		t.Fatalf("add commands to miniredis: %v", err)
	}
	return m
}

// MiniClient returns a client of m, a result of [Mini] or [MiniServer]. The client's connections are in memory. The
// client works inside a testing/synctest bubble if m was made in that bubble. The client is closed at the end of the
// test.
func MiniClient(t testing.TB, m *miniredis.Miniredis) *redis.Client {
	t.Helper()
	srv := m.Server()
	rdb := redis.NewClient(&redis.Options{
		// The address is never dialed. It is a literal IP because a name would be looked up: in a bubble, a look-up
		// leaves a goroutine of the resolver behind, which breaks the next look-up.
		Addr:   "127.0.0.1:1",
		Dialer: func(context.Context, string, string) (net.Conn, error) { return dialMini(m, srv) },
		// A call that waits for a connection takes a timer from a list that go-redis keeps for the whole process. A timer
		// made in one bubble must not be used in another, so no call may wait. The default is 10 for each CPU.
		PoolSize: 200,
		// The defaults are 32 KiB each. Most clients of the tests send a few short commands.
		ReadBufferSize: 2048, WriteBufferSize: 2048,
	})
	t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// MiniBackend returns the name of miniredis for [Ran], with the version that was
// compiled in: "miniredis 2.40.0".
func MiniBackend() string {
	// Test binaries carry no module versions in their build information, but the path of a module's source has the
	// version: …/miniredis/v2@v2.40.0/miniredis.go.
	pc := reflect.ValueOf(miniredis.NewMiniRedis).Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	_, version, found := strings.Cut(file, "@v")
	if !found { // vendored or replaced
		return "miniredis"
	}
	version, _, _ = strings.Cut(version, "/")
	return "miniredis " + version
}
