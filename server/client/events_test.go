package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/client"
)

// A script answers requests for events, one after the other.
type script struct {
	*testing.T
	asked   []string // host, the parameter after, and Last-Event-ID
	answers []func(r *http.Request) (*http.Response, error)
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, strings.TrimSpace(r.Host+" "+r.URL.Query().Get("after")+" "+r.Header.Get("Last-Event-ID")))
	if len(s.answers) == 0 {
		return nil, errors.New("no answers left")
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	return next(r)
}

// streams answers with these texts, one a second, and then stays silent or ends.
func streams(ends bool, texts ...string) func(r *http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		from, to := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = from.CloseWithError(r.Context().Err()) })
		go func() {
			for _, text := range texts {
				if _, err := io.WriteString(to, text); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
			if ends {
				_ = to.Close()
			}
		}()
		return &http.Response{StatusCode: 200, Status: "200 OK", Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: from, Request: r}, nil
	}
}

func event(id, key string) string {
	return fmt.Sprintf("id: %s\ndata: {\"id\":%q,\"kind\":\"lost\",\"key\":%q}\n\n", id, id, key)
}

// following runs f with a Feed, in virtual time.
func following(t *testing.T, after string, f func(t *testing.T, s *script, feed client.Feed)) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{T: t}
		c, err := client.New(client.Config{URLs: []string{"http://a", "http://b"}, HTTP: &http.Client{Transport: s}})
		testkit.WantNil(t, "New", err)
		feed, err := c.Follow(client.EventsQuery{}, after)
		testkit.WantNil(t, "Follow", err)
		f(t, s, feed)
		feed.Close()
		time.Sleep(time.Minute) // the servers of the script have ended
	})
}

// wants checks the keys of the events that come within ten minutes.
func wants(t *testing.T, feed client.Feed, keys ...string) {
	t.Helper()
	for len(keys) > 0 {
		events, err := feed.Next(t.Context(), 10*time.Minute)
		if err != nil || len(events) == 0 || len(events) > len(keys) {
			t.Fatalf("%v, %v, want %q", events, err, keys)
		}
		for _, e := range events {
			if e.Key != keys[0] {
				t.Errorf("%q, want %q", e.Key, keys[0])
			}
			keys = keys[1:]
		}
	}
}

// A stream that ends, and one that is silent for long, goes on at the same place. Half an event does not count.
func TestFeedGoesOn(t *testing.T) {
	following(t, "0", func(t *testing.T, s *script, feed client.Feed) {
		s.answers = []func(*http.Request) (*http.Response, error){
			streams(true, "id: 1-0\n\n", event("1-1", "a"), strings.TrimSuffix(event("1-2", "half"), "\n")),
			streams(false, event("1-2", "b")),
			streams(false, "id: 1-2\n\n", event("1-3", "c")),
		}
		wants(t, feed, "a", "b", "c")
		if got := strings.Join(s.asked, ", "); got != "a 0, a 0 1-1, a 0 1-2" || feed.Position() != "1-3" {
			t.Errorf("asked %s; at %s", got, feed.Position())
		}
	})
}

// A server that does not answer is an error that can be passed over, and another one is asked at the same place.
func TestFeedWithoutAnAnswer(t *testing.T) {
	following(t, "", func(t *testing.T, s *script, feed client.Feed) {
		s.answers = []func(*http.Request) (*http.Response, error){streams(true, event("7-1", "a"))}
		wants(t, feed, "a")
		_, err := feed.Next(t.Context(), time.Minute)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		refuses := func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }
		s.answers = []func(*http.Request) (*http.Response, error){refuses, streams(false, event("7-2", "b"))}
		s.asked = nil
		wants(t, feed, "b")
		if got := strings.Join(s.asked, ", "); got != "a  7-1, b  7-1" {
			t.Errorf("asked %s", got)
		}
		if events, err := feed.Next(t.Context(), time.Second); err != nil || len(events) > 0 {
			t.Errorf("%v, %v", events, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		cancel(why)
		if _, err := feed.Next(ctx, time.Minute); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}

// A server whose journal does not answer says so, and says when it does again.
func TestFeedOfAJournalThatIsAway(t *testing.T) {
	following(t, "", func(t *testing.T, s *script, feed client.Feed) {
		const away = ": the journal does not answer\n\n"
		s.answers = []func(*http.Request) (*http.Response, error){streams(false, "id: 1-0\n\n", away, away, event("1-1", "a"))}
		_, err := feed.Next(t.Context(), time.Minute)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		_, err = feed.Next(t.Context(), 0)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		_, err = feed.Next(t.Context(), time.Minute)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		wants(t, feed, "a")
		if events, err := feed.Next(t.Context(), 0); err != nil || len(events) > 0 {
			t.Errorf("%v, %v", events, err)
		}
		if len(s.asked) != 1 {
			t.Errorf("asked %q", s.asked)
		}
	})
}

// What is no stream of events is no reason to try forever.
func TestFeedThatIsRefused(t *testing.T) {
	following(t, "x", func(t *testing.T, s *script, feed client.Feed) {
		s.answers = []func(*http.Request) (*http.Response, error){func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 400, Status: "400 Bad Request", Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"code":"LOCK_INVALID","detail":"\"x\" is not the ID of an event"}`))}, nil
		}}
		_, err := feed.Next(t.Context(), time.Minute)
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
}
