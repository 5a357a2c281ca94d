package internal_test

import (
	"slices"
	"testing"

	"github.com/joblock/toolkit/internal/chain"
)

func TestIDsOfSteps(t *testing.T) {
	for _, l := range []chain.Link{
		chain.NewLink(2, false, "#1a2b3c4d5e", "default", "x"),
		chain.NewLink(3, true, "1a2b3c4d", "a:b%3A/c", "chain:2:y:z:"),
	} {
		if got, ok := chain.ParseID(l.String()); !ok || got != l {
			t.Errorf("%s is %+v, %t, want %+v", l, got, ok, l)
		}
		if !l.Follows(l.Step-1, l.Owner, l.Queue, l.ID) || l.Follows(l.Step, l.Owner, l.Queue, l.ID) || l.Follows(l.Step-1, "#other", l.Queue, l.ID) {
			t.Errorf("Follows of %s is wrong", l)
		}
	}
	for _, id := range []string{"", "x", "chain:", "chain:1:a:q:x", "chain:x:a:q:x", "chain:02:a:q:x", "chain:2:a:q", "chain:2:a:%3a:x"} {
		if got, ok := chain.ParseID(id); ok {
			t.Errorf("%q is the ID of %+v", id, got)
		}
	}
	if ids, first := chain.NewLink(2, true, "#1a2b3c4d", "q", "x").Before(); !first || !slices.Equal(ids, []string{"x"}) {
		t.Errorf("before the second step is %q, %t", ids, first)
	}
	if ids, first := chain.NewLink(3, true, "#1a2b3c4d", "q", "x").Before(); first || !slices.Equal(ids, []string{"chain:2:1a2b3c4d:q:x", "chain:2+:1a2b3c4d:q:x"}) {
		t.Errorf("before the third step is %q, %t", ids, first)
	}
}
