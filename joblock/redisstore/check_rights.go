package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// right is a rule, which ACL SETUSER takes after a "+", and a call that needs the rule. In the field call,
// $key and $index stand for Redis keys, and $channel stands for a channel.
type right struct{ rule, call string }

// area is a part of a Store's work, and the rights which that part needs. The package comment lists the same
// rights, and a test compares the two lists.
type area struct {
	rights   []right
	severity Severity
	subject  string // Finding.Subject if a right is missing
	means    string // Finding.Means if a right is missing
	with     string // for Finding.Fix: a rule for keys or channels, which may be missing too
}

// lockRights are for every Store.
var lockRights = area{severity: Fault, subject: "permissions", means: "locks cannot be taken, held or given back",
	rights: []right{
		{"eval", "EVAL x 0"}, {"evalsha", "EVALSHA x 0"}, {"time", "TIME"},
		{"exists", "EXISTS $key"}, {"mget", "MGET $key"}, {"set", "SET $key v"}, {"del", "DEL $key"}, {"hmget", "HMGET $key f"}, {"hget", "HGET $key f"}, {"hset", "HSET $key f v"},
		{"hdel", "HDEL $key f"},
		{"pexpire", "PEXPIRE $key 1"}, {"pttl", "PTTL $key"}, {"pexpiretime", "PEXPIRETIME $key"}, {"getrange", "GETRANGE $key 0 1"},
		{"type", "TYPE $key"},
	}}

// jobRights are for the index of the locks of jobs.
var jobRights = area{severity: Fault, subject: "permissions", means: "locks cannot be handed to jobs", with: " ~$index",
	rights: []right{
		{"zadd", "ZADD $index 1 m"}, {"zrem", "ZREM $index m"}, {"zscore", "ZSCORE $index m"}, {"zmscore", "ZMSCORE $index m"},
		{"zrangebyscore", "ZRANGEBYSCORE $index 1 2"},
	}}

// rateRights are for Admit.
var rateRights = area{severity: Warning, subject: "permissions", means: "rate limits fail, all else works",
	rights: []right{
		{"zcount", "ZCOUNT $key 1 2"}, {"zremrangebyscore", "ZREMRANGEBYSCORE $key 1 2"},
		{"zrevrangebyscore", "ZREVRANGEBYSCORE $key 2 1"},
	}}

// pushRights are for waiting, and for joblock.Config.WatchForced.
var pushRights = area{severity: Warning, subject: "pub/sub",
	means: "waiters find their grants only by asking, once per joblock.Config.Poll", with: " &$prefix*",
	rights: []right{
		{"publish", "PUBLISH $channel m"}, {"subscribe", "SUBSCRIBE $channel"}, {"unsubscribe", "UNSUBSCRIBE $channel"},
		{"ping", "PING"},
	}}

// deathRights are for grants to waiters that have died.
var deathRights = area{severity: Warning, subject: "pub/sub",
	means:  "a key that is granted to a waiter whose process has died is busy for the waiter's whole TTL, and the server logs denied calls",
	rights: []right{{"pubsub|numsub", "PUBSUB NUMSUB $channel"}}}

// shardRights are for waiting in a cluster.
var shardRights = area{severity: Warning, subject: "pub/sub",
	means: "each grant to a waiter is published to all nodes of the cluster, and a grant to a process that has died keeps the key busy for the whole TTL", with: " &$prefix*",
	rights: []right{
		{"spublish", "SPUBLISH $shard m"}, {"ssubscribe", "SSUBSCRIBE $shard"}, {"sunsubscribe", "SUNSUBSCRIBE $shard"},
		{"pubsub|shardnumsub", "PUBSUB SHARDNUMSUB $shard"}, {"cluster|shards", "CLUSTER SHARDS"}, {"cluster|myid", "CLUSTER MYID"},
	}}

// listRights are for List and Entries.
var listRights = area{severity: Warning, subject: "permissions", means: "lists for people fail, all else works",
	rights: []right{{"scan", "SCAN 0"}, {"zscan", "ZSCAN $index 0"}}}

