package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// Check reports what endangers the locks on the servers of a store that New made, what to change, and what is in order.
// Check looks at the kind of client, eviction, version, persistence, full memory, replicas, clocks, permissions and
// pushes. What the Report does not mention was not checked. Call Check when a program starts, from monitoring, or for a
// person at a terminal:
//
//	report, err := redisstore.Check(ctx, store)
//	if err == nil {
//		err = report.Err() // or log the report
//	}
//
// Check takes a lock at a key of its own, hands the lock to a second owner, and removes the lock. If ctx ends
// meanwhile, Check removes the lock anyway; if the server does not answer either, the lock ends within ten seconds.
// Apart from that, Check only reads: INFO, and CONFIG GET if the user may run it. A Note says what Check was not
// allowed to read.
//
// An error means that the check is incomplete. The error is joblock.ErrInvalid if New did not make s; otherwise it
// comes from go-redis. The Report then has what Check found before the error. A server that refuses to take the lock,
// such as a replica, is a Fault in the Report.
func Check(ctx context.Context, s driver.Store) (Report, error) {
	own, ok := s.(*store)
	if !ok {
		return nil, invalid("check: a %T is not a store of redisstore.New", s)
	}
	c := &check{s: own}
	c.client(ctx)
	err := c.servers(ctx)
	switch {
	case err == nil:
		err = c.probe(ctx)
	case denied(err): // no node was found to send anything to
		c.add(Finding{Fault, "", "permissions", "this user is not allowed to look up the servers: " + err.Error(), clusterRights.means, c.fix(err.Error())})
		err = nil
	}
	c.report.sort()
	return c.report, err
}

// check is one call of Check.
type check struct {
	s *store

	mu     sync.Mutex // guards the fields below: Check asks the nodes of a cluster in parallel
	report Report
	skews  []time.Duration
}

func (c *check) add(f Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report = append(c.report, f)
}

// well adds a Finding that subject is well.
func (c *check) well(node, subject, found string) { c.add(Finding{Well, node, subject, found, "", ""}) }

// has reports whether c.report has a Finding about subject that is not well.
func (c *check) has(subject string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.report, func(f Finding) bool { return f.Subject == subject && f.Severity != Well })
}

// client checks that the type of the client suits the server.
func (c *check) client(ctx context.Context) {
	switch c.s.ops.(type) {
	case *redis.Ring:
		c.add(Finding{Fault, "", "client", "a *redis.Ring",
			"when a shard goes down, its keys move to another shard, where every lock is free",
			"use a *redis.Client, also for Sentinel, or a *redis.ClusterClient"})
	case *redis.Client, *redis.ClusterClient:
	default:
		if text, err := c.s.ops.Info(ctx, "cluster").Result(); err == nil && parseInfo(text)["cluster_enabled"] == "1" {
			c.add(Finding{Fault, "", "client", fmt.Sprintf("a %T in front of a cluster", c.s.ops),
				"locks have the names of a single server, which processes with a *redis.ClusterClient do not see",
				"pass the *redis.ClusterClient itself"})
			return
		}
		c.add(Finding{Note, "", "client", fmt.Sprintf("a %T, which is used as it is", c.s.ops),
			"renewals share its connections, and its own settings decide how long a call takes",
			"set ContextTimeoutEnabled, or pass the *redis.Client itself"})
	}
}

// servers calls server for every master.
func (c *check) servers(ctx context.Context) error {
	each := func(ctx context.Context, f func(context.Context, *redis.Client) error) error {
		if one, ok := c.s.ops.(*redis.Client); ok {
			return f(ctx, one)
		}
		return nil // a wrapper may talk to any number of servers
	}
	switch many := c.s.ops.(type) {
	case *redis.ClusterClient:
		each = many.ForEachMaster
	case *redis.Ring:
		each = many.ForEachShard
	}
	if err := each(ctx, c.server); err != nil {
		return err
	}
	c.clocks()
	return nil
}

// server asks the server of rdb for the time and the settings.
func (c *check) server(ctx context.Context, rdb *redis.Client) error {
	n := &checkedServer{check: c, addr: rdb.Options().Addr}
	sent := time.Now()
	now, err := rdb.Time(ctx).Result()
	switch {
	case err == nil:
		c.mu.Lock()
		// The best guess is that the server read its clock half-way through this round trip.
		c.skews = append(c.skews, now.Sub(sent.Add(time.Since(sent)/2)))
		c.mu.Unlock()
	case !denied(err):
		return err
	}
	text, err := rdb.Info(ctx).Result()
	switch {
	case denied(err):
		n.unread("INFO")
		return nil
	case err != nil:
		return err
	}
	n.info = parseInfo(text)
	n.version()
	n.cluster(c.s.ops)
	n.shards(ctx, rdb)
	n.native(ctx, rdb)
	n.role()
	n.memory()
	n.persistence(func(name string) (string, bool) { return n.config(ctx, rdb, name) })
	n.replication(n.config(ctx, rdb, "min-replicas-to-write"))
	return nil
}

// clocks compares the servers' clocks with this machine's clock. Locks do not depend on the difference. But a
// difference shows that some clock is wrong. If a server's clock is wrong, the locks' clock jumps at a fail-over.
func (c *check) clocks() {
	for _, skew := range c.skews {
		if skew.Abs() > time.Second {
			c.add(Finding{Note, "", "clock",
				fmt.Sprintf("a server's clock differs from this machine's by %s", skew.Round(time.Millisecond)),
				"no lock depends on that, but one of the two is wrong, and times in Status are the server's",
				"run NTP on both"})
			return
		}
	}
	if len(c.skews) > 0 {
		c.well("", "clock", "within a second of this machine's")
	}
}

// denied reports whether err says that this user may not run a command, or that the server does not have the command.
// Some managed servers lack commands.
func denied(err error) bool {
	if err == nil {
		return false
	}
	msg := strings.ToLower(err.Error())
	for _, text := range []string{"noperm", "no permissions", "can't run this command", "unknown command"} {
		if strings.Contains(msg, text) {
			return true
		}
	}
	return false
}

// info is the answer to INFO.
type info map[string]string

func parseInfo(text string) info {
	out := make(info)
	for line := range strings.Lines(text) {
		if name, val, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[name] = val
		}
	}
	return out
}

// num returns the number with this name, or 0 if there is none.
func (i info) num(name string) int64 {
	n, _ := strconv.ParseInt(i[name], 10, 64) // a value that is not a number counts as missing
	return n
}
