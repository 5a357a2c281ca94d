package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/joblock"
)

// pingTTL is how long the key of a ping stays taken if the release is not answered.
const pingTTL = 5 * time.Second

// maxPings bounds --count: the times of all of them are kept.
const maxPings = 1_000_000

func newPing(s *server) *cobra.Command {
	var count int
	var interval time.Duration
	format := "text"
	cmd := &cobra.Command{
		Use:   "ping [flags]",
		Short: "measure how long taking and releasing a lock takes",
		Long: `Ping takes and releases a lock on a key of its own, --count times, and reports how long each of the two took: the
median, the 99th percentile and the largest. Each is one round trip to Redis. The first round trip, for which joblock
connects and Redis loads scripts, does not count. Ping stops at the first call without an answer.

Exit codes:
  0         Redis has answered each time
  64        wrong usage
  69        Redis did not answer within --timeout
  77        Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock ping
  joblock ping -c 1000 --interval 10ms -o json`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if count < 1 || count > maxPings {
				return usage("--count is %d, must be from 1 to %d", count, maxPings)
			}
			if interval < 0 || interval > time.Hour {
				return usage("--interval is %s, must be from 0 to 1h", interval)
			}
			if format != "text" && format != "json" {
				return usage("--output is %q, must be text or json", format)
			}
			locks, err := s.locks(joblock.Config{
				TTL: pingTTL, Holder: scriptLabel() + " joblock ping", CallTimeout: s.callTimeout(),
			})
			if err != nil {
				return err
			}
			defer func() { locks.close(s.cleanUp()) }()
			ctx, came, end := interruptible()
			defer end()
			r, err := ping(ctx, locks, joblock.Key("joblock-ping", hostname(), strconv.Itoa(os.Getpid()), rand.Text()), count, interval)
			if came() != 0 {
				err = &exitError{code: exitSignal + came()}
			}
			if r.Answered == 0 && err != nil {
				return err
			}
			return cmp.Or(r.print(cmd, format), err)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&count, "count", "c", 10, "how many times to take and release the lock")
	f.DurationVar(&interval, "interval", 0, "pause between two of these times, at most 1h")
	f.StringVarP(&format, "output", "o", format, "`FORMAT`: text or json")
	return cmd
}

// pingReport is what "ping" prints.
type pingReport struct {
	V        int      `json:"v"`
	Key      string   `json:"key"`
	Count    int      `json:"count"`    // how many pings were requested
	Answered int      `json:"answered"` // how often Redis answered both calls
	Acquire  pingTime `json:"acquire"`
	Release  pingTime `json:"release"`
}

// pingTime has times in microseconds.
type pingTime struct {
	P50 int64 `json:"p50_us"`
	P99 int64 `json:"p99_us"`
	Max int64 `json:"max_us"`
}

// ping takes and releases key count times. An error ends the pings; the report has what was measured until then.
func ping(ctx context.Context, locks face, key string, count int, interval time.Duration) (pingReport, error) {
	r := pingReport{V: 1, Key: key, Count: count}
	var acquires, releases []time.Duration
	var failed error
	for n := -1; n < count && failed == nil; n++ {
		if n > 0 && interval > 0 {
			select {
			case <-time.After(interval):
			case <-ctx.Done():
			}
		}
		if failed = context.Cause(ctx); failed != nil {
			break
		}
		began := time.Now()
		lock, err := locks.acquire(ctx, want{key: key, ttl: pingTTL, wait: new(time.Duration)})
		taken := time.Now()
		if err == nil {
			err = lock.Release(ctx)
		}
		if failed = err; err == nil && n >= 0 {
			acquires, releases = append(acquires, taken.Sub(began)), append(releases, time.Since(taken))
		}
	}
	r.Answered = len(acquires)
	r.Acquire, r.Release = pingTimeOf(acquires), pingTimeOf(releases)
	return r, failed
}

func pingTimeOf(all []time.Duration) pingTime {
	if len(all) == 0 {
		return pingTime{}
	}
	slices.Sort(all)
	at := func(percent int) int64 { return all[(len(all)*percent+99)/100-1].Microseconds() }
	return pingTime{at(50), at(99), at(100)}
}

func (r pingReport) print(cmd *cobra.Command, format string) error {
	out := cmd.OutOrStdout()
	if format == "json" {
		line, err := (&printer{}).encode(r)
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", line)
		}
		return err
	}
	ms := func(us int64) string { return fmt.Sprintf("%.2fms", float64(us)/1000) }
	line := func(name string, t pingTime) string {
		return fmt.Sprintf("%s  p50 %s  p99 %s  max %s\n", name, ms(t.P50), ms(t.P99), ms(t.Max))
	}
	_, err := fmt.Fprintf(out, "%d of %d answered\n%s%s", r.Answered, r.Count, line("acquire", r.Acquire), line("release", r.Release))
	return err
}
