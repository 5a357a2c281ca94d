package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/joblock/toolkit/server/internal/routes"
)

// A feed follows the journal that a server reads.
type feed struct {
	c    *Client
	op   call
	at   string      // the place after the last event; "" until a server has sent one
	s    *feedStream // nil if there is none
	away bool        // the server said that its journal does not answer
}

// feedSilence is the time without a line after which a stream counts as dead. A server writes a line every 15 seconds.
const feedSilence = 40 * time.Second

// Follow returns a Feed of the events after a place: "" means from now on, or from EventsQuery.Since if that is set; "0"
// means from the oldest event; anything else must be an Event.ID or a Feed.Position. Follow sends nothing.
func (c *Client) Follow(q EventsQuery, after string) (Feed, error) {
	op, err := callOf("follow events", &routes.Events.Row, routes.EventsQuery{EventsQuery: q, After: after})
	return &feed{c: c, op: op}, err
}

// Position returns the place after the events that Next has returned, or "" until a server has sent a place.
func (f *feed) Position() string { return f.at }

// Close ends the Feed.
func (f *feed) Close() {
	if f.s != nil {
		f.s.close()
	}
	f.s, f.away = nil, false
}

// Next returns the next events, the oldest first, as soon as there are any. If none comes within atMost, Next returns
// none. If events in between were lost, an Event of the kind "gap" takes their place. When a stream ends, Next continues
// at the same place, at another replica if necessary.
//
// After an error that matches joblock.ErrUnavailable, or the cause of ctx, Next can be called again.
func (f *feed) Next(ctx context.Context, atMost time.Duration) ([]Event, error) {
	over := time.NewTimer(atMost)
	defer over.Stop()
	for {
		if f.s == nil {
			if err := f.open(ctx); err != nil {
				return nil, err
			}
		}
		s := f.s
		select {
		case b := <-s.blocks:
			if b.err != nil {
				f.Close()
				if !s.lived {
					return nil, unanswered(f.op, s.base, b.err)
				}
				continue // the server closes, or a proxy ended the stream: another stream continues
			}
			s.lived, f.away = true, b.away
			if b.id != "" {
				f.at = b.id
			}
			switch {
			case b.away:
				return nil, f.noJournal()
			case b.event != nil:
				return f.also(*b.event), nil
			}
		case <-over.C:
			if f.away {
				return nil, f.noJournal()
			}
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// also returns e, and the events that have arrived with it.
func (f *feed) also(e Event) []Event {
	events := []Event{e}
	for {
		select {
		case b := <-f.s.blocks:
			if b.err != nil {
				f.Close()
				return events
			}
			if f.away = b.away; b.id != "" {
				f.at = b.id
			}
			if b.event != nil {
				events = append(events, *b.event)
			}
		default:
			return events
		}
	}
}

func (f *feed) noJournal() error {
	return unanswered(f.op, f.s.base, errors.New("its journal does not answer"))
}

// open starts a stream at the replica that answered last, or at one after it.
func (f *feed) open(ctx context.Context) (err error) {
	op := f.op
	op.header = http.Header{"Accept": {"text/event-stream"}}
	if f.at != "" {
		op.header.Set("Last-Event-ID", f.at)
	}
	n := int64(len(f.c.urls))
	start := f.c.at.Load()
	for i := range n {
		at := (start + i) % n
		if f.s, err = openFeed(ctx, f.c, f.c.urls[at], op); err == nil {
			f.c.at.Store(at)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !next(err, true) {
			return err
		}
	}
	return err
}

// A feedStream is an answer with server-sent events.
type feedStream struct {
	base   string
	blocks chan block
	close  func()
	lived  bool // a block has arrived
}

// A block is the text between two empty lines of the stream.
type block struct {
	id    string
	event *Event
	away  bool  // the journal does not answer
	err   error // the end of the stream
}

// openFeed opens a stream at a replica. The stream outlives ctx.
func openFeed(ctx context.Context, c *Client, base string, op call) (*feedStream, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	asked, hangUp := context.WithCancel(own)
	stop := context.AfterFunc(ctx, cancel)
	late := time.AfterFunc(c.cfg.Timeout/time.Duration(len(c.urls)), cancel)
	res, err := c.send(asked, base, op, nil)
	late.Stop()
	if err == nil && res.StatusCode != http.StatusOK {
		err = op.read(res)
	} else if err == nil && !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err = unanswered(op, base, errors.New("the answer is not a stream of events"))
	}
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		if res != nil {
			_ = res.Body.Close()
		}
		stop()
		hangUp()
		cancel()
		return nil, err
	}
	s := &feedStream{base: base, blocks: make(chan block)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.pump(own, hangUp, res.Body)
	}()
	s.close = func() {
		hangUp()
		cancel()
		_ = res.Body.Close()
		<-ended
	}
	return s, nil
}

// pump reads blocks until the stream or ctx ends. It calls hangUp if no block comes for feedSilence.
func (s *feedStream) pump(ctx context.Context, hangUp func(), from io.Reader) {
	silent := time.AfterFunc(feedSilence, hangUp)
	defer silent.Stop()
	lines := bufio.NewReader(from)
	for {
		silent.Reset(feedSilence)
		b := readBlock(lines)
		silent.Stop() // the time that the reader takes does not count
		select {
		case s.blocks <- b:
		case <-ctx.Done():
			return
		}
		if b.err != nil {
			return
		}
	}
}

// readBlock reads lines up to an empty one. A block without its empty line is discarded.
func readBlock(lines *bufio.Reader) (b block) {
	var data []byte
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return block{err: err}
		}
		text = bytes.TrimRight(text, "\r\n")
		name, value, _ := bytes.Cut(text, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(text) == 0 && len(data) > 0:
			b.event = new(Event)
			if err := json.Unmarshal(data, b.event); err != nil {
				return block{err: err}
			}
			return b
		case len(text) == 0:
			return b
		case len(name) == 0:
			b.away = bytes.Contains(value, []byte("does not answer"))
		case string(name) == "id":
			b.id = string(value)
		case string(name) == "data":
			data = append(append(data, value...), '\n')
		}
	}
}
