// Package otelobserver counts the events of a joblock.Locker with OpenTelemetry.
//
//	metrics, err := otelobserver.New(otel.GetMeterProvider(), nil)
//	...
//	locks, err := joblock.New(store, &joblock.Config{Observer: metrics})
//
// There are these instruments:
//
//	joblock.events         counter, {event}: every event
//	joblock.wait.duration  histogram, s: how long a call waited until it "acquired" the lock (0 if the lock
//	                       was free) or "gave up"
//	joblock.hold.duration  histogram, s: how long this process had a lock until the lock was "parked",
//	                       "released" or "lost"
//	joblock.renewal.late   histogram, s: how late a renewal was that was answered after two thirds of the lease
//	joblock.held           up-down counter, {lock}: how many locks this process holds
//	joblock.journal.dropped  counter, {event}: see Config.JournalDropped
//
// Package promobserver has the same metrics for Prometheus, with the names and labels that OpenTelemetry's translation
// makes of these. docs/monitoring.md in the repository has all of them, with a dashboard and alerts.
//
// The first three have all of these attributes, joblock.renewal.late and joblock.held only the last one:
//
//	joblock.event      the name of the event's kind, such as "acquired" or "lost"
//	error.type         joblock.CodeOf the event's error, such as LOCK_TIMEOUT; "_OTHER" for an error without a
//	                   code; absent without an error
//	joblock.key.group  the result of Config.KeyGroup; absent if there is none
//
// The key is no attribute, because each key would be a time series of its own. There are no spans, because most
// events happen where no context is at hand. Make a span around joblock.Locker.Do instead.
//
// The package is a module of its own, so that other packages do not depend on OpenTelemetry. The module needs
// OpenTelemetry's API, not its SDK.
//
//	go get github.com/joblock/toolkit/joblock/otelobserver
package otelobserver
