package controls

import (
	"context"
	"testing"
	"time"
)

func TestPaused(t *testing.T) {
	now := time.Now()
	hour, day := now.Add(time.Hour), now.Add(24*time.Hour)
	set := Set{Pauses: []Pause{
		{Key: "a", Until: hour},
		{Key: "a:b", Until: day},
		{Key: "a:b:c"},
		{Key: "a:b:c:d", Until: hour},
		{Key: "ended", Until: now.Add(-time.Hour)},
		{Key: "resumed", Resumed: now},
		{Key: "z", Until: day},
	}}
	for _, tt := range []struct {
		keys []string
		want string // the key of the pause; "" means none
	}{
		{[]string{"a"}, "a"},
		{[]string{"a:x"}, "a"},
		{[]string{"ab"}, ""},
		{[]string{"ab:c"}, ""},
		{[]string{"a:b"}, "a:b"},
		{[]string{"a:b:x"}, "a:b"},
		{[]string{"a:b:c:d"}, "a:b:c"}, // the one without an end
		{[]string{"a:x", "z"}, "z"},    // the one that ends last
		{[]string{"z", "a:x"}, "z"},
		{[]string{"free", "a"}, "a"},
		{[]string{"ended"}, ""},
		{[]string{"resumed:x"}, ""},
		{nil, ""},
	} {
		if p, ok := set.Paused(tt.keys...); p.Key != tt.want || ok != (tt.want != "") {
			t.Errorf("%q: %q, %t; want %q", tt.keys, p.Key, ok, tt.want)
		}
	}
	set.ahead = 2 * time.Hour // of the store's clock
	if p, ok := set.Paused("a"); ok {
		t.Errorf("by the store's clock the pause has ended: %+v", p)
	}
}

func TestStale(t *testing.T) {
	old := time.Now().Add(-31 * 24 * time.Hour)
	for name, tt := range map[string]struct {
		set  Set
		want bool
	}{
		"empty":           {Set{written: old}, false},
		"a pause":         {Set{Pauses: []Pause{{Key: "k"}}, written: old}, true},
		"a limit":         {Set{Limits: []Limit{{Name: "n"}}, written: old}, true},
		"written lately":  {Set{Pauses: []Pause{{Key: "k"}}, written: old.Add(2 * 24 * time.Hour)}, false},
		"the store ahead": {Set{Pauses: []Pause{{Key: "k"}}, written: old.Add(2 * 24 * time.Hour), ahead: 2 * 24 * time.Hour}, true},
	} {
		if got := tt.set.Stale(); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// A read that was asked for earlier, and answers later, replaces nothing.
func TestReaderKeepsTheNewest(t *testing.T) {
	slow, answered := make(chan struct{}), make(chan struct{})
	value := 1
	r := NewReader(func(context.Context) (Record, error) {
		set := Set{Limits: []Limit{{Name: "n", Value: value}}}
		if value == 1 {
			value = 2
			close(answered)
			<-slow
		}
		return Record{Memo: set.Encode()}, nil
	})
	first := make(chan error)
	go func() {
		_, err := r.Fresh(context.Background())
		first <- err
	}()
	<-answered
	if _, err := r.Fresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	close(slow)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if got := r.Limit(context.Background(), "n", 7, 100); got != 2 {
		t.Errorf("the limit is %d, want that of the later read, 2", got)
	}
	if got := r.Limit(context.Background(), "n", 7, 1); got != 1 {
		t.Errorf("the limit is %d, more than is allowed, 1", got)
	}
	if got := r.Limit(context.Background(), "other", 7, 1); got != 7 {
		t.Errorf("the limit without a value is %d, want that of the code, 7", got)
	}
}
