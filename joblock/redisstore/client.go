package redisstore

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// renewPoolSize is the number of connections for renewals. It is enough: a Locker sends one batch of renewals at a time.
	renewPoolSize = 4

	// renewTimeout bounds each wait of a renewal: for a connection, for a write, for a reply. A bound of 1 s leaves
	// time for several tries within a lease.
	renewTimeout = time.Second

	// reloadInterval is how often a cluster client reads the topology. Only by reading does the client find fail-overs
	// that cause no redirection. With the default of a minute, a lease of 30 s is lost whenever a master dies
	// (go-redis#3979).
	reloadInterval = 2 * time.Second
)

// isNil reports whether the interface rdb is nil or contains a nil pointer.
func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// ownClients makes the two clients of a Store. If owned is true, the Store has to close the two clients. If owned is
// false, both are rdb itself.
func ownClients(rdb redis.UniversalClient) (ops, renew redis.UniversalClient, owned bool) {
	switch c := rdb.(type) {
	case *redis.Client:
		return redis.NewClient(opsOptions(c.Options())), redis.NewClient(renewOptions(c.Options())), true
	case *redis.ClusterClient:
		return redis.NewClusterClient(opsClusterOptions(c.Options())),
			redis.NewClusterClient(renewClusterOptions(c.Options())), true
	}
	return rdb, rdb, false
}

// cloneOptions copies the options of a client for a new client. A plain copy would not do. To switch something off, the
// application passes -1, and go-redis stores 0 instead. But in the options of a new client 0 asks for the default.
func cloneOptions(from *redis.Options) *redis.Options {
	o := *from
	o.MaxRetries = off(o.MaxRetries)
	o.MinRetryBackoff = off(o.MinRetryBackoff)
	o.MaxRetryBackoff = off(o.MaxRetryBackoff)
	o.ReadTimeout = timeoutOff(o.ReadTimeout)
	o.WriteTimeout = timeoutOff(o.WriteTimeout)
	o.ContextTimeoutEnabled = true // otherwise a call outlives its deadline by ReadTimeout
	o.MinIdleConns = 0             // the application set MinIdleConns for its own pool

	// The processor belongs to the application's client, and accepts no handlers of a second client.
	o.PushNotificationProcessor = nil
	// A cache of replies is of no use to scripts. The server would have to track keys for every connection.
	o.ClientSideCache, o.ClientSideCacheConfig = nil, nil
	o.AutoPipelineOptions = nil
	onePool(&o.PipelinePoolSize, &o.PipelineReadBufferSize, &o.PipelineWriteBufferSize)
	// Otherwise every connection sends CLIENT SETINFO. Before Redis 7.2 no ACL rule can allow CLIENT SETINFO, and each
	// refusal adds an entry to ACL LOG.
	o.DisableIdentity = true
	return &o
}

func opsOptions(from *redis.Options) *redis.Options { return cloneOptions(from) }

// renewOptions gives renewals a pool of their own. The pool fails fast, because the Locker itself tries again, and
// knows how long it may.
func renewOptions(from *redis.Options) *redis.Options {
	o := cloneOptions(from)
	o.MaxRetries = -1
	o.PoolSize, o.MaxActiveConns, o.MaxIdleConns, o.MaxConcurrentDials = renewPoolSize, 0, 0, 0
	o.DialTimeout = atMost(o.DialTimeout, renewTimeout)
	o.DialerRetries = 1
	o.ReadTimeout = atMost(o.ReadTimeout, renewTimeout)
	o.WriteTimeout = atMost(o.WriteTimeout, renewTimeout)
	o.PoolTimeout = renewTimeout
	o.Limiter = nil // an open circuit breaker must not cost a lease
	// Maintenance notifications make timeouts longer.
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}

// cloneClusterOptions is cloneOptions for a cluster.
func cloneClusterOptions(from *redis.ClusterOptions) *redis.ClusterOptions {
	o := *from
	o.Addrs = slices.Clone(o.Addrs)
	o.MaxRedirects = off(o.MaxRedirects)
	o.MinRetryBackoff = off(o.MinRetryBackoff)
	o.MaxRetryBackoff = off(o.MaxRetryBackoff)
	// ClusterOptions keep a timeout of -2; Options store -1 instead.
	o.ReadTimeout = off(o.ReadTimeout)
	o.WriteTimeout = off(o.WriteTimeout)
	o.ContextTimeoutEnabled = true
	o.MinIdleConns = 0
	o.PushNotificationProcessor = nil
	o.AutoPipelineOptions = nil
	onePool(&o.PipelinePoolSize, &o.PipelineReadBufferSize, &o.PipelineWriteBufferSize)
	// Locks are read from masters only.
	o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
	// Routing policies are of no use, because all calls name their key. With policies go-redis sends COMMAND to some
	// node before a call, or before every call if COMMAND is forbidden. go-redis waits up to five seconds for the
	// reply, whatever the deadline of the call.
	o.DisableRoutingPolicies = true
	newNode := o.NewClient
	o.NewClient = func(opt *redis.Options) *redis.Client {
		node := newNode(opt)
		node.AddHook(lookup{})
		return node
	}
	o.DisableIdentity = true
	o.ClusterStateReloadInterval = atMost(o.ClusterStateReloadInterval, reloadInterval)
	return &o
}

func opsClusterOptions(from *redis.ClusterOptions) *redis.ClusterOptions {
	return cloneClusterOptions(from)
}

// renewClusterOptions is renewOptions for a cluster. MaxRedirects stays: without redirections a client could not follow
// a slot to another node.
func renewClusterOptions(from *redis.ClusterOptions) *redis.ClusterOptions {
	o := cloneClusterOptions(from)
	o.PoolSize, o.MaxActiveConns, o.MaxIdleConns, o.MaxConcurrentDials = renewPoolSize, 0, 0, 0
	o.DialTimeout = atMost(o.DialTimeout, renewTimeout)
	o.DialerRetries = 1
	o.ReadTimeout = atMost(o.ReadTimeout, renewTimeout)
	o.WriteTimeout = atMost(o.WriteTimeout, renewTimeout)
	o.PoolTimeout = renewTimeout
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}

// onePool sets options of a client so that pipelines take connections of the one pool. Otherwise go-redis from 9.23 on
// makes a second pool for them, with up to 10 connections more for each client and node, and with buffers of 256 KiB for
// each connection.
func onePool(size, read, write *int) { *size, *read, *write = -1, 0, 0 }

// off returns v, or -1 if v is 0. go-redis turns the option -1 into 0, and 0 into a default.
func off[T ~int | ~int64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

// timeoutOff is off for timeouts of Options: there go-redis turns -1 into 0, and -2 into -1.
func timeoutOff(d time.Duration) time.Duration {
	if d <= 0 {
		return d - 1
	}
	return d
}

// atMost returns d, or limit if d is longer than limit or not set.
func atMost(d, limit time.Duration) time.Duration {
	if d <= 0 || d > limit {
		return limit
	}
	return d
}

// lookup is a hook of the nodes of a cluster. A client that does not know the slots yet asks one node after
// the other. The hook gives each node half of the time that the call has left. Otherwise a node that hangs would use up
// all of that time, and the next call might ask the same node again.
type lookup struct{}

func (lookup) DialHook(next redis.DialHook) redis.DialHook { return next }

func (lookup) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, ok := cmd.(*redis.ClusterSlotsCmd); !ok {
			return next(ctx, cmd)
		}
		if deadline, ends := ctx.Deadline(); ends {
			half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
			defer cancel()
			ctx = half
		}
		return next(ctx, cmd)
	}
}

func (lookup) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
