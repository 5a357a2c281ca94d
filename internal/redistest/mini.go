package redistest

import (
	"context"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini returns a miniredis whose keys expire by the clock, which inside a
// testing/synctest bubble is the bubble's clock. It is closed at the end of the
// test.
//
// It has no address: a goroutine that waits in Accept keeps the clock of a bubble
// from advancing, so connections are made in memory by [MiniClient]. For what needs
// an address there is [MiniServer].
func Mini(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	return m
}

// MiniServer is [Mini] listening on 127.0.0.1, at m.Addr(). It does not work inside
// a testing/synctest bubble.
func MiniServer(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := Mini(t)
	if err := m.Start(); err != nil {
		t.Fatalf("start miniredis: %v", err)
	}
	return m
}

// MiniClient returns a client of m, from [Mini] or [MiniServer], whose connections
// are made in memory. It works inside a testing/synctest bubble if m was made in the
// same bubble. It is closed at the end of the test.
func MiniClient(t testing.TB, m *miniredis.Miniredis) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		// Never dialed, but looked up unless it is a literal IP, and a look-up in a
		// bubble leaves a goroutine of the resolver behind that breaks the next one.
		Addr:   "127.0.0.1:1",
		Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
	})
	t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// MiniBackend returns the name of miniredis for [Ran], with the version that was
// compiled in: "miniredis 2.40.0".
func MiniBackend() string {
	// Test binaries carry no module versions in their build information, but the path
	// of a module's source has one: …/miniredis/v2@v2.40.0/miniredis.go.
	pc := reflect.ValueOf(miniredis.NewMiniRedis).Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	_, version, found := strings.Cut(file, "@v")
	if !found { // vendored or replaced
		return "miniredis"
	}
	version, _, _ = strings.Cut(version, "/")
	return "miniredis " + version
}
