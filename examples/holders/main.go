// Holders lists who holds what: every lock in a Redis, whichever program took it.
//
//	go run ./examples/holders -redis localhost:6379 -prefix export:
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

func main() {
	addr := flag.String("redis", "localhost:6379", "address of the Redis")
	prefix := flag.String("prefix", "", "only keys that begin with it")
	ended := flag.Bool("ended", false, "also locks that have ended and are not forgotten yet")
	asJSON := flag.Bool("json", false, "one JSON object per line instead of a table")
	flag.Parse()
	write := table
	if *asJSON {
		write = lines
	}
	if err := run(os.Stdout, *addr, joblock.ListOptions{Prefix: *prefix, Ended: *ended}, write); err != nil {
		fmt.Fprintln(os.Stderr, "holders:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, addr string, opts joblock.ListOptions, write func(io.Writer, []joblock.Status) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return err
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		return err
	}
	ctx := context.Background()
	defer locks.Close(ctx)
	// A lock that changes during the walk may be seen twice: the later look counts.
	seen := make(map[string]joblock.Status)
	for st, err := range locks.List(ctx, opts) {
		if err != nil {
			return err
		}
		seen[st.Key] = st
	}
	all := make([]joblock.Status, 0, len(seen))
	for _, st := range seen {
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b joblock.Status) int { return cmp.Compare(a.Key, b.Key) })
	return write(out, all)
}

func table(out io.Writer, all []joblock.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tSTATE\tHOLDER\tJOB\tAGE\tLEASE\tRESERVED\tWAITERS\tFENCE\tOWNER")
	for _, st := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", plain(st.Key), plain(state(st)), plain(cmp.Or(st.Holder, "-")), plain(cmp.Or(st.Job, "-")),
			seconds(st.Age), seconds(st.Lease), seconds(st.Reserved), st.Waiters, st.Fence, plain(cmp.Or(st.Owner, "-")))
	}
	return w.Flush()
}

// plain quotes a text that has unprintable characters in it, such as an escape sequence
// that a terminal would obey. Any program that can write to the Redis can write such a text
// into a record.
func plain(s string) string {
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// state returns the state of a key or, if its last lock has ended, how it ended.
func state(st joblock.Status) string {
	switch {
	case st.Ended == driver.EndedNone:
		return st.State.String()
	case st.Reason == "":
		return st.Ended.String()
	}
	return fmt.Sprintf("%s (%s)", st.Ended, st.Reason)
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.Round(time.Second).String()
}

func lines(out io.Writer, all []joblock.Status) error {
	for _, st := range all {
		line, err := json.Marshal(st)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, plainJSON(string(line))); err != nil {
			return err
		}
	}
	return nil
}

// plainJSON is plain for JSON, which escapes only some unprintable characters.
func plainJSON(line string) string {
	var b strings.Builder
	for _, r := range line {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
