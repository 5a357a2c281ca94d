// Package otelobserver counts the events of a joblock.Locker with OpenTelemetry.
//
//	metrics, err := otelobserver.New(otel.GetMeterProvider(), nil)
//	...
//	locks, err := joblock.New(store, &joblock.Config{Observer: metrics})
//
// There are three instruments:
//
//	joblock.events         counter, {event}: every event
//	joblock.wait.duration  histogram, s: how long calls had waited that got the lock
//	                       ("acquired", 0 for those that found it free) or "gave up"
//	joblock.hold.duration  histogram, s: how long locks were held in this process
//	                       until they were "parked", "released" or "lost"
//
// All of them have these attributes:
//
//	joblock.event      the name of the event's kind, such as "acquired" or "lost"
//	error.type         joblock.CodeOf the event's error, such as LOCK_TIMEOUT, or
//	                   "_OTHER" for an error without one; absent without an error
//	joblock.key.group  what Config.KeyGroup makes of the key; absent without it
//
// Keys themselves are no attributes: there would be a time series for each.
//
// There are no spans: an event has no duration of its own, and most happen where
// there is no context to belong to. Make a span around joblock.Locker.Do instead.
//
// The package is a module of its own, so OpenTelemetry comes only to those who get it:
//
//	go get github.com/joblock/toolkit/joblock/otelobserver
//
// Of OpenTelemetry it compiles in the API only, not the SDK.
package otelobserver
