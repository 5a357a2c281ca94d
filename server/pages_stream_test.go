package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
)

// A stream tells of a change within a second, and does not move rows.
func TestStreamOfAPage(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		hs := HTTPServer(s.handler)
		lines := newPipes()
		served := make(chan struct{})
		go func() { defer close(served); _ = hs.Serve(lines) }()
		transport := &http.Transport{DialContext: lines.dial}
		listen := func(query string) (<-chan message, func()) {
			ctx, cancel := context.WithCancel(s.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/live?"+query, nil)
			testkit.WantNil(t, "NewRequest", err)
			res, err := transport.RoundTrip(r)
			testkit.WantNil(t, "RoundTrip", err)
			if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%d %v", res.StatusCode, res.Header)
			}
			all := make(chan message, 1000)
			go func() {
				defer close(all)
				defer res.Body.Close()
				for in := bufio.NewReader(res.Body); ; {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					if text, ok := strings.CutPrefix(line, "data: "); ok {
						var m message
						testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(text), &m))
						all <- m
					}
				}
			}()
			return all, cancel
		}
		list, leave := listen("page=locks")
		one, leaveOne := listen("page=lock&key=" + url.QueryEscape(jobKey))
		first := <-list
		rows := first.rows()
		if len(rows) != 3 || first.part("l-sum") == "" || first.part("banner") == "" || !strings.Contains(first.part("walk"), "are read every second") {
			t.Errorf("%+v", first)
		}
		<-one
		time.Sleep(5 * time.Second)
		drain(list)
		drain(one)
		began := time.Now()
		testkit.WantNil(t, "Force", ops.Force(s.Context(), s.locks, s.status(jobKey), true, "away"))
		for _, from := range []<-chan message{list, one} {
			m := <-from
			if time.Since(began) > time.Second {
				t.Errorf("notified after %s", time.Since(began))
			}
			if !strings.Contains(fmt.Sprint(m), "free") {
				t.Errorf("%+v", m)
			}
		}
		for i, pause := range []time.Duration{100, 950, 300} { // wherever between two looks the change comes
			time.Sleep(pause * time.Millisecond)
			drain(one)
			began := time.Now()
			if i%2 == 0 {
				_, err := s.locks.TryAcquire(s.Context(), jobKey)
				testkit.WantNil(t, "TryAcquire", err)
			} else {
				testkit.WantNil(t, "Force", ops.Force(s.Context(), s.locks, s.status(jobKey), false, "away"))
			}
			want := map[bool]string{true: "held", false: "free"}[i%2 == 0]
			for m := range one {
				if strings.Contains(m.part("k-now"), `class="state `+want) {
					break
				}
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s was shown after %s", want, took)
			}
		}
		// A new lock is counted, and no row moves.
		_, err := s.locks.TryAcquire(s.Context(), "aaa")
		testkit.WantNil(t, "TryAcquire", err)
		deadline := time.After(time.Minute)
		for told := false; !told; {
			select {
			case m := <-list:
				for _, row := range m.rows() {
					if !slices.Contains(rows, row) {
						t.Errorf("the stream brings the new row %s", row)
					}
				}
				told = strings.Contains(m.part("l-sum"), "1 more since")
			case <-deadline:
				t.Fatal("the page does not show the new lock")
			}
		}
		s.store.SetAll(faultstore.Fault{Mode: faultstore.Refuse})
		for m := range list {
			if strings.Contains(m.part("banner"), "does not answer") {
				break
			}
		}
		s.store.Clear()
		for m := range list {
			if strings.Contains(m.part("banner"), `id="banner"`) && !strings.Contains(m.part("banner"), "does not answer") {
				break
			}
		}
		leave()
		leaveOne()
		// Close ends the streams.
		last, _ := listen("page=overview")
		<-last
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		testkit.WantNil(t, "Close", s.s.Close(ctx))
		for range last {
		}
		s.open("locks").has(http.StatusServiceUnavailable)
		transport.CloseIdleConnections()
		_ = hs.Close()
		<-served
	})
}

type message struct {
	Now   int64 `json:"now"`
	Parts []struct{ ID, HTML string }
}

func (m message) part(id string) string {
	for _, p := range m.Parts {
		if p.ID == id {
			return p.HTML
		}
	}
	return ""
}

// rows returns the ids of the rows that came, alone or in a list.
func (m message) rows() (ids []string) {
	for _, p := range m.Parts {
		for _, begin := range strings.Split(p.HTML, `<tr id="`)[1:] {
			id, _, _ := strings.Cut(begin, `"`)
			ids = append(ids, id)
		}
	}
	return ids
}

func drain(c <-chan message) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}
