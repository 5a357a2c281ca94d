package pages

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/joblock/toolkit/joblock"
)

// A server without scopes says which there are, and how to see them.
func TestScopesThatAreNotShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    *fake
		says []string
	}{
		"one":  {&fake{scopes: []string{"demo"}}, []string{"A scheduler has this scope: <b>demo</b>.", "<code>--scope demo</code>"}},
		"two":  {&fake{scopes: []string{"demo", "shop"}}, []string{"2 scopes: <b>demo</b>, <b>shop</b>.", "<code>--scope demo</code> <code>--scope shop</code>"}},
		"none": {&fake{}, []string{"No scheduler has run in the last year"}},
		"away": {&fake{err: errors.Join(errors.New("gone"), joblock.ErrUnavailable)}, []string{"The scopes of cron jobs could not be read: gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, err := New(Config{Desk: c.f, Recorded: true})
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				wantPage(t, h.get("cron", someone).Body.String(), true, c.says...)
				if c.f.err == nil { // else there is no overview
					wantPage(t, h.get("", someone).Body.String(), true, c.says...)
				}
				wantPage(t, h.get("cronjob?scope=demo&name=x", someone).Body.String(), true, "This server shows no scopes of cron jobs.")
			})
		})
	}
}
