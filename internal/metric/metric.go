// Package metric has the names of all metrics, for OpenTelemetry and for Prometheus, so that one dashboard serves both.
// The Prometheus names are the ones into which OpenTelemetry names are translated.
package metric

import (
	"strings"

	"github.com/joblock/toolkit/joblock/event"
)

// Type is the type of a Metric.
type Type string

// The types.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric is a metric.
type Metric struct {
	Name    string // for OpenTelemetry, such as joblock.wait.duration
	Type    Type
	Unit    string    // of UCUM: s, or {lock} and the like; "" for none
	Labels  []string  // for OpenTelemetry, such as joblock.event
	Help    string    // what it means, in a sentence
	Buckets []float64 // of a Histogram
}

// Prometheus returns the name for Prometheus, such as joblock_wait_duration_seconds.
func (m Metric) Prometheus() string {
	name := Label(m.Name)
	if m.Unit == "s" {
		name += "_seconds"
	}
	if m.Type == Counter {
		name += "_total"
	}
	return name
}

// PrometheusLabels returns the names of the labels for Prometheus.
func (m Metric) PrometheusLabels() []string {
	names := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		names[i] = Label(l)
	}
	return names
}

// Label returns the name of a label for Prometheus.
func Label(name string) string { return strings.ReplaceAll(name, ".", "_") }

// The labels of metrics about locks. A label without a value is left out.
const (
	Event = "joblock.event"     // event.Kind.String
	Error = "error.type"        // joblock.CodeOf; Other for an error without a code
	Group = "joblock.key.group" // the result of KeyGroup
)

// Other is the value of Error for an error without a code, and the value of Group and of the label job for key groups and
// cron jobs beyond their limits.
const Other = "_OTHER"

