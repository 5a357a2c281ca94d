package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

func TestTable(t *testing.T) {
	var out strings.Builder
	err := table(&out, []joblock.Status{
		{Key: "export:1", State: joblock.StateParked, Holder: "web-1", Job: "mail/7", Age: 90 * time.Second, Reserved: time.Hour, Fence: 7, Owner: "#01234567"},
		{Key: "export:2", State: joblock.StateHeld, Holder: "host:1 attempt 2/4", Job: "mail/8", Age: 1400 * time.Millisecond,
			Lease: 29999 * time.Millisecond, Reserved: time.Hour, Waiters: 3, Fence: 8, Owner: "#89abcdef"},
		{Key: "export:3", Ended: driver.EndedReleased, Reason: "job done", Fence: 9},
		{Key: "rollup", Ended: driver.EndedLapsed},
	})
	const want = `
KEY       STATE                HOLDER              JOB     AGE    LEASE  RESERVED  WAITERS  FENCE  OWNER
export:1  parked               web-1               mail/7  1m30s  -      1h0m0s    0        7      #01234567
export:2  held                 host:1 attempt 2/4  mail/8  1s     30s    1h0m0s    3        8      #89abcdef
export:3  released (job done)  -                   -       -      -      -         0        9      -
rollup    lapsed               -                   -       -      -      -         0        0      -
`
	if got := "\n" + out.String(); err != nil || got != want {
		t.Errorf("%v, got%swant%s", err, got, want)
	}
}

// Any program that can write to the Redis may have written the record. A terminal must
// not obey it.
func TestRecordsAreNoTerminalCommands(t *testing.T) {
	const evil = "a\x1b[2J\x07\u009b1m\u202eb\nc\td\x7f\U000e0001\xff"
	st := joblock.Status{
		Key: evil, State: joblock.StateFree, Holder: evil, Job: evil, Ended: driver.EndedForced, Reason: evil, Owner: evil,
	}
	for name, write := range map[string]func(io.Writer, []joblock.Status) error{"table": table, "JSON": lines} {
		var out strings.Builder
		if err := write(&out, []joblock.Status{st}); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSuffix(out.String(), "\n")
		if name == "table" {
			_, text, _ = strings.Cut(text, "\n")
		}
		if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s: %q at byte %d of %q", name, text[i:], i, text)
		}
		if name == "JSON" {
			var got struct{ Key string }
			if err := json.Unmarshal([]byte(text), &got); err != nil || got.Key != strings.ToValidUTF8(evil, "\ufffd") {
				t.Errorf("the key is %q, %v", got.Key, err)
			}
		}
	}
}

func TestEveryLockIsListed(t *testing.T) {
	m := redistest.MiniServer(t)
	store, err := redisstore.New(redistest.MiniClient(t, m), nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	defer locks.Close(ctx)
	var held []string // in order
	for i := range 20 {
		held = append(held, fmt.Sprintf("a:%02d held", i))
	}
	held = append(held, "b held")
	take := func(key string) *joblock.Lock {
		t.Helper()
		lock, err := locks.TryAcquire(ctx, key, joblock.Owner("S3CRET"))
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	for _, line := range held {
		take(strings.TrimSuffix(line, " held"))
	}
	if err := take("b:ended").Release(ctx); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		opts joblock.ListOptions
		want []string
	}{
		{joblock.ListOptions{}, held},
		{joblock.ListOptions{Prefix: "b", Ended: true}, []string{"b held", "b:ended free"}},
	} {
		var got []string
		err := run(io.Discard, m.Addr(), tt.opts, func(_ io.Writer, all []joblock.Status) error {
			for _, st := range all {
				got = append(got, st.Key+" "+st.State.String())
			}
			return nil
		})
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("listed %q, %v; want %q", got, err, tt.want)
		}
	}

	var out strings.Builder
	if err := run(&out, m.Addr(), joblock.ListOptions{Prefix: "b"}, lines); err != nil {
		t.Fatal(err)
	}
	var st struct{ Key, State string }
	if err := json.Unmarshal([]byte(out.String()), &st); err != nil || st.Key != "b" || st.State != "held" || strings.Contains(out.String(), "S3CRET") {
		t.Errorf("as JSON %s, %v", out.String(), err)
	}
}

func TestNoRedis(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(&out, addr, joblock.ListOptions{}, table); err == nil || !strings.Contains(err.Error(), addr) || out.Len() > 0 {
		t.Errorf("without a Redis: error %v after %q, want one that names it, after nothing", err, out.String())
	}
}
