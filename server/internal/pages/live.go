package pages

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	// tick is how often a stream looks for changes, so that a change is on the screen within a second.
	tick = 900 * time.Millisecond

	// heartbeat is the longest time for which a stream is silent.
	heartbeat = 15 * time.Second

	// streamTime is how long a stream lasts. The browser then opens the next one, for which the caller's rights are
	// checked again.
	streamTime = 5 * time.Minute

	// writeTime bounds one write of a stream.
	writeTime = 5 * time.Second

	mostStreams     = 500
	mostStreamsEach = 50
)

// streams counts the open streams.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

func (s *streams) enter(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= mostStreams || s.of[id] >= mostStreamsEach {
		return false
	}
	if s.of == nil {
		s.of = make(map[string]int)
	}
	s.all++
	s.of[id]++
	return true
}

func (s *streams) leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[id]--; s.of[id] == 0 {
		delete(s.of, id)
	}
}

// A message is what a stream sends: the parts of the page that have changed.
type message struct {
	Now   int64     `json:"now"` // the store's clock, in milliseconds
	Parts []section `json:"parts"`
}

type section struct {
	ID   string `json:"id"`
	HTML string `json:"html"`
}

// live serves the stream of a page: it renders the page again and again, and sends what has changed.
func (h *Handler) live(w http.ResponseWriter, r *http.Request, who *Caller) {
	q := r.URL.Query()
	p := h.page(one(q, "page"))
	q.Del("page")
	switch {
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", "GET")
		h.Problem(w, r, who, http.StatusMethodNotAllowed, "Nothing to send here", "Nothing was changed.")
		return
	case p == nil || !p.live || p.admin && !who.Admin:
		h.Problem(w, r, who, http.StatusNotFound, "No such stream", "The page has no stream.")
		return
	case !h.streams.enter(who.ID):
		w.Header().Set("Retry-After", "30")
		h.Problem(w, r, who, http.StatusServiceUnavailable, "Too many streams", "The page asks from time to time instead.")
		return
	}
	defer h.streams.leave(who.ID)
	if !h.enter() {
		h.Problem(w, r, who, http.StatusServiceUnavailable, "The server is closing", "Another replica serves the page.")
		return
	}
	defer h.busy.Done()
	every := tick
	if n, err := strconv.Atoi(one(q, "every")); err == nil && n > 1 {
		every = time.Duration(min(n, 60)) * time.Second
	}
	q.Del("every")

	hd := w.Header()
	hd.Set("Content-Type", "text/event-stream")
	hd.Set("X-Accel-Buffering", "no")
	s := &stream{w: w, rc: http.NewResponseController(w), seed: maphash.MakeSeed(), sent: make(map[string]uint64)}
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }()
	if s.write([]byte("retry: 2000\n\n")) != nil {
		return
	}
	kept := &sticky{}
	end := time.NewTimer(streamTime)
	defer end.Stop()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if who.ended(time.Now()) || s.look(h, r, p, who, q, kept, every) != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-h.ctx.Done():
			return
		}
	}
}

type stream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	seed maphash.Seed
	sent map[string]uint64 // by the id of a part: the hash of the part as sent last
	last time.Time         // when something was sent
}

// look renders the page once, and sends what has changed.
func (s *stream) look(h *Handler, r *http.Request, p *page, who *Caller, q url.Values, kept *sticky, every time.Duration) error {
	v := h.view(p.name, q, who)
	v.Live, v.sticky, v.Every = true, kept, "every second"
	if every > tick {
		v.Every = "every " + length(every)
	}
	var out bytes.Buffer
	it, err := p.make(r.Context(), v)
	if err == nil {
		v.Now = h.storeNow()
		v.Pauses = h.pauses()
		err = h.render(&out, v, it)
	} else {
		v.parts = nil
		v.notice("%s", h.explain(err).text)
		_, err = v.Part("banner", "banner", nil)
	}
	if err != nil {
		h.cfg.Logger.Error("server: rendering a stream failed", "page", p.name, "err", err)
		return err
	}
	m := message{Now: v.Now.UnixMilli()}
	for i := 0; i < len(v.parts); i++ {
		p := v.parts[i]
		inside := v.parts[i+1 : i+1+p.inner]
		sum := p.sum(s.seed, inside)
		if s.sent[p.id] == sum {
			continue
		}
		s.sent[p.id] = sum
		m.Parts = append(m.Parts, section{p.id, string(p.html)})
		for _, in := range inside { // these parts are sent with it
			s.sent[in.id] = in.sum(s.seed, nil)
		}
		i += p.inner
	}
	switch {
	case len(m.Parts) > 0:
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return s.write(append(append([]byte("data: "), text...), '\n', '\n'))
	case time.Since(s.last) > heartbeat:
		return s.write([]byte(":\n\n"))
	}
	return nil
}

func (s *stream) write(text []byte) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTime)) // not every ResponseWriter has deadlines
	s.last = time.Now()
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.rc.Flush()
}
