package routes

import (
	"encoding/json"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Empty is a request without parameters, or an answer that is not one JSON object.
type Empty struct{}

// AcquireRequest says which lock to take.
type AcquireRequest struct {
	Key    string `json:"key,omitempty" jsonschema:"minLength=1,maxLength=512"`              // in UTF-8 and at most 512 bytes; see joblock.Key
	TTL    *int64 `json:"ttl_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`       // How long the lease lasts. The server's MaxTTL bounds it, by default a day.
	Wait   *int64 `json:"wait_ms,omitempty" jsonschema:"minimum=0,maximum=3600000"`          // How long to wait for the lock. The server's MaxWait bounds it, by default 45 s.
	Holder string `json:"holder,omitempty" jsonschema:"maxLength=256"`                       // A label of the holder, for people.
	Limit  *int64 `json:"limit,omitempty" jsonschema:"minimum=1,maximum=256"`                // How many permits the key has; the lock takes one of them.
	Name   string `json:"-" header:"Idempotency-Key" jsonschema:"minLength=1,maxLength=128"` // Makes the request repeatable, also through another replica.
}

// Granted is a lock that was taken.
type Granted struct {
	Key       string        `json:"key"`
	Token     joblock.Token `json:"token"`
	Fence     int64         `json:"fence"`
	TTL       int64         `json:"ttl_ms"`
	Elapsed   int64         `json:"elapsed_ms"` // from the arrival of the request to the answer
	Valid     int64         `json:"valid_ms"`   // The lock can be relied on for elapsed_ms and valid_ms from the sending of the request.
	ExpiresAt ops.Time      `json:"expires_at"` // the same instant by the server's clock, for people
	Prior     driver.Ended  `json:"prior,omitempty"`
}

// RenewRequest says which lease to begin.
type RenewRequest struct {
	Token   string `json:"token,omitempty"`
	TTL     *int64 `json:"ttl_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`     // default: the TTL of the token
	Reserve *int64 `json:"reserve_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"` // how long the key of a job's lock stays reserved after the lease; default: the present value
}

// Renewed is a lease that has begun.
type Renewed struct {
	Key       string   `json:"key"`
	Fence     int64    `json:"fence"`
	TTL       int64    `json:"ttl_ms"`
	Elapsed   int64    `json:"elapsed_ms"`
	Valid     int64    `json:"valid_ms"`
	ExpiresAt ops.Time `json:"expires_at"`
}

// ReleaseRequest says which lock to give back.
type ReleaseRequest struct {
	Token  string `json:"token,omitempty"`
	Reason string `json:"reason,omitempty" jsonschema:"maxLength=256"`
}

// Released says that the lock is free. Already says that it had ended before the request, and Ended how.
type Released struct {
	Key      string       `json:"key"`
	Released bool         `json:"released"`
	Already  bool         `json:"already,omitempty"`
	Ended    driver.Ended `json:"ended,omitempty"`
	Reason   string       `json:"reason,omitempty"`
}

// ParkRequest says what to reserve.
type ParkRequest struct {
	Token   string `json:"token,omitempty"`
	Job     string `json:"job,omitempty"`                                                   // "queue/taskID": only this job can resume the lock
	Reserve *int64 `json:"reserve_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"` // how long the key stays reserved
}

// Parked is the token for a key that is reserved.
type Parked struct {
	Key      string        `json:"key"`
	Token    joblock.Token `json:"token"`
	Fence    int64         `json:"fence"`
	Reserved int64         `json:"reserved_ms"`
	Job      string        `json:"job,omitempty"`
}

// ResumeRequest says which lock to take over.
type ResumeRequest struct {
	Token   string `json:"token,omitempty"`
	Job     string `json:"job,omitempty"`                                                     // the job that the lock is parked for
	TTL     *int64 `json:"ttl_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`       // default: the TTL of the token
	Holder  string `json:"holder,omitempty" jsonschema:"maxLength=256"`                       // A label of the holder, for people.
	Reserve *int64 `json:"reserve_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`   // how long the key stays reserved after the lease; default: the value from the park
	Name    string `json:"-" header:"Idempotency-Key" jsonschema:"minLength=1,maxLength=128"` // Makes the request repeatable, also through another replica.
}

// HoldRequest says which lock a stream holds: the lock of Key or, if Token is set, the lock of the token.
type HoldRequest struct {
	Key          string `json:"key,omitempty" jsonschema:"maxLength=512"`
	Token        string `json:"token,omitempty"`
	Job          string `json:"job,omitempty"` // with a token: the job that the lock is parked for
	TTL          *int64 `json:"ttl_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`
	Wait         *int64 `json:"wait_ms,omitempty" jsonschema:"minimum=0,maximum=31622400000"` // default: as long as it takes
	Holder       string `json:"holder,omitempty" jsonschema:"maxLength=256"`
	Limit        *int64 `json:"limit,omitempty" jsonschema:"minimum=1,maximum=256"`
	MaxHold      *int64 `json:"max_hold_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`       // default no bound
	OnDisconnect string `json:"on_disconnect,omitempty" jsonschema:"enum=release,enum=lapse,enum=park"` // what to do with the lock when the client has disconnected; default release
	Reserve      *int64 `json:"reserve_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`        // how long the key stays reserved when the server closes, or with "park"; default a minute
}

// HoldLine is a line of a stream. Fields that a type does not have are left out.
type HoldLine struct {
	Type    string         `json:"type" jsonschema:"enum=waiting,enum=lock-acquired,enum=ping,enum=lock-lost,enum=error,enum=released,enum=draining"`
	Ahead   *int           `json:"ahead,omitempty"` // how many waiters are served first
	Key     string         `json:"key,omitempty"`
	Token   *joblock.Token `json:"token,omitempty"`
	Fence   int64          `json:"fence,omitempty"`
	TTL     int64          `json:"ttl_ms,omitempty"`
	Elapsed int64          `json:"elapsed_ms"`
	Valid   *int64         `json:"valid_ms,omitempty"`
	Expires *ops.Time      `json:"expires_at,omitempty"`
	Resume  int64          `json:"resume_within_ms,omitempty"` // of draining: how long the token can be resumed
	Code    string         `json:"code,omitempty"`
	Error   string         `json:"error,omitempty"`
	Retry   bool           `json:"retryable,omitempty"`
}

// EnqueueRequest is a task of asynq, and the key that its job takes.
type EnqueueRequest struct {
	Key           string          `json:"key" jsonschema:"minLength=1,maxLength=512"`
	Type          string          `json:"type" jsonschema:"minLength=1"` // of the task
	Payload       json.RawMessage `json:"payload,omitempty"`             // JSON; or
	PayloadBase64 *string         `json:"payload_base64,omitempty"`      // any bytes
	Queue         string          `json:"queue,omitempty"`               // default "default"
	TaskID        string          `json:"task_id,omitempty"`             // default: a random ID, or one derived from the Idempotency-Key
	MaxRetry      *int64          `json:"max_retry,omitempty" jsonschema:"minimum=0,maximum=1000"`
	Timeout       *int64          `json:"timeout_ms,omitempty" jsonschema:"minimum=1"`   // of an attempt
	Delay         *int64          `json:"delay_ms,omitempty" jsonschema:"minimum=1"`     // how long to wait before the first attempt
	Retention     *int64          `json:"retention_ms,omitempty" jsonschema:"minimum=1"` // how long asynq keeps the completed task

	Until      string `json:"until,omitempty" jsonschema:"enum=done,enum=started"`                                                          // one job per key: how long the key is taken; default until the job is done
	OnConflict string `json:"on_conflict,omitempty" jsonschema:"enum=reject,enum=skip,enum=replace,enum=keep_last,enum=cancel_in_progress"` // what to do if the key has a job; default reject
	Cooldown   *int64 `json:"cooldown_ms,omitempty" jsonschema:"minimum=1,maximum=31622400000"`                                             // how long the key stays taken after the job is done; default not at all

	Wait    *int64 `json:"debounce_ms,omitempty" jsonschema:"minimum=1000,maximum=31622400000"` // Debounce: the job is due when no further one was enqueued for this time. Excludes until, on_conflict, cooldown_ms, delay_ms and task_id.
	MaxWait *int64 `json:"max_wait_ms,omitempty" jsonschema:"minimum=1000"`                     // of a debounce: the job is due at the latest this long after the first enqueue; at least debounce_ms; default no bound
	Leading bool   `json:"leading,omitempty"`                                                   // of a debounce: a job of a key that is at rest is due at once

	Sequence   bool   `json:"sequence,omitempty"`                                                // give the job a place in the key's line
	Limit      *int64 `json:"limit,omitempty" jsonschema:"minimum=1,maximum=256"`                // of a sequence: how many jobs run at a time
	MaxWaiting *int64 `json:"max_waiting,omitempty" jsonschema:"minimum=1,maximum=1000000"`      // of a sequence: how many jobs may wait
	OnFailure  string `json:"on_failure,omitempty" jsonschema:"enum=go_on,enum=halt"`            // of a sequence, when a job fails for good; default go_on
	Name       string `json:"-" header:"Idempotency-Key" jsonschema:"minLength=1,maxLength=128"` // Makes the request repeatable, also through another replica.
}

// Enqueued is a task that carries a lock.
type Enqueued struct {
	Key       string `json:"key"`
	Queue     string `json:"queue"`
	TaskID    string `json:"task_id"`
	State     string `json:"state,omitempty"`
	Repeated  bool   `json:"repeated,omitempty"`         // an earlier request with the same name has enqueued it
	Duplicate bool   `json:"duplicate,omitempty"`        // it is the task that had the key before
	Replaced  string `json:"replaced_task_id,omitempty"` // the task whose place it takes
	Waits     bool   `json:"waits,omitempty"`            // in the line of the key
	Ahead     *int   `json:"ahead,omitempty"`
}

// Caller is the caller, with its rights.
type Caller struct {
	ID        string    `json:"id"`
	Scopes    []string  `json:"scopes"`
	Prefixes  []string  `json:"prefixes,omitempty"`
	AllKeys   bool      `json:"all_keys"`
	Queues    []string  `json:"queues,omitempty"`
	AllQueues bool      `json:"all_queues"`
	Expires   *ops.Time `json:"expires,omitempty"`
}

// Health says that the server serves.
type Health struct {
	Status string `json:"status"`
}

// List is the answer of a route with many items. More says that the list is incomplete.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // the cursor of the next page; absent at the end
	More  bool   `json:"more,omitempty"`
}

