//go:build linux

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
)

// documentedRights returns the rules for ACL SETUSER that the documentation has for users of the locks with this prefix, with
// those of the rows of docs/operate.md that have the texts in the parameter who.
func documentedRights(t *testing.T, prefix string, who ...string) []string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/operate.md")
	testkit.WantNil(t, "ReadFile", err)
	rules := append([]string{"~" + prefix + "*", "resetchannels", "&" + prefix + "*"},
		redistest.Rules(t, "../../../../joblock/redisstore/doc.go", "Permissions")...)
	for _, who := range who {
		row := regexp.MustCompile(`(?m)^\| .*` + who + ".* \\| `(\\+[^`]+)`").FindSubmatch(page)
		if row == nil {
			t.Fatalf("docs/operate.md has no rights for %q", who)
		}
		rules = append(rules, strings.Fields(strings.ReplaceAll(string(row[1]), `\|`, "|"))...)
	}
	return rules
}

// With the documented rights operators do all that there is to do, and nothing is sent that the rights do not cover: a refusal
// that a command does not mention shows in ACL LOG only.
func TestDocumentedRightsOfOperators(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (scheme string, nodes []*redistest.Server, client func(user string) redis.UniversalClient){
		"one server": func(t *testing.T) (string, []*redistest.Server, func(string) redis.UniversalClient) {
			srv := redistest.Start(t)
			return "redis", []*redistest.Server{srv}, func(user string) redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: user, Password: redistest.Password})
			}
		},
		"cluster": func(t *testing.T) (string, []*redistest.Server, func(string) redis.UniversalClient) {
			c := redistest.StartCluster(t, 3, 0)
			return "redis-cluster", []*redistest.Server{c.Node(0), c.Node(1), c.Node(2)}, func(user string) redis.UniversalClient {
				return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: user, Password: redistest.Password})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme, nodes, client := start(t)
			prefix := (&stage{T: t}).prefix()
			for _, n := range nodes {
				n.SetUser(t, "oper", documentedRights(t, prefix, "whatever operators do", "`joblock doctor`")...)
				n.SetUser(t, "app", documentedRights(t, prefix, "processes with a")...)
			}
			rdb := client("app")
			defer rdb.Close()
			quiet := slog.New(slog.DiscardHandler)
			events, err := journal.New(rdb, &journal.Config{Prefix: prefix, All: true, Logger: quiet})
			testkit.WantNil(t, "journal.New", err)
			locks, err := joblock.New(testkit.Must(redisstore.New(rdb, &redisstore.Config{Prefix: prefix})), &joblock.Config{Observer: events.Observe, Logger: quiet, CallTimeout: patience})
			testkit.WantNil(t, "joblock.New", err)
			ctx, cancel := context.WithCancel(t.Context())
			s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Logger: quiet})
			testkit.WantNil(t, "scheduler.New", err)
			testkit.WantNil(t, "Func", s.Func("rollup", "@yearly", ok, scheduler.RunAtStart("1")))
			ran := make(chan error)
			go func() { ran <- s.Run(ctx) }()
			defer func() {
				cancel()
				testkit.WantNil(t, "Run", <-ran)
				testkit.WantNil(t, "Close", locks.Close(context.Background()))
				testkit.WantNil(t, "Close", events.Close(context.Background()))
			}()
			lock, err := locks.TryAcquire(ctx, "export:1")
			testkit.WantNil(t, "TryAcquire", err)

			file := filepath.Join(t.TempDir(), "password")
			testkit.WantNil(t, "WriteFile", os.WriteFile(file, []byte(redistest.Password+"\n"), 0o600))
			at := []string{"--redis", scheme + "://oper@" + nodes[0].Addr(), "--redis-password-file", file, "--prefix", prefix, patiently}
			(&stage{T: t}).until("the cron job is on record, with the events", func() bool {
				list := ask(t, append(at, "cron", "ls")...)
				return list.code == 0 && strings.Contains(list.out, "done") && strings.Contains(ask(t, append(at, "events")...).out, "acquired")
			})
			refused := func(what string) {
				t.Helper()
				for _, n := range nodes {
					if denied := n.Denied(t); len(denied) > 0 {
						t.Errorf("%s: %s denied %q", what, n.Addr(), denied)
						testkit.WantNil(t, "ACL LOG RESET", n.Client(t).ACLLogReset(ctx).Err())
					}
				}
			}
			refused("the application, and the first looks")
			for _, line := range []string{
				"ls", "get export:1", "explain export:1", "explain nothing", "history export:1", "events", "audit", "waiters export:1", "top -o name", "permits export:1", "watch --until held export:1",
				fmt.Sprintf("force-release export:1 --reason x --yes --fence %d", lock.Fence()), "explain export:1", "history export:1", "audit",
				"cron ls", "cron get rollup", "cron history rollup", "cron next rollup", "cron nodes", "cron scopes",
				"cron pause rollup --reason x", "cron resume rollup --reason x", "cron trigger rollup --wait --reason x", "cron backfill rollup --from 2020-01-01 --to 2020-01-02 --reason x --yes",
				"jobs pause import --reason x", "jobs pauses", "explain import:1", "jobs resume import --reason x", "jobs ls", "jobs sequences",
				"limits set search 5 --reason x", "limits", "limits clear search --reason x", "outbox", "ping",
				"doctor --asynq redis://127.0.0.1:1",
			} {
				a := ask(t, append(at, strings.Fields(line)...)...)
				if text := a.out + a.talk; a.code == exitDenied || a.code == exitUsage || a.code == exitUnavailable || strings.Contains(text, "NOPERM") {
					t.Errorf("%s ended with %d:\n%s", line, a.code, text)
				}
				refused(line)
			}
		})
	}
}
