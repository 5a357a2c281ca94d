package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

func (s *Server) jobs(c *call, q *routes.JobsQuery) (l routes.List[ops.Job], err error) {
	if err := c.usePrefix(&q.Prefix); err != nil {
		return l, err
	}
	if q.Queue != "" && !c.who.mayEnqueueIn(q.Queue) {
		return l, foreignQueue()
	}
	if !c.who.AllQueues {
		q.May = func(job string) bool { return c.useJob(job) == nil }
	}
	page, err := s.desk.JobsPage(c.r.Context(), q.JobsQuery, q.Cursor, cmp.Or(q.Limit, listMost))
	return routes.List[ops.Job]{Items: page.Items, Next: page.Next, More: page.Next != ""}, err
}

// controls returns the pauses of keys and the values of named limits.
func (s *Server) controls(c *call, _ *routes.Empty) (ops.Controls, error) {
	return s.desk.Controls(c.r.Context())
}

// sequences lists the lines of jobs, those that have halted first. There is only one page: the sequences that need an
// operator come first.
func (s *Server) sequences(c *call, q *routes.SequencesQuery) (l routes.List[ops.Sequence], err error) {
	if err := c.usePrefix(&q.Prefix); err != nil {
		return l, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	l.Items = []ops.Sequence{}
	for seq, err := range s.desk.Sequences(ctx, q.SequencesQuery) {
		if err != nil && ctx.Err() != nil && !c.ended() {
			l.More = true
			break
		}
		if err != nil {
			return l, err
		}
		if seq.Job == "" || c.useJob(seq.Job) == nil {
			l.Items = append(l.Items, seq)
		}
	}
	slices.SortFunc(l.Items, ops.CompareSequences)
	if most := cmp.Or(q.Limit, listMost); len(l.Items) > most {
		l.Items, l.More = l.Items[:most], true
	}
	return l, nil
}

func foreignQueue() *problem.Problem {
	return problem.New(http.StatusForbidden, problem.Forbidden, "the caller may not see or use jobs of this queue")
}

// job shows a job: its locks and places, and its task. The ETag is the step of the task.
func (s *Server) job(c *call, q *routes.JobQuery) (a routes.JobAnswer, err error) {
	if !c.who.mayEnqueueIn(q.Queue) {
		return a, foreignQueue()
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	a.Items, a.Task, err = s.desk.Job(ctx, ops.Task{Queue: q.Queue, ID: q.ID}.Job())
	a.More = err != nil && ctx.Err() != nil && !c.ended()
	if err != nil && !a.More {
		return a, err
	}
	a.Items = slices.DeleteFunc(a.Items, func(j ops.Job) bool { return !c.who.mayUse(j.Key) })
	if !c.who.AllKeys && len(a.Items) == 0 {
		a.Task = ops.Task{State: ops.TaskUnknown, Problem: "The job has no lock that the caller may see."}
	}
	if a.Task.Step != "" {
		c.etag = strconv.Quote(a.Task.Step)
	}
	return a, nil
}

// maySteer refuses an action on a task that the caller may not perform. With AllKeys the task's queue decides. Otherwise
// the task must carry locks, and the caller must be allowed to use all of their keys. Locks bound to the job give no
// right, because their holders bind them.
func (c *call) maySteer(queue, id string, req any) error {
	if err := c.seen(req); err != nil {
		return err
	}
	if !c.who.mayEnqueueIn(queue) {
		return foreignQueue()
	}
	if c.who.AllKeys {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	own, err := c.s.desk.CarriesOnly(ctx, ops.Task{Queue: queue, ID: id}.Job(), c.who.mayUse)
	if err != nil {
		return taskProblem(err)
	}
	if !own {
		return problem.New(http.StatusForbidden, problem.Forbidden, "the task carries no lock, or a lock that the caller may not use")
	}
	return nil
}

// taskProblem returns the problem for an error about a task, with a text that names the task.
func taskProblem(err error) error {
	text := strings.TrimPrefix(err.Error(), "joblock: ")
	switch {
	case errors.Is(err, ops.ErrNotRecorded):
		return err
	case errors.Is(err, ops.ErrMovedOn):
		return problem.New(http.StatusPreconditionFailed, problem.TaskState, "%s", text)
	case errors.Is(err, joblock.ErrBusy):
		return problem.New(http.StatusConflict, problem.TaskState, "%s", text)
	case errors.Is(err, joblock.ErrNotFound):
		return problem.New(http.StatusNotFound, problem.NoTask, "%s", text)
	}
	if e := (*joblock.Error)(nil); errors.As(err, &e) && (e.Detail != "" || e.Key != "") { // the error is more than a sentinel
		return err
	}
	switch {
	case errors.Is(err, joblock.ErrInvalid):
		return problem.New(http.StatusBadRequest, problem.Invalid, "%s", text)
	case errors.Is(err, joblock.ErrUnavailable):
		return problem.New(http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrUnavailable), "asynq did not answer: it is unknown whether the call took effect").Again(time.Second)
	}
	return err
}