// Metrics of a process about its own locks: joblock/otelobserver and joblock/promobserver.
var (
	Events = Metric{
		"joblock.events", Counter, "{event}", []string{Event, Error, Group}, "What has happened to locks.", nil,
	}
	WaitDuration = Metric{
		"joblock.wait.duration", Histogram, "s", []string{Event, Error, Group}, "How long acquires had waited when they got the lock or gave up.",
		[]float64{0, 0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800},
	}
	HoldDuration = Metric{
		"joblock.hold.duration", Histogram, "s", []string{Event, Error, Group}, "How long locks were held in this process.",
		[]float64{0.001, 0.01, 0.1, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
	}
	RenewalLate = Metric{
		"joblock.renewal.late", Histogram, "s", []string{Group}, "How late renewals were, for those answered after two thirds of the lease.",
		[]float64{0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60},
	}
	Held = Metric{
		"joblock.held", Gauge, "{lock}", []string{Group}, "How many locks this process holds.", nil,
	}
	JournalDropped = Metric{
		"joblock.journal.dropped", Counter, "{event}", nil, "How many events this process could not write into the journal.", nil,
	}
)

// Rare are the events that alerts use. Their counters start at 0 when a key group is first seen, because a counter that
// starts at 1 shows no increase.
var Rare = []struct {
	Kind  event.Kind
	Error string
}{
	{event.Lost, "LOCK_LOST"}, {event.RenewedLate, ""}, {event.GaveUp, "LOCK_TIMEOUT"}, {event.GaveUp, "LOCK_UNAVAILABLE"},
	{event.Forced, ""}, {event.CleanupFailed, "LOCK_UNAVAILABLE"}, {event.FellBack, "LOCK_UNAVAILABLE"},
}

// Process are the metrics of a process.
var Process = []Metric{Events, WaitDuration, HoldDuration, RenewalLate, Held, JournalDropped}

// Metrics of all processes, from a snapshot of the store: server/metrics.
var (
	Locks = Metric{
		"joblock.locks", Gauge, "{lock}", []string{"state", Group}, "How many keys are in a state: held, parked or orphaned.", nil,
	}
	JobLocks = Metric{
		"joblock.job.locks", Gauge, "{lock}", []string{"state", Group}, "How many held, parked or orphaned locks are bound to a job.", nil,
	}
	Waiters = Metric{
		"joblock.waiters", Gauge, "{place}", []string{Group}, "How many places there are in the lines of all keys. The place of a waiter that has died stays for a short time.", nil,
	}
	LongestLine = Metric{
		"joblock.longest.line", Gauge, "{place}", []string{Group}, "How many places there are in the longest line of a key.", nil,
	}
	Pauses = Metric{
		"joblock.pauses", Gauge, "{key}", nil, "How many keys operators have paused, including keys whose pause has just ended and whose jobs are being started.", nil,
	}
	HeldBack = Metric{
		"joblock.held.back", Gauge, "{job}", nil, "How many jobs the pauses of keys hold back.", nil,
	}
	OldestAcquired = Metric{
		"joblock.oldest.acquired.timestamp", Gauge, "s", []string{"state", Group}, "When the lock that has been in this state for the longest time was acquired, as Unix time.", nil,
	}
	Snapshot = Metric{
		"joblock.snapshot.timestamp", Gauge, "s", nil, "When the latest walk over all locks ended, as Unix time. The metrics of the walk are absent if it has failed.", nil,
	}
	SnapshotDuration = Metric{
		"joblock.snapshot.duration", Gauge, "s", nil, "How long the walk over all locks took, including its pauses.", nil,
	}
	Unread = Metric{
		"joblock.collect.errors", Counter, "{read}", []string{"part"}, "How many reads of the store have failed, by what was read: locks, keeper, outboxes, controls, cron or check.", nil,
	}
	KeeperWorking = Metric{
		"joblock.keeper.working", Gauge, "{keeper}", nil, "How many keepers are active, that is, check and free locks.", nil,
	}
	KeeperStandBy = Metric{
		"joblock.keeper.standby", Gauge, "{keeper}", nil, "How many keepers stand by.", nil,
	}
	KeeperAsked = Metric{
		"joblock.keeper.asked.timestamp", Gauge, "s", []string{"holder"}, "When the keeper last got an answer from the store about the locks that are due for a check, as Unix time.", nil,
	}
	KeeperBehind = Metric{
		"joblock.keeper.behind", Gauge, "", []string{"holder"}, "1 if the keeper does not keep up with its checks, so that locks are freed late.", nil,
	}
	KeeperLate = Metric{
		"joblock.keeper.late", Gauge, "s", []string{"holder"}, "How late the keeper was with its latest check.", nil,
	}
	KeeperChecks = Metric{
		"joblock.keeper.checks", Counter, "{check}", []string{"holder", "result"}, "Checks of the locks of jobs, by their results: held, kept, over, foreign, unanswered or freed.", nil,
	}
	KeeperFreed = Metric{
		"joblock.keeper.freed", Counter, "{lock}", []string{"holder", "reason"}, "Locks that the keeper has freed.", nil,
	}
	CronRuns = Metric{
		"joblock.cron.runs", Counter, "{tick}", []string{"scope", "job", "result"}, "Ticks by their results: done, enqueued, failed, cancelled, lost, taken_over, missed, overlapped or paused. The counts are kept in the store, so they survive restarts.", nil,
	}
	CronLastSuccess = Metric{
		"joblock.cron.last.success.timestamp", Gauge, "s", []string{"scope", "job"}, "When the latest successful run ended, as Unix time; absent if none is on record. A run that enqueued its task counts as successful.", nil,
	}
	CronSince = Metric{
		"joblock.cron.since.timestamp", Gauge, "s", []string{"scope", "job"}, "When the job got its present spec, as Unix time.", nil,
	}
	CronLastDuration = Metric{
		"joblock.cron.last.run.duration", Gauge, "s", []string{"scope", "job"}, "How long the latest run that has ended took.", nil,
	}
	CronNext = Metric{
		"joblock.cron.next.timestamp", Gauge, "s", []string{"scope", "job"}, "When the next tick is, as Unix time.", nil,
	}
	CronInterval = Metric{
		"joblock.cron.interval", Gauge, "s", []string{"scope", "job"}, "The longest gap between consecutive ticks among the next ten.", nil,
	}
	CronOverdue = Metric{
		"joblock.cron.overdue.timestamp", Gauge, "s", []string{"scope", "job"}, "The tick that no node has claimed, as Unix time; absent if there is none.", nil,
	}
	CronPaused = Metric{
		"joblock.cron.paused", Gauge, "", []string{"scope", "job"}, "1 if the job is paused.", nil,
	}
	CronPausedSince = Metric{
		"joblock.cron.paused.timestamp", Gauge, "s", []string{"scope", "job"}, "When the job was paused, as Unix time; absent if it is not paused.", nil,
	}
	CronDisagree = Metric{
		"joblock.cron.disagree.timestamp", Gauge, "s", []string{"scope", "job"}, "When the nodes began to disagree about the job, as Unix time: a node that is up has a spec other than the one in force, or two definitions of the job keep replacing each other. Absent if the nodes agree.", nil,
	}
	CronOverlaps = Metric{
		"joblock.cron.overlaps.timestamp", Gauge, "s", []string{"scope", "job"}, "When the present series of ticks skipped as overlapped began, as Unix time; absent unless there are three in a row.", nil,
	}
	CronWaiting = Metric{
		"joblock.cron.waiting", Gauge, "{tick}", []string{"scope", "job"}, "Ticks that wait for the end of an execution.", nil,
	}
	CronNodes = Metric{
		"joblock.cron.nodes", Gauge, "{node}", []string{"scope"}, "Nodes that are up.", nil,
	}
	OutboxWaiting = Metric{
		"joblock.outbox.waiting", Gauge, "{row}", []string{"outbox"}, "How many rows of an outbox are not enqueued yet; absent while its database does not answer the relay.", nil,
	}
	OutboxOldest = Metric{
		"joblock.outbox.oldest", Gauge, "s", []string{"outbox"}, "How old the oldest waiting row was when the relay last reported; 0 if no row waits.", nil,
	}
	OutboxRefused = Metric{
		"joblock.outbox.refused", Gauge, "{row}", []string{"outbox"}, "How many rows will not be enqueued, and stay in the table with their errors.", nil,
	}
	OutboxSent = Metric{
		"joblock.outbox.sent", Counter, "{row}", []string{"outbox"}, "How many rows the active relay has enqueued since its process began to relay.", nil,
	}
	OutboxReported = Metric{
		"joblock.outbox.reported.timestamp", Gauge, "s", []string{"outbox"}, "When a relay last reported, as Unix time. It reports about every ten seconds.", nil,
	}
	CheckFindings = Metric{
		"joblock.check.findings", Gauge, "{finding}", []string{"severity", "subject"}, "How many faults, warnings and notes the doctor has found.", nil,
	}
	CheckTime = Metric{
		"joblock.check.timestamp", Gauge, "s", nil, "When the doctor's checks last ran, as Unix time.", nil,
	}
	BuildInfo = Metric{
		"joblock.build.info", Gauge, "", []string{"version", "go_version"}, "Always 1. The labels have the versions of the toolkit and of Go in the collector.", nil,
	}
)

// Cluster are the metrics of all processes together.
var Cluster = []Metric{
	Locks, JobLocks, Waiters, LongestLine, Pauses, HeldBack, OldestAcquired, Snapshot, SnapshotDuration, Unread,
	KeeperWorking, KeeperStandBy, KeeperAsked, KeeperBehind, KeeperLate, KeeperChecks, KeeperFreed,
	CronRuns, CronLastSuccess, CronSince, CronLastDuration, CronNext, CronInterval, CronOverdue, CronPaused, CronPausedSince, CronDisagree, CronOverlaps, CronWaiting, CronNodes,
	OutboxWaiting, OutboxOldest, OutboxRefused, OutboxSent, OutboxReported,
	CheckFindings, CheckTime, BuildInfo,
}

// Metrics of a lock server about itself: server/metrics.
var (
	HTTPRequests = Metric{
		"joblock.http.requests", Counter, "{request}", []string{"route", "method", "code"}, "Requests that were answered, by the status of the answer.", nil,
	}
	HTTPDuration = Metric{
		"joblock.http.request.duration", Histogram, "s", []string{"route"}, "How long requests took, including the time for which they waited for a lock or streamed.",
		[]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60},
	}
	HTTPStreams = Metric{
		"joblock.http.streams", Gauge, "{stream}", nil, "Open streams, of holds and of events.", nil,
	}
	HTTPWaits = Metric{
		"joblock.http.waits", Gauge, "{request}", nil, "Requests that wait for a lock.", nil,
	}
	HTTPAuthFailures = Metric{
		"joblock.http.auth.failures", Counter, "{request}", []string{"code"}, "Requests that failed authentication or authorization: AUTH_REQUIRED, FORBIDDEN or AUTH_UNAVAILABLE.", nil,
	}
	Actions = Metric{
		"joblock.actions", Counter, "{action}", []string{"action", "outcome"}, "Actions of operators: done, refused, unknown, or not_recorded and therefore refused.", nil,
	}
)

// Server are the metrics of a lock server.
var Server = []Metric{HTTPRequests, HTTPDuration, HTTPStreams, HTTPWaits, HTTPAuthFailures, Actions}