// Page says which part of a list to return.
type Page struct {
	Cursor string `query:"cursor"`                                    // the "next" of the previous page
	Limit  int    `query:"limit" jsonschema:"minimum=1,maximum=1000"` // The maximum number of items; default 100.
}

// First bounds a list that has only one page.
type First struct {
	Limit int `query:"limit" jsonschema:"minimum=1,maximum=1000"` // The maximum number of items; default 100.
}

// KeyQuery names a key.
type KeyQuery struct {
	Key string `query:"key"`
}

// LineQuery names the line of a key.
type LineQuery struct {
	Key string `query:"key"`
	First
}

// PermitsQuery names the permits of a key.
type PermitsQuery struct {
	Key string `query:"key"`
	N   int    `query:"n" jsonschema:"minimum=0,maximum=256"` // how many permits there are; 0 or absent if not known
}

// LocksQuery says which locks to list.
type LocksQuery struct {
	ops.LocksQuery
	Page
}

// StatusesRequest names keys.
type StatusesRequest struct {
	Keys []string `json:"keys" jsonschema:"minItems=1,maxItems=1000"`
}

// JobsQuery says which jobs to list.
type JobsQuery struct {
	ops.JobsQuery
	Page
}

// JobQuery names a task.
type JobQuery struct {
	Queue string `path:"queue"`
	ID    string `path:"id"`
}

