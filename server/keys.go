package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// lock returns one key. The ETag changes with the key's fence, state and number of waiters, but not with remaining times.
func (s *Server) lock(c *call, q *routes.KeyQuery) (l ops.Lock, err error) {
	key, err := c.keyFrom(q.Key)
	if err != nil {
		return l, err
	}
	if l, err = s.desk.Lock(c.r.Context(), key); err != nil {
		return l, err
	}
	c.etag = entityTag(l)
	for _, given := range strings.Split(c.r.Header.Get("If-None-Match"), ",") {
		if given = strings.TrimSpace(given); given == c.etag || given == "W/"+c.etag || given == "*" && l.Fence != 0 {
			c.w.Header().Set("ETag", c.etag)
			c.writeEmpty(http.StatusNotModified)
			break
		}
	}
	return l, nil
}

func entityTag(l ops.Lock) string { return fmt.Sprintf(`"%d-%s-%d"`, l.Fence, l.State, l.Waiters) }

func (s *Server) explain(c *call, q *routes.KeyQuery) (ops.Explanation, error) {
	key, err := c.keyFrom(q.Key)
	if err != nil {
		return ops.Explanation{}, err
	}
	return s.desk.Explain(c.r.Context(), key)
}

func (s *Server) line(c *call, q *routes.LineQuery) (routes.List[ops.Waiter], error) {
	key, err := c.keyFrom(q.Key)
	if err != nil {
		return routes.List[ops.Waiter]{}, err
	}
	return cut(c, cmp.Or(q.Limit, listMost), func(ctx context.Context) iter.Seq2[ops.Waiter, error] { return s.desk.Waiters(ctx, key) })
}

func (s *Server) permits(c *call, q *routes.PermitsQuery) (ops.Permits, error) {
	key, err := c.keyFrom(q.Key)
	if err != nil {
		return ops.Permits{}, err
	}
	return s.desk.Permits(c.r.Context(), key, q.N)
}

// locks lists the locks whose keys begin with a prefix. A caller with prefixes must name one of them.
func (s *Server) locks(c *call, q *routes.LocksQuery) (l routes.List[ops.Lock], err error) {
	if err := c.usePrefix(&q.Prefix); err != nil {
		return l, err
	}
	if q.Queue != "" && !c.who.mayEnqueueIn(q.Queue) {
		return l, foreignQueue()
	}
	page, err := s.desk.LocksPage(c.r.Context(), q.LocksQuery, q.Cursor, cmp.Or(q.Limit, listMost))
	return routes.List[ops.Lock]{Items: page.Items, Next: page.Next}, err
}

// usePrefix refuses a prefix that covers keys that the caller may not use. A caller with a single prefix need not name
// it.
func (c *call) usePrefix(prefix *string) error {
	if *prefix == "" && len(c.who.Prefixes) == 1 {
		*prefix = c.who.Prefixes[0]
	}
	if !c.who.mayUse(*prefix) {
		return problem.New(http.StatusForbidden, problem.Forbidden, "prefix must begin with one of the caller's own prefixes")
	}
	return nil
}

func (s *Server) statuses(c *call, req *routes.StatusesRequest) (l routes.List[ops.Lock], err error) {
	const most = 1000
	if len(req.Keys) < 1 || len(req.Keys) > most {
		return l, problem.New(http.StatusBadRequest, problem.Invalid, "keys has %d keys, must have 1 to %d", len(req.Keys), most)
	}
	for _, key := range req.Keys {
		if err := c.useKey(key); err != nil {
			return l, err
		}
	}
	c.key = ""
	l.Items, err = s.desk.Read(c.r.Context(), req.Keys...)
	return l, err
}

// mayFree refuses an action on a key that the caller may not perform. If-Match has the fence of the holding that the
// caller has seen. To skip a job, the caller also needs a right to the job's queue.
func (c *call) mayFree(verb *ops.Verb, key *string, req any) (err error) {
	if *key, err = c.keyFrom(*key); err == nil {
		err = c.seen(req)
	}
	if _, skips := verb.Action.(ops.SkipJob); err != nil || !skips || c.who.AllQueues {
		return err
	}
	locks, err := c.s.desk.Read(c.r.Context(), *key)
	if err != nil {
		return err
	}
	return c.useJob(locks[0].Job)
}

// keyProblem returns the problem for an error of an action on a key.
func keyProblem(err error) error {
	e := (*joblock.Error)(nil)
	full := errors.As(err, &e) && (e.Detail != "" || e.Key != "") // the error is more than a sentinel
	switch {
	case full && errors.Is(err, joblock.ErrNotOwner):
		return moved{err}
	case full:
		return err
	case errors.Is(err, joblock.ErrNotOwner):
		p := problem.NotHolder("the key has another fence by now")
		p.Status = http.StatusPreconditionFailed
		return p
	}
	return taskProblem(err)
}

// moved is the error for a key whose holding is no longer the one that the caller has seen. It is answered with 412.
type moved struct{ error }

func (m moved) Unwrap() error { return m.error }

// history returns what is known of the past of a key. It includes operators' actions only for callers with the scope
// admin.
func (s *Server) history(c *call, q *routes.HistoryQuery) (h ops.History, err error) {
	if q.Key, err = c.keyFrom(q.Key); err != nil {
		return h, err
	}
	if !s.desk.HasJournal() {
		return h, noJournal()
	}
	q.Actions = c.who.may(ScopeAdmin)
	return s.desk.History(c.r.Context(), q.HistoryQuery)
}
