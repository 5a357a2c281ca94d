package joblock_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/joblock/toolkit/joblock/event"
)

func TestObservers(t *testing.T) {
	if event.Observers() != nil || event.Observers(nil, nil) != nil {
		t.Error("event.Observers without observers is not nil")
	}
	var told []string
	to := func(name string) event.Observer { return func(e event.Event) { told = append(told, name+" "+e.Key) } }
	event.Observers(nil, to("a"), nil, to("b"))(event.Event{Key: "one"})
	event.Observers(nil, to("b"))(event.Event{Key: "two"})
	if want := []string{"a one", "b one", "b two"}; !slices.Equal(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}
}

func TestKindsHaveNames(t *testing.T) {
	if got := event.Kind(0).String(); got != "" {
		t.Errorf("the zero Kind is %q", got)
	}
	seen := map[string]bool{"": true, "unknown": true}
	for k := event.Acquired; k <= event.RateLimited; k++ {
		if name := k.String(); seen[name] {
			t.Errorf("kind %d is %q", k, name)
		} else {
			seen[name] = true
		}
		var read event.Kind
		text, err := json.Marshal(k)
		if err != nil || string(text) != strconv.Quote(k.String()) {
			t.Errorf("%s in JSON is %s, %v", k, text, err)
		}
		if err := json.Unmarshal(text, &read); err != nil || read != k {
			t.Errorf("%s was read as %s, %v", text, read, err)
		}
	}
	if got := (event.HeldBack + 1).String(); got != "unknown" {
		t.Errorf("a Kind beyond the last is %q", got)
	}
	read := event.Lost
	if err := read.UnmarshalText([]byte("of a later version")); err != nil || read.String() != "unknown" {
		t.Errorf("an unknown name: %v, and the Kind is %s", err, read)
	}
}