// JobAnswer is a job: its locks and places, and its task.
type JobAnswer struct {
	Items []ops.Job `json:"items"`
	Task  ops.Task  `json:"task"`
	More  bool      `json:"more,omitempty"`
}

// SequencesQuery says which sequences to list.
type SequencesQuery struct {
	ops.SequencesQuery
	First
}

// DoctorAnswer is what the doctor reports. More says that not everything was checked.
type DoctorAnswer struct {
	ops.Report
	More bool `json:"more,omitempty"`
}

// AuditQuery says which actions to list.
type AuditQuery struct {
	ops.AuditQuery
	First
}

// EventsQuery says which events to list.
type EventsQuery struct {
	ops.EventsQuery
	Limit int    `query:"limit" jsonschema:"minimum=1,maximum=1000"` // The maximum number of items; default 100.
	After string `query:"after"`                                     // For a stream: it begins after the event with this ID; 0 is the oldest one. Default: from now, or from since.
	Last  string `header:"Last-Event-ID"`                            // For a stream: as after.
}

// HistoryQuery names the history of a key.
type HistoryQuery struct {
	ops.HistoryQuery
}

// ScopeQuery names a scope of cron jobs.
type ScopeQuery struct {
	Scope string `query:"scope"`
}

// CronQuery names a cron job.
type CronQuery struct {
	Scope string `query:"scope"`
	Name  string `path:"name"`
}

// CronPreviewQuery says which ticks to show.
type CronPreviewQuery struct {
	Spec string `query:"spec" jsonschema:"maxLength=1024"`
	Zone string `query:"zone" jsonschema:"maxLength=64"`        // such as Europe/Berlin; default UTC
	N    int    `query:"n" jsonschema:"minimum=1,maximum=1000"` // how many ticks; default 10
}

// Count is a number of ticks.
type Count struct {
	Ticks int `json:"ticks"`
}
