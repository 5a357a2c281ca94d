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
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Only the text of the error distinguishes a server that runs no scripts, or not for this
// user, from one that is away; Check says what to do.
func TestServerWithoutScripting(t *testing.T) {
	for name, c := range map[string]struct {
		server func(t *testing.T) *redis.Client
		cause  string
	}{
		"for this user": {func(t *testing.T) *redis.Client {
			srv := redistest.Start(t, wellKept...)
			srv.SetUser(t, "locks", "~*", "&*", "+@all", "-@scripting")
			rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "locks", Password: redistest.Password})
			t.Cleanup(func() { rdb.Close() })
			return rdb
		}, "NOPERM"},
		"at all": {func(t *testing.T) *redis.Client {
			args := append([]string{}, wellKept...)
			for _, command := range []string{"eval", "evalsha", "script", "eval_ro", "evalsha_ro", "fcall", "function"} {
				args = append(args, "--rename-command", command, "")
			}
			return redistest.Start(t, args...).Client(t)
		}, "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := c.server(t)
			var logs testkit.Log
			const owner = "S3CRET-owner"
			locks := newStranger(t, rdb, &joblock.Config{TTL: time.Second, Logger: logs.Text()})
			_, err := locks.TryAcquire(context.Background(), "k", joblock.Owner(owner))
			wantUnavailable(t, "TryAcquire", err, c.cause)
			// Of a command that it does not know, a server repeats the first arguments.
			for e := err; e != nil; e = errors.Unwrap(e) {
				if strings.Contains(fmt.Sprintf("%+v", e), owner) {
					t.Errorf("the owner is in %q", e)
				}
			}
			_, err = testkit.One(locks.Status(context.Background(), "k"))
			wantUnavailable(t, "Status", err, c.cause)
			f := wantFinding(t, report(t, rdb), Fault, "permissions")
			if !strings.Contains(f.Found, c.cause) || !strings.Contains(f.Found, "eval") || strings.Contains(f.Found, "args") {
				t.Errorf("found %q", f.Found)
			}
			err = locks.Close(context.Background())
			wantUnavailable(t, "Close", err, "no answer")
			if text := logs.String() + err.Error(); strings.Contains(text, owner) {
				t.Errorf("the owner is in %q", text)
			}
		})
	}
}
