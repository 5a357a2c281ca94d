//go:build servers

package bench

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
)

// BenchmarkHandover passes a lock from waiter to waiter. The latency is the time from the moment before Release is called
// until the next holder returns from Acquire, in whichever process. Overtaken are grants to a waiter while another one
// still waited that had asked earlier by fifoSlack.
func BenchmarkHandover(b *testing.B) {
	server := redistest.Start(b)
	admin := server.Client(b)
	for _, crowd := range []struct{ waiters, processes int }{{2, 1}, {2, 2}, {16, 1}, {16, 4}, {128, 1}, {128, 4}} {
		for _, name := range inAnyOrder("publish", "joblock", "redislock", "redsync", "rueidislock") {
			b.Run(fmt.Sprintf("waiters=%d/processes=%d/lib=%s", crowd.waiters, crowd.processes, name), func(b *testing.B) {
				flush(b, admin)
				ctx := bounded(b)
				path := filepath.Join(b.TempDir(), "turn")
				if err := os.WriteFile(path, make([]byte, os.Getpagesize()), 0o600); err != nil {
					b.Fatal(err)
				}
				turn, err := openTurn(path)
				if err != nil {
					b.Fatal(err)
				}
				a := assignment{Peer: name, Key: "hand-over", Turn: path, seat: seat{Addr: server.Addr(), Seats: crowd.processes}}
				a.Waiters = crowd.waiters / crowd.processes
				var all []*member
				for a.Seat = range crowd.processes {
					all = append(all, startMember(b, ctx, a))
				}
				first, err := open(b, name, seat{Addr: server.Addr(), wire: new(wire)}).Acquire(ctx, a.Key)
				if err != nil {
					b.Fatal(err)
				}
				send(b, all)
				time.Sleep(50 * time.Millisecond) // by then all wait
				send(b, all)                      // and from now on commands count
				released := time.Now().UnixNano()
				if err := first.Release(ctx); err != nil {
					b.Fatal(err)
				}
				for n := int64(1); b.Loop(); n++ {
					if !turn.reach(ctx, n, 2*time.Millisecond) {
						b.Fatalf("%d hand-overs in %s", turn.Load(), patience)
					}
				}
				stopped := time.Now().UnixNano()
				for _, m := range all {
					if err := m.in.Close(); err != nil {
						b.Fatal(err)
					}
				}
				var grants []grant
				var commands int64
				for _, m := range all {
					r := m.report(b)
					commands += r.Commands
					// At the end of its context rueidislock frees the lock before its holder has noted the release.
					grants = append(grants, slices.DeleteFunc(r.Grants, func(g grant) bool { return g.Granted > stopped })...)
				}
				s, err := follow(released, grants)
				if err != nil {
					b.Fatal(err)
				}
				reportQuantiles(b, s.latencies)
				b.ReportMetric(0, "ns/op") // holdTime is most of it
				b.ReportMetric(100*float64(s.overtakes)/float64(len(grants)), "%overtaken")
				b.ReportMetric(float64(commands)/float64(len(grants)), "cmds/op")
			})
		}
	}
}

// fifoSlack is by how much a waiter must have asked earlier to be overtaken: less may be the machine's doing.
const fifoSlack = 5 * time.Millisecond

// grant is one holding of the lock, in nanoseconds of Unix time.
type grant struct {
	Asked    int64 // just before Acquire was called
	Granted  int64 // just after Acquire returned
	Released int64 // just before Release was called
}

// sequence is how a lock went from holder to holder.
type sequence struct {
	latencies []time.Duration // of each hand-over
	overtakes int             // grants while a waiter still waited that had asked earlier
}

// follow puts grants in order. The first lock was released at the given time. A grant before the holder before it has
// begun to release is an error; a step of the machine's clock looks the same.
func follow(released int64, grants []grant) (s sequence, err error) {
	slices.SortFunc(grants, func(a, b grant) int { return cmp.Compare(a.Granted, b.Granted) })
	for i, g := range grants {
		if g.Granted < released {
			err = fmt.Errorf("grant %d of %d: two held the lock at the same time", i+1, len(grants))
		}
		s.latencies = append(s.latencies, time.Duration(g.Granted-released))
		released = g.Released
		if slices.ContainsFunc(grants[i+1:], func(later grant) bool { return later.Asked+int64(fifoSlack) < g.Asked }) {
			s.overtakes++
		}
	}
	return s, err
}

func TestFollow(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		grants    []grant // in ms
		latencies []time.Duration
		overtakes int
		violated  bool
	}{
		"in the order of asking":              {[]grant{{0, 101, 110}, {50, 112, 120}}, []time.Duration{1 * ms, 2 * ms}, 0, false},
		"sorted by grant, not by process":     {[]grant{{50, 112, 120}, {0, 101, 110}}, []time.Duration{1 * ms, 2 * ms}, 0, false},
		"a later one first":                   {[]grant{{0, 112, 120}, {50, 101, 110}}, []time.Duration{1 * ms, 2 * ms}, 1, false},
		"asked too close together":            {[]grant{{0, 112, 120}, {5, 101, 110}}, []time.Duration{1 * ms, 2 * ms}, 0, false},
		"asked again while another one waits": {[]grant{{0, 101, 110}, {110, 113, 115}, {50, 117, 120}}, []time.Duration{1 * ms, 3 * ms, 2 * ms}, 1, false},
		"granted before it was released":      {[]grant{{0, 101, 110}, {50, 109, 120}}, []time.Duration{1 * ms, -1 * ms}, 0, true},
		"no grant":                            {},
	} {
		for i, g := range tc.grants {
			tc.grants[i] = grant{g.Asked * int64(ms), g.Granted * int64(ms), g.Released * int64(ms)}
		}
		got, err := follow(100*int64(ms), tc.grants)
		if !slices.Equal(got.latencies, tc.latencies) || got.overtakes != tc.overtakes || (err != nil) != tc.violated {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
