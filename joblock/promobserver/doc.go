// Package promobserver counts the events of a joblock.Locker for Prometheus.
//
//	metrics, err := promobserver.New(prometheus.DefaultRegisterer, nil)
//	...
//	locks, err := joblock.New(store, &joblock.Config{Observer: metrics})
//
// There are these metrics, of this process. Package server/metrics has those of the whole cluster.
//
//	joblock_events_total              counter: every event
//	joblock_wait_duration_seconds     histogram: how long a call waited until it "acquired" the lock (0 if the lock was
//	                                  free) or "gave up"
//	joblock_hold_duration_seconds     histogram: how long this process had a lock until the lock was "parked",
//	                                  "released" or "lost"
//	joblock_renewal_late_seconds      histogram: how late a renewal was that was answered after two thirds of the lease
//	joblock_held                      gauge: how many locks this process holds
//	joblock_journal_dropped_total     counter: see Config.JournalDropped
//
// The first three metrics have all of these labels; joblock_renewal_late_seconds and joblock_held have only the last
// one. A label without a value is empty, which for Prometheus is the same as absent.
//
//	joblock_event      the name of the event's kind, such as "acquired" or "lost"
//	error_type         joblock.CodeOf the event's error, such as LOCK_TIMEOUT; "_OTHER" for an error without a code
//	joblock_key_group  the result of Config.KeyGroup
//
// The key is not a label, because each key would be a time series of its own. The names and labels are those that
// OpenTelemetry gives the metrics of package otelobserver in Prometheus, so one dashboard and one set of alerts serve
// both: see docs/monitoring.md in the repository.
//
// This package is a module of its own, so that other packages do not depend on Prometheus.
//
//	go get github.com/joblock/toolkit/joblock/promobserver
package promobserver
