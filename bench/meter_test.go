//go:build servers

package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// meter measures what operations cost in commands and processor time.
type meter struct {
	b       *testing.B
	wire    *wire
	servers []*redis.Client
	since   usage
}

// usage is what this process and the servers have used since they started.
type usage struct {
	own, server     time.Duration // processor time, user and system
	scripts         time.Duration // by the servers' own count
	calls           []int64       // scripts run, of each server
	commands, turns int64
}

func newMeter(b *testing.B, w *wire, servers ...*redis.Client) *meter {
	return &meter{b: b, wire: w, servers: servers}
}

// start begins to measure, and resets the benchmark's timer.
func (m *meter) start() {
	m.b.Helper()
	m.since = m.now()
	m.b.ReportAllocs()
	m.b.ResetTimer()
}

// stop ends what start began, reports the figures of each of n operations, and returns how often each server ran a
// script.
func (m *meter) stop(n int) (calls []int64) {
	m.b.Helper()
	m.b.StopTimer()
	now := m.now()
	for unit, v := range map[string]float64{
		"own-ns/op":     float64(now.own - m.since.own),
		"server-ns/op":  float64(now.server - m.since.server),
		"scripts-ns/op": float64(now.scripts - m.since.scripts),
		"cmds/op":       float64(now.commands - m.since.commands),
		"trips/op":      float64(now.turns - m.since.turns),
	} {
		m.b.ReportMetric(v/float64(n), unit)
	}
	for i := range now.calls {
		calls = append(calls, now.calls[i]-m.since.calls[i])
	}
	return calls
}

func (m *meter) now() (u usage) {
	m.b.Helper()
	u.commands, u.turns = m.wire.commands.Load(), m.wire.turns.Load()
	for _, rdb := range m.servers {
		cpu, scripts, calls, err := serverUsage(m.b.Context(), rdb)
		if err != nil {
			m.b.Fatal(err)
		}
		u.server += cpu
		u.scripts += scripts
		u.calls = append(u.calls, calls)
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		m.b.Fatal(err)
	}
	u.own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return u
}

// serverUsage asks a server for its processor time, and for the time and the number of its scripts.
func serverUsage(ctx context.Context, rdb *redis.Client) (cpu, scripts time.Duration, calls int64, err error) {
	info := rdb.InfoMap(ctx, "cpu", "commandstats")
	if err := info.Err(); err != nil {
		return 0, 0, 0, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info.Item("CPU", name), 64)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("INFO cpu: %s: %w", name, err)
		}
		cpu += time.Duration(seconds * float64(time.Second))
	}
	if text := info.Item("Commandstats", "cmdstat_evalsha"); text != "" {
		var micros int64
		if _, err := fmt.Sscanf(text, "calls=%d,usec=%d,", &calls, &micros); err != nil {
			return 0, 0, 0, fmt.Errorf("INFO commandstats: evalsha: %q: %w", text, err)
		}
		scripts = time.Duration(micros) * time.Microsecond
	}
	return cpu, scripts, calls, nil
}

// reportQuantiles reports the median and the 99th percentile of times.
func reportQuantiles(b *testing.B, times []time.Duration) {
	b.Helper()
	if len(times) == 0 {
		b.Fatal("nothing was timed")
	}
	slices.Sort(times)
	b.ReportMetric(float64(quantile(times, 0.5)), "p50-ns")
	b.ReportMetric(float64(quantile(times, 0.99)), "p99-ns")
}

// quantile returns the element of sorted that is nearest to the quantile q.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
