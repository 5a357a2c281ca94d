// Package metrics shows Prometheus what happens to locks, jobs and cron jobs in the whole cluster, and what a lock server
// does.
//
//	m, err := metrics.New(metrics.Config{Locks: locks, Store: store, KeyGroup: promobserver.FirstPart})
//	s, err := server.New(server.Config{Locks: locks, Meter: m, Metrics: m.Handler(), …})
//	...
//	err = s.Close(ctx)
//	err = m.Close(ctx) // before the Locker
//
// The server then serves GET /metrics to callers with the scope read and without prefixes. Alternatively, serve
// m.Handler() at an address of its own, without authorization: the metrics contain names of key groups, of cron jobs and
// of processes, but no keys.
//
// docs/monitoring.md in the repository describes every metric, and has a Grafana dashboard and alerts.
//
// # What a scrape costs
//
// A scrape returns what the latest look at the store has found. If that is older than Config.Every, the scrape starts a
// new look; without scrapes there are no looks. The walk over all locks pauses as Config.Share says, so it takes minutes
// for millions of keys, and meanwhile scrapes get the previous walk. All scrapes of a Metrics share its looks. If a look
// fails, its metrics are absent until the next one succeeds, and joblock_collect_errors_total increases: a missing value
// is never shown as an old one.
//
// Every server of a store reports the same numbers for the cluster, so scrape one of them, or take max by (…), never sum.
package metrics
