package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// enqueueTime bounds an enqueue. Package handoff may take three to nine seconds more.
const enqueueTime = 10 * time.Second

// enqueue takes a key for a job, or gives the job a place in the key's line, and enqueues the job's task.
func (s *Server) enqueue(c *call, req *routes.EnqueueRequest) (out routes.Enqueued, err error) {
	if _, err := c.keyFrom(req.Key); err != nil {
		return out, err
	}
	if req.Queue == "" {
		req.Queue = "default"
	}
	if !c.who.mayEnqueueIn(req.Queue) {
		return out, problem.New(http.StatusForbidden, problem.Forbidden, "the caller may not enqueue into this queue")
	}
	how, err := howOf(req) // before req gets a derived ID
	if err != nil {
		return out, err
	}
	name, err := c.idempotencyKey()
	if err != nil {
		return out, err
	}
	// If the client disconnects, the enqueue continues, so that no keeper has to clean up a hand-over that was half done.
	ctx, cancel := context.WithTimeout(c.lasting(), enqueueTime)
	defer cancel()
	derived := name != "" && req.TaskID == ""
	var copies enqueue.Call
	if name != "" {
		id, repeatable, err := ops.RepeatableEnqueue(ctx, s.cfg.Locks, fmt.Sprintf("%q %q %q %q %q", c.who.ID, req.Queue, req.Key, req.TaskID, name))
		if err != nil {
			return out, err
		}
		copies, req.TaskID = repeatable, cmp.Or(req.TaskID, id)
	}
	task, opts, err := taskOf(req)
	if err != nil {
		return out, err
	}
	done, err := s.begin(false)
	if err != nil {
		return out, err
	}
	defer done()
	got, err := (*enqueue.Client)(s.cfg.Jobs).Enqueue(ctx, enqueue.Request{How: how, Task: task, Opts: opts, MayTouch: c.who.mayTouch, OwnQueue: !c.who.AllQueues, Call: copies})
	if errors.Is(err, enqueue.ErrRepeated) || derived && isOwn(err, req.Queue, req.TaskID) {
		return routes.Enqueued{Key: req.Key, Queue: req.Queue, TaskID: req.TaskID, Repeated: true}, nil
	}
	if err != nil {
		return out, err
	}
	out = routes.Enqueued{
		Key: req.Key, Queue: got.Task.Queue, TaskID: got.Task.ID, State: got.Task.State.String(), Duplicate: got.Duplicate, Waits: got.Waits,
		Repeated: got.Duplicate && derived && got.Task.ID == req.TaskID,
	}
	if got.Replaced != nil {
		out.Replaced = got.Replaced.ID
	}
	if got.Waits {
		out.Ahead = &got.Ahead
	}
	if !got.Duplicate {
		c.status = http.StatusCreated
	}
	return out, nil
}

// isOwn reports whether err says that an earlier copy of the request has enqueued the task. The task's ID is derived from
// the request, so no other request has made it. If the key were only reserved for the task, this copy would have enqueued
// the task. So if the task's job has the key, the job has resumed it, even if the task is not found.
func isOwn(err error, queue, id string) bool {
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return true
	}
	gotQueue, gotID, isJob := handoff.JobOf(err)
	return errors.Is(err, joblock.ErrHeld) && isJob && gotQueue == queue && gotID == id
}

// taskOf returns the task of a request, with its options.
func taskOf(req *routes.EnqueueRequest) (*asynq.Task, []asynq.Option, error) {
	bad := func(err error) (*asynq.Task, []asynq.Option, error) { return nil, nil, err }
	if strings.TrimSpace(req.Type) == "" {
		return bad(problem.New(http.StatusBadRequest, problem.Invalid, "type is missing"))
	}
	payload := []byte(req.Payload)
	if req.PayloadBase64 != nil {
		if req.Payload != nil {
			return bad(problem.New(http.StatusBadRequest, problem.Invalid, "payload and payload_base64 are both set"))
		}
		var err error
		if payload, err = base64.StdEncoding.Strict().DecodeString(*req.PayloadBase64); err != nil {
			return bad(problem.New(http.StatusBadRequest, problem.Invalid, "payload_base64 is not base64"))
		}
	}
	opts := []asynq.Option{asynq.Queue(req.Queue)}
	if req.TaskID != "" {
		opts = append(opts, asynq.TaskID(req.TaskID))
	}
	retries, err := number("max_retry", req.MaxRetry, -1, 0, 1000)
	if err != nil {
		return bad(err)
	}
	if retries >= 0 {
		opts = append(opts, asynq.MaxRetry(int(retries)))
	}
	for _, period := range []struct {
		name   string
		field  *int64
		option func(time.Duration) asynq.Option
	}{
		{"timeout_ms", req.Timeout, asynq.Timeout}, {"delay_ms", req.Delay, asynq.ProcessIn}, {"retention_ms", req.Retention, asynq.Retention},
	} {
		d, err := millis(period.name, period.field, 0, driver.MinPeriod, driver.MaxPeriod/2)
		if err != nil {
			return bad(err)
		}
		if d > 0 {
			opts = append(opts, period.option(d))
		}
	}
	return asynq.NewTask(req.Type, payload), opts, nil
}

