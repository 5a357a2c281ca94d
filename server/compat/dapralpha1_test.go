package compat

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestDaprAlpha1Examples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, memoryStore())
		v := newVisitor(t, mounted(t)(DaprAlpha1(a.s, map[string]string{"redisStore": "shop||"})), "dapr-alpha1.txt")
		header := http.Header{"Content-Type": {"application/json"}}
		try := func(section, path, body, says string, status int, object string) {
			t.Helper()
			w := v.send("POST", path, header, body)
			v.want(section, w, status, object)
			v.note(section, "POST "+path+" "+body, says, w.Code, w.Body.String())
		}
		path := func(section string) string {
			_, p, _ := strings.Cut(v.example(section), "<daprPort>")
			return strings.Replace(p, "<storename>", "redisStore", 1)
		}
		for _, verb := range []string{"Lock", "Unlock"} {
			_, asPrinted, _, body := curl(t, v.example(verb+", Examples"))
			try(verb+", Examples", asPrinted, body, "200, but the path names no version that Dapr serves", 404, "")
			success := v.example(verb + ", HTTP Response Body")
			try(verb+", Examples, with the path of HTTP Request", path(verb+", HTTP Request"), body, "200 `"+strings.Join(strings.Fields(success), " ")+"`", 200, success)
			if verb == "Lock" {
				a.wantState("shop||lock1", joblock.StateHeld)
			}
			try(verb+", HTTP Request Body", path(verb+", HTTP Request"), v.example(verb+", HTTP Request Body"), "400 Malformed request", 400, "")
		}
		a.wantState("shop||lock1", joblock.StateFree)
		codes := v.example("Unlock, Response codes")
		_, _, _, body := curl(t, v.example("Lock, Examples"))
		_, _, _, unlock := curl(t, v.example("Unlock, Examples"))
		say := func(n int) string { return "200, " + strings.ReplaceAll(strings.Split(codes, "\n")[n], "  |", " is") }
		try("Unlock, Response codes", path("Unlock, HTTP Request"), unlock, say(1), 200, `{"status":1}`)
		try("Lock, Examples, with the path of HTTP Request", path("Lock, HTTP Request"), body, "200", 200, `{"success":true}`)
		try("Lock, Examples, again", path("Lock, HTTP Request"), body, "200", 200, `{"success":false}`)
		try("Unlock, Response codes", path("Unlock, HTTP Request"), strings.Replace(unlock, "vader", "luke", 1), say(2), 200, `{"status":2}`)
		try("Unlock, Response codes", path("Unlock, HTTP Request"), unlock, say(0), 200, `{"status":0}`)
		v.done("dapr-alpha1")
	})
}

// The errors have Dapr's codes, in Dapr's order of checks.
func TestDaprAlpha1Errors(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		v := &visitor{T: t, h: mounted(t)(DaprAlpha1(a.s, map[string]string{"s": "p:"}))}
		none := &visitor{T: t, h: mounted(t)(DaprAlpha1(a.s, nil))}
		header := http.Header{"Content-Type": {"application/json"}}
		const lock, unlock = "/v1.0-alpha1/lock/", "/v1.0-alpha1/unlock/"
		for _, c := range []struct {
			v            *visitor
			path, body   string
			status       int
			has, comment string
		}{
			{v, lock + "s", `{"resourceId":"r","lockOwner":"o","expiryInSeconds":-1}`, 400, "ERR_EXPIRY_NOT_POSITIVE", ""},
			{v, lock + "s", `{`, 400, "ERR_MALFORMED_REQUEST", ""},
			{v, lock + "s", `{"resourceId":"r","lockOwner":"o","expiryInSeconds":1.5}`, 400, "ERR_MALFORMED_REQUEST", ""},
			{v, lock + "s", `{"resourceId":"r","lockOwner":"o","expiryInSeconds":1000000}`, 400, "at most 86400", ""},
			{none, lock + "s", `{"resourceId":"r","lockOwner":"o","expiryInSeconds":1}`, 500, "ERR_LOCK_NOT_CONFIGURED", ""},
			{v, lock + "t", `{"lockOwner":"o","expiryInSeconds":1}`, 400, "ERR_RESOURCE_ID_EMPTY", "before the store"},
			{v, lock + "t", `{"resourceId":"r","expiryInSeconds":1}`, 400, "ERR_OWNER_EMPTY", "before the store"},
			{v, lock + "t", `{"resourceId":"r","lockOwner":"o","expiryInSeconds":1}`, 404, "ERR_LOCK_NOT_FOUND", ""},
			{v, lock + "s", `{"resourceId":"\u0000","lockOwner":"o","expiryInSeconds":1}`, 400, "ERR_MALFORMED_REQUEST", ""},
			{v, unlock + "s", `{"lockOwner":"o"}`, 400, "ERR_RESOURCE_ID_EMPTY", ""},
			{v, unlock + "s", `{"resourceId":"r"}`, 400, "ERR_OWNER_EMPTY", ""},
			{v, unlock + "t", `{"resourceId":"r","lockOwner":"o"}`, 404, "ERR_LOCK_NOT_FOUND", ""},
			{v, lock + "s", `{"resourceId":"r","lockOwner":"` + strings.Repeat("o", 1000) + `","expiryInSeconds":"2","new":1}`, 200, "true", ""},
		} {
			w := c.v.send("POST", c.path, header, c.body)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
				t.Errorf("%s %s: %d %s, want %d %s %s", c.path, c.body, w.Code, w.Body, c.status, c.has, c.comment)
			}
		}
		a.wantState("p:r", joblock.StateHeld)
		time.Sleep(3 * time.Second) // no renewal
		a.wantState("p:r", joblock.StateFree)
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire, faultstore.Inspect)
		for path, code := range map[string]string{lock + "s": "ERR_TRY_LOCK", unlock + "s": "ERR_UNLOCK"} {
			w := v.send("POST", path, header, `{"resourceId":"r","lockOwner":"o","expiryInSeconds":1}`)
			if w.Code != 500 || !strings.Contains(w.Body.String(), code) {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		a.store.Clear(faultstore.Acquire, faultstore.Inspect)
	})
}
