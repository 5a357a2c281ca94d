// Package otelobserver counts the events of a joblock.Locker with OpenTelemetry.
//
//	metrics, err := otelobserver.New(otel.GetMeterProvider(), nil)
//	...
//	locks, err := joblock.New(store, &joblock.Config{Observer: metrics})
//
// There are three instruments:
//
//	joblock.events         counter, {event}: every event
//	joblock.wait.duration  histogram, s: how long a call waited until it got the lock
//	                       ("acquired"; 0 if it was free) or "gave up"
//	joblock.hold.duration  histogram, s: how long locks were held in this process
//	                       until they were "parked", "released" or "lost"
//
// All three have these attributes:
//
//	joblock.event      the name of the event's kind, such as "acquired" or "lost"
//	error.type         joblock.CodeOf the event's error, such as LOCK_TIMEOUT, or
//	                   "_OTHER" for an error without one; absent without an error
//	joblock.key.group  what Config.KeyGroup makes of the key; absent without it
//
// The key is no attribute, because each key would be a time series of its own.
//
// There are no spans: most events happen where there is no context to belong to. Make a
// span around joblock.Locker.Do instead.
//
// The package is a module of its own, so that others do not depend on OpenTelemetry. It
// needs OpenTelemetry's API, not its SDK.
//
//	go get github.com/joblock/toolkit/joblock/otelobserver
package otelobserver
