package pages

import (
	"strings"
	"testing"
)

// Lines end between the parts of a name, but not before a number at its end.
func TestWhereLinesEnd(t *testing.T) {
	for name, want := range map[string]string{
		"webhooks:shop-2":                "webhooks:|shop-2",
		"cron-2:9":                       "cron-2:9",
		"web1:80":                        "web1:80",
		"report:monthly":                 "report:|monthly",
		"export:acct-7":                  "export:|acct-7",
		"a":                              "a",
		"":                               "",
		"x/":                             "x/",
		"default/01a208ef-aaaa-bbbb-c-1": "default/|01a208ef-|aaaa-|bbbb-c-1",
		"a-b-c-d-e-f-g-h-i-j-k-l-m-n":    "a-b-c-d-e-f-g-h-i-j-k-|l-m-n",
		"Émile:ünï-2 b":                  "Émile:|ünï-2 b",
	} {
		html := string(breaks(name))
		got := strings.NewReplacer(`<span class="w">`, "", "</span>", "", "<wbr>", "|").Replace(html)
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got := string(breaks("<b>:&x")); strings.Contains(got, "<b>") || !strings.Contains(got, "&lt;b&gt;:&amp;x") {
		t.Error(got)
	}
}
