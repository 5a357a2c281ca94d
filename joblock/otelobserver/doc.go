// Package otelobserver records what happens to locks as OpenTelemetry metrics and traces.
//
//	metrics, err := otelobserver.New(otel.GetMeterProvider(), nil)
//	...
//	traces, err := otelobserver.NewTracer(otel.GetTracerProvider(), nil)
//	...
//	locks, err := joblock.New(store, &joblock.Config{Observer: metrics, Tracer: traces})
//
// # Metrics
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
// The first three instruments have all of these attributes; joblock.renewal.late and joblock.held have only the last
// one:
//
//	joblock.event      the name of the event's kind, such as "acquired" or "lost"
//	error.type         joblock.CodeOf the event's error, such as LOCK_TIMEOUT; "_OTHER" for an error without a
//	                   code; absent without an error
//	joblock.key.group  the result of Config.KeyGroup; absent if there is none
//
// The key is not an attribute, because each key would be a time series of its own.
//
// # Traces
//
// A request, its wait for a lock, the enqueue and each attempt of the job are one trace. The task carries the enqueue's
// span in the headers traceparent and tracestate of W3C. The Tracer begins no trace of its own: without a span in the
// caller's context, and without such a header, there are no spans.
//
//	span                  kind      parent                      covers
//	joblock acquire       client    the caller's                a call that takes a lock, with its wait
//	joblock hold          internal  the caller's                a holding, from its grant until it is parked, released or lost
//	joblock park          client    the caller's, or enqueue    the hand-over of locks
//	joblock reclaim       client    the caller's, or enqueue    the undoing of a hand-over
//	joblock enqueue TYPE  producer  the caller's                a call of package handoff that enqueues tasks
//	joblock run TYPE      consumer  enqueue                     an attempt of a job, with the handler
//	joblock resume        client    run, or the caller's        taking parked locks
//	joblock release       client    run, or the caller's        giving locks back
//
// If another instrumentation has begun a span around the handler, that span is the parent of joblock run, which then
// links to the enqueue if the enqueue is in another trace. For the task of a group, the parent of joblock run is the
// enqueue of the group's first member, and joblock run links to the enqueues of up to 64 other members.
//
// The spans have these attributes, and the events "contended", "gave up", "renewed", "renewed late", "parked", "released"
// and "lost" of package event. The status is Error if something is wrong, but not if a key is busy or a job is snoozed.
//
//	joblock.key, joblock.keys  what TracerConfig.ShowKey returns for the key, or for up to 16 keys
//	joblock.fence              of the holding
//	joblock.holder             who has the lock; of "contended" and "gave up": who has the key
//	joblock.waited             s: how long the key was busy
//	joblock.job                "queue/taskID"
//	joblock.task               the type of the task
//	joblock.attempt            of the job, from 1
//	joblock.outcome            of hold: parked, released, lost; of run: done, failed, snoozed, revoked, superseded,
//	                           panicked
//	error.type                 as above
//
// This package is a module of its own, so that other packages do not depend on OpenTelemetry. The module needs
// OpenTelemetry's API, not its SDK.
//
//	go get github.com/joblock/toolkit/joblock/otelobserver
package otelobserver