// howOf returns how the task is to be enqueued: as the only job of its key, debounced, or in the key's sequence.
func howOf(req *routes.EnqueueRequest) (enqueue.How, error) {
	untils, conflicts, failures := []string{"done", "started"}, []string{"reject", "skip", "replace", "keep_last", "cancel_in_progress"}, []string{"go_on", "halt"}
	unique := []field{{"until", req.Until != ""}, {"on_conflict", req.OnConflict != ""}, {"cooldown_ms", req.Cooldown != nil}}
	debounce := []field{{"debounce_ms", req.Wait != nil}, {"max_wait_ms", req.MaxWait != nil}, {"leading", req.Leading}}
	sequence := []field{{"limit", req.Limit != nil}, {"max_waiting", req.MaxWaiting != nil}, {"on_failure", req.OnFailure != ""}}
	switch {
	case req.Sequence:
		if err := unset("is not for \"sequence\":true", slices.Concat(unique, debounce)); err != nil {
			return nil, err
		}
		waiting, err := number("max_waiting", req.MaxWaiting, 0, 1, 1_000_000)
		if err != nil {
			return nil, err
		}
		n, err := number("limit", req.Limit, 0, 1, limit.Max)
		if err != nil {
			return nil, err
		}
		failure, err := oneOf("on_failure", req.OnFailure, failures)
		if err != nil {
			return nil, err
		}
		return enqueue.Sequence{Key: req.Key, Limit: int(n), MaxWaiting: int(waiting), HaltOnFailure: failure > 0}, nil
	case req.Wait != nil:
		unique = append(unique, field{"delay_ms", req.Delay != nil}, field{"task_id", req.TaskID != ""})
		if err := cmp.Or(unset("is not for a debounce", unique), unset(forSequence, sequence)); err != nil {
			return nil, err
		}
		wait, err := millis("debounce_ms", req.Wait, 0, time.Second, driver.MaxPeriod)
		if err != nil {
			return nil, err
		}
		most, err := millis("max_wait_ms", req.MaxWait, 0, wait, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		return enqueue.Debounce{Key: req.Key, Wait: wait, MaxWait: most, Leading: req.Leading}, nil
	}
	if err := cmp.Or(unset(forSequence, sequence), unset("is for a debounce, which has debounce_ms", debounce)); err != nil {
		return nil, err
	}
	until, err := oneOf("until", req.Until, untils)
	if err != nil {
		return nil, err
	}
	policy, err := oneOf("on_conflict", req.OnConflict, conflicts)
	if err != nil {
		return nil, err
	}
	cooldown, err := millis("cooldown_ms", req.Cooldown, 0, driver.MinPeriod, driver.MaxPeriod)
	if err != nil {
		return nil, err
	}
	return enqueue.Unique{Key: req.Key, UntilStarted: until > 0, OnConflict: enqueue.OnConflict(policy), Cooldown: cooldown}, nil
}

const forSequence = "is for \"sequence\":true"

// field is the name of a request's field, and whether the field is set.
type field struct {
	name string
	set  bool
}

// unset returns a problem if one of fields is set, or nil. The parameter what says why the field must not be set.
func unset(what string, fields []field) error {
	if i := slices.IndexFunc(fields, func(f field) bool { return f.set }); i >= 0 {
		return problem.New(http.StatusBadRequest, problem.Invalid, "%s %s", fields[i].name, what)
	}
	return nil
}
