package capacity

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// Costs are what one run has measured.
type Costs struct {
	Server  string `json:"server"`  // such as "Redis 7.0.15"
	Machine string `json:"machine"` // processor, cores, kernel and Go
	Runs    int    `json:"runs"`    // every figure is the median of so many

	Floor Floor `json:"floor"`

	Job       Cost `json:"job"`        // run by asynq, without its enqueue: resume, handler, release
	Enqueue   Cost `json:"enqueue"`    // EnqueueUnique
	Pair      Cost `json:"pair"`       // TryAcquire and Release on a free key
	Handover  Cost `json:"handover"`   // Release, and the next holder's place in the line
	Poll      Cost `json:"poll"`       // of a waiter
	Renewal   Cost `json:"renewal"`    // of one lease in a batch
	Check     Cost `json:"check"`      // of one parked lock whose task a keeper's list shows
	Ask       Cost `json:"ask"`        // of a keeper: which locks are due
	Tick      Cost `json:"tick"`       // of a cron entry, by the node that executes the tick
	TickRead  Cost `json:"tick_read"`  // of a cron entry's ledger, by each node at each tick
	WorkerOwn Cost `json:"worker_own"` // of an asynq server that has no tasks, per second

	// Idle is the processor time of a server without any client, in µs per second.
	Idle float64 `json:"idle_server_micros"`

	// What was measured as a multiple of what the settings say.
	PollsFactor    float64 `json:"polls_factor"`    // polls, to one per Poll
	RenewalsFactor float64 `json:"renewals_factor"` // renewals, to three per TTL
	ChecksFactor   float64 `json:"checks_factor"`   // checks, to one per round

	// ListMicros is how long a keeper's call for a page of tasks takes, per task.
	ListMicros float64 `json:"list_micros"`

	Payload int   `json:"payload"` // bytes of the payload of each task that was measured
	Memory  Bytes `json:"memory_bytes"`

	Links Links `json:"connections"`

	Goroutines Goroutines `json:"goroutines"`
}

// Floor is the processor time that a server takes for a SET of 100 bytes, in µs.
type Floor struct {
	Alone   float64 `json:"alone_micros"`   // one connection, a few hundred a second: each SET wakes the server
	Crowded float64 `json:"crowded_micros"` // 32 connections at full speed: the server reads several at a time
	Own     float64 `json:"own_micros"`     // of the client, when alone
}

// Cost is what an operation costs.
type Cost struct {
	Locks Part    `json:"locks"` // at the Redis of the locks
	Asynq Part    `json:"asynq"` // at asynq's Redis
	Own   float64 `json:"own_micros"`
}

// Part is what an operation costs one server.
type Part struct {
	Commands float64 `json:"commands"`
	Turns    float64 `json:"round_trips"`
	Server   float64 `json:"server_micros"` // processor time, when the server has little else to do
	In       float64 `json:"bytes_in"`
	Out      float64 `json:"bytes_out"`
}

// Bytes is the memory of a server. Of a key it is what MEMORY USAGE tells, which leaves PerKey out.
type Bytes struct {
	Base      float64 `json:"base"`       // of a server with all scripts and no key
	BaseAsynq float64 `json:"base_asynq"` // the same of asynq's
	Idle      float64 `json:"idle"`       // of a connection that was idle for seconds
	Busy      float64 `json:"busy"`       // of a connection in use
	Held      float64 `json:"held"`       // of a lock that is held
	Parked    float64 `json:"parked"`     // of a lock that is parked for a task, with its entry in the index
	Task      float64 `json:"task"`       // of a scheduled task with Costs.Payload, in asynq's Redis: of all its keys
	Released  float64 `json:"released"`   // of a lock that was released
	Waiter    float64 `json:"waiter"`     // of a place in a line, beyond the lock
	Ledger    float64 `json:"ledger"`     // of a cron entry
}

// PerKey is what a key takes in the server's tables of keys and of times to live: an entry and two places.
const PerKey = 48

// Links are the connections of one process to one server.
type Links struct {
	// To the Redis of the locks, if that is a single server.
	Calls   float64 `json:"calls"`   // for calls
	Enqueue float64 `json:"enqueue"` // for calls, of a process that enqueues jobs
	Run     float64 `json:"run"`     // for calls, of a process that runs jobs

	Worker float64 `json:"worker"` // to asynq's Redis: of a process that runs jobs
}

// Goroutines are those of one process that has nothing to do.
type Goroutines struct {
	Web    float64 `json:"web"`
	Worker float64 `json:"worker"`
}

// Read reads Costs from a file in JSON.
func Read(path string) (c Costs, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if c.Floor.Alone <= 0 || c.Floor.Crowded <= 0 {
		return c, fmt.Errorf("%s has no floor: it is not what -costs writes", path)
	}
	return c, nil
}

// Scale multiplies all processor times: those of servers, and those of processes.
func (c *Costs) Scale(server, own float64) {
	for _, cost := range []*Cost{
		&c.Job, &c.Enqueue, &c.Pair, &c.Handover, &c.Poll, &c.Renewal, &c.Check, &c.Ask, &c.Tick, &c.TickRead, &c.WorkerOwn,
	} {
		cost.Own *= own
		for _, p := range []*Part{&cost.Locks, &cost.Asynq} {
			p.Server *= server
		}
	}
	c.Idle *= server
	c.ListMicros *= own
}

// Median returns the median of each figure.
func Median(all []Costs) (c Costs, err error) {
	var each []any
	for _, one := range all {
		text, err := json.Marshal(one)
		if err != nil {
			return c, err
		}
		var fields any
		if err := json.Unmarshal(text, &fields); err != nil {
			return c, err
		}
		each = append(each, fields)
	}
	text, err := json.Marshal(medianOf(each))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	return c, err
}

// medianOf returns, of values of the same form, the first one with the medians in place of its numbers.
func medianOf(all []any) any {
	switch first := all[0].(type) {
	case float64:
		var numbers []float64
		for _, x := range all {
			numbers = append(numbers, x.(float64))
		}
		slices.Sort(numbers)
		return numbers[(len(numbers)-1)/2]
	case map[string]any:
		out := make(map[string]any)
		for name := range first {
			var field []any
			for _, x := range all {
				field = append(field, x.(map[string]any)[name])
			}
			out[name] = medianOf(field)
		}
		return out
	default:
		return first
	}
}

// JSON returns the text that Read reads.
func (c Costs) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(c, "", "\t")
	return append(text, '\n'), err
}