// clusterRights are for a cluster: go-redis looks for the node of a key and follows redirections.
var clusterRights = area{severity: Fault, subject: "permissions", means: "the nodes of the cluster cannot be found, or the keys on them cannot be reached",
	rights: []right{{"cluster|slots", "CLUSTER SLOTS"}, {"asking", "ASKING"}}}

// replicaRights are for Config.Replicas.
var replicaRights = area{severity: Fault, subject: "permissions", means: "with Config.Replicas no lock can be acquired",
	rights: []right{{"wait", "WAIT 0 1"}}}

// areas returns the areas that this Store needs.
func (s *store) areas() []area {
	all := []area{lockRights, jobRights, rateRights, pushRights, listRights}
	if _, many := s.ops.(*redis.ClusterClient); many {
		all = append(all, clusterRights, shardRights)
	} else {
		all = append(all, deathRights) // in a cluster SHARDNUMSUB shows which waiters have died
	}
	if s.replicas > 0 {
		all = append(all, replicaRights)
	}
	return all
}

// rights asks the server what this user may not do, and adds the Findings. known is false if the
// server cannot answer, as some servers other than Redis cannot. usable is false if this user cannot use locks.
func (c *check) rights(ctx context.Context, key string) (known, usable bool, err error) {
	areas := c.s.areas()
	var rules []string
	var calls []any
	names := strings.NewReplacer("$key", c.s.name(key), "$index", c.s.index(c.s.part(key)), "$channel", c.s.channel("check"),
		"$shard", c.s.shardChannel(c.s.part(key), "check"), " ", "\n")
	for _, a := range areas {
		for _, r := range a.rights {
			rules = append(rules, r.rule)
			calls = append(calls, names.Replace(r.call))
		}
	}
	// Line breaks separate the words of a call, because a name may contain a space. A command that the server does not
	// know does not count as denied.
	answer := c.s.ops.Eval(ctx, `
if not redis.acl_check_cmd then return false end
local denied = {}
for i, line in ipairs(ARGV) do
  local call = {}
  for word in string.gmatch(line, '[^\n]+') do call[#call + 1] = word end
  local known, may = pcall(redis.acl_check_cmd, unpack(call))
  if known and not may then denied[#denied + 1] = i end
end
return denied`, []string{c.s.name(key)}, calls...)
	err = withoutArgs(answer.Err())
	switch {
	case errors.Is(err, redis.Nil):
		return false, true, nil
	case denied(err):
		c.add(Finding{Fault, "", "permissions", "this user may not take locks: " + err.Error(), lockRights.means, c.fix(err.Error())})
		return true, false, nil
	case err != nil:
		return false, false, err
	}
	not, err := answer.Int64Slice()
	if err != nil {
		return false, false, err
	}
	usable = true
	at := int64(0)
	for _, a := range areas {
		var missing []string
		for range a.rights {
			if at++; slices.Contains(not, at) {
				missing = append(missing, rules[at-1])
			}
		}
		if len(missing) == 0 {
			continue
		}
		usable = usable && a.severity != Fault
		with := strings.NewReplacer("$prefix", escapeGlob(c.s.prefix), "$index", c.s.indexes()).Replace(a.with)
		c.add(Finding{a.severity, "", a.subject, "this user may not " + strings.Join(missing, ", "), a.means,
			"ACL SETUSER … +" + strings.Join(missing, " +") + with})
	}
	return true, usable, nil
}

// fix says what to allow a user. text is the error with which the server denied the user's
// call.
func (c *check) fix(text string) string {
	switch {
	case strings.Contains(text, "access a key") || strings.Contains(text, "one of the keys"):
		return "ACL SETUSER … ~" + escapeGlob(c.s.prefix) + "*"
	case strings.Contains(text, "unknown command"):
		return "a server that runs scripts, and has not renamed its commands"
	}
	if _, rest, ok := strings.Cut(text, "'"); ok {
		if command, _, ok := strings.Cut(rest, "'"); ok {
			return "ACL SETUSER … +" + command + ", and what else the documentation of package redisstore lists under Permissions"
		}
	}
	return "give it what the documentation of package redisstore lists under Permissions"
}
