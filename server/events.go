package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// events returns past events in pages, the newest first. To a client that accepts server-sent events, it sends a stream
// of events from now on.
func (s *Server) events(c *call, q *routes.EventsQuery) (l routes.List[ops.Event], err error) {
	if q.Key != "" {
		err = c.useKey(q.Key)
	} else {
		err = c.usePrefix(&q.Prefix)
	}
	if err != nil {
		return l, err
	}
	if c.wantsStream() {
		after := cmp.Or(q.Last, q.After)
		if after == "" && !q.Since.IsZero() {
			after = fmt.Sprintf("%d-%d", max(1, q.Since.UnixMilli())-1, math.MaxInt64) // the place just before Since
		}
		return l, s.follow(c, q.EventsQuery, after)
	}
	if !s.desk.HasJournal() {
		return l, noJournal()
	}
	most := cmp.Or(q.Limit, listMost)
	l.Items = []ops.Event{}
	for e, err := range s.desk.Events(c.r.Context(), q.EventsQuery) {
		if err != nil {
			return l, err
		}
		if len(l.Items) == most {
			l.Next = l.Items[most-1].ID
			break
		}
		l.Items = append(l.Items, e)
	}
	return l, nil
}

func noJournal() *problem.Problem {
	return problem.New(http.StatusNotFound, problem.NoJournal, "this server reads no journal: server.Config.Redis is not set")
}

// wantsStream reports whether the client accepts server-sent events, by name.
func (c *call) wantsStream() bool {
	return slices.ContainsFunc(strings.Split(strings.Join(c.r.Header.Values("Accept"), ","), ","), func(part string) bool {
		kind, _, err := mime.ParseMediaType(part)
		return err == nil && kind == "text/event-stream"
	})
}

const (
	// feedBeat is the longest time between two lines of a stream of events, so that proxies keep it open and a
	// disconnected client is noticed. The line also has the place at which a client that reconnects continues.
	feedBeat = 15 * time.Second

	// feedPause is how long a stream waits after the journal failed to answer.
	feedPause = time.Second
)

// follow answers with a stream of events. The ID of each event is the place at which a client resumes, by Last-Event-ID.
func (s *Server) follow(c *call, ask ops.EventsQuery, after string) error {
	if ask.Before != "" {
		return problem.New(http.StatusBadRequest, problem.Invalid, "cursor is not for a stream; after says where a stream begins")
	}
	if !s.desk.HasJournal() {
		return noJournal()
	}
	feed, err := s.desk.Follow(ask, after)
	if err != nil {
		return err
	}
	leave, free := s.quotas.enter(c.who.ID)
	if !free {
		return c.tooManyStreams()
	}
	defer leave()
	done, err := s.begin(true)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := s.untilClosing(c.r.Context())
	defer cancel(nil)
	keys := cmp.Or(ask.Key, ask.Prefix)
	rights := c.watch(func(p *Principal) bool { return p.may(ScopeRead) && p.mayUse(keys) }, func(p *problem.Problem) { cancel(p) })
	defer rights.Stop()
	events, err := feed.Next(ctx, 0)
	if err != nil {
		return err
	}
	out := &eventStream{c: c, rc: http.NewResponseController(c.w)}
	out.begin()
	for {
		if err := out.write(events, feed.Position()); err != nil {
			return nil // the client has disconnected
		}
		events, err = feed.Next(ctx, feedBeat)
		for err != nil {
			if ctx.Err() != nil || !errors.Is(err, joblock.ErrUnavailable) {
				return nil // the client reconnects, and resumes at its place
			}
			if out.send([]byte(": the journal does not answer\n\n")) != nil || sleep.For(ctx, feedPause) != nil {
				return nil
			}
			events, err = feed.Next(ctx, feedBeat)
		}
	}
}

// An eventStream is an answer of server-sent events.
type eventStream struct {
	c  *call
	rc *http.ResponseController
}

func (o *eventStream) begin() {
	h := o.c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	if o.c.r.ProtoMajor == 1 {
		h.Set("Connection", "close") // because the write deadline stays set
	}
	o.c.w.WriteHeader(http.StatusOK)
}

// write writes events, and at, the place after them.
func (o *eventStream) write(events []ops.Event, at string) error {
	var out bytes.Buffer
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if e.Kind == ops.EventGap {
			out.WriteString("event: gap\n")
		}
		out.WriteString("id: " + e.ID + "\ndata: ")
		out.Write(text)
		out.WriteString("\n\n")
	}
	if len(events) == 0 || events[len(events)-1].ID != at {
		out.WriteString("id: " + at + "\n\n")
	}
	return o.send(out.Bytes())
}

func (o *eventStream) send(text []byte) error {
	_ = o.rc.SetWriteDeadline(time.Now().Add(answerTimeout)) // not every ResponseWriter has deadlines
	defer o.c.hurry(o.rc, closingWriteTimeout)()
	if _, err := o.c.w.Write(text); err != nil {
		return err
	}
	return o.rc.Flush()
}
