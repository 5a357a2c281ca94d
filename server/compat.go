package server

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// compactToken returns the token in a form without the key, for APIs that bound the length of a token. The form has
// fence and TTL, both in base 36, and the owner, with a dot between.
func compactToken(token joblock.Token) string {
	id := door.IdentityOf(token)
	return strconv.FormatInt(id.Fence, 36) + "." + strconv.FormatInt(id.TTL.Milliseconds(), 36) + "." + id.Owner
}

// parseCompactToken returns the token of key that text names. The result is false for a text that is no compact token.
func parseCompactToken(key, text string) (joblock.Token, bool) {
	fence, rest, _ := strings.Cut(text, ".")
	ttl, owner, _ := strings.Cut(rest, ".")
	n, err1 := strconv.ParseInt(fence, 36, 64)
	ms, err2 := strconv.ParseInt(ttl, 36, 64)
	if err1 != nil || err2 != nil || n < 1 || ms < 1 || ms > maxMillis {
		return joblock.Token{}, false
	}
	token, err := joblock.NewToken(key, owner, time.Duration(ms)*time.Millisecond)
	if err != nil {
		return joblock.Token{}, false
	}
	return door.TokenAt(token, n).(joblock.Token), true
}

// maxMillis is the longest time.Duration, in milliseconds.
const maxMillis = int64(1<<63-1) / int64(time.Millisecond)

// conflict returns the problem for err. A lock that is gone, or was never there, is a conflict like a lock of somebody
// else: APIs with few statuses know no other.
func (c *call) conflict(err error) *problem {
	p := c.problemOf(err)
	if p.Status == http.StatusGone || p.Status == http.StatusNotFound {
		p.Status = http.StatusConflict
	}
	return p
}

// notTheHolder returns the problem of a request that does not name the present holding of the lock.
func notTheHolder(detail string) *problem {
	p := problemf(http.StatusConflict, joblock.CodeOf(joblock.ErrNotOwner), "%s", detail)
	p.Title = "The token does not name the present holding of the lock"
	return p
}

// expiry returns when others can get the key by itself.
func expiry(l ops.Lock) *stamp {
	t := l.ReservedUntil.Time
	if t.IsZero() {
		t = l.ExpiresAt.Time
	}
	if t.IsZero() {
		return nil
	}
	return (*stamp)(&t)
}

// look reads the record of key, with its memo and its owner.
func (c *call) look(op, key string) (driver.Record, error) {
	recs, err := c.s.in.Inspect(c.r.Context(), op, key, driver.InspectRequest{Keys: []string{key}, Memo: true})
	if err != nil {
		return driver.Record{}, err
	}
	return recs[0], nil
}

// ownerOf returns the owner for a name that a client of the API has chosen. Nobody can find the name from the owner or
// from its digest.
func (c *call) ownerOf(api, key, name string) (string, error) {
	named, err := ops.NewCall(c.r.Context(), c.s.cfg.Locks, fmt.Sprintf("%s %q %q", api, key, name), "")
	return named.Name(), err
}

// releaseOf ends the holding of a record that look has read.
func (c *call) releaseOf(rec driver.Record, reason string) error {
	token, err := joblock.NewToken(rec.Key, rec.Owner, driver.MinPeriod)
	if err != nil {
		return err
	}
	if err := ops.Release(c.lasting(), c.s.cfg.Locks, door.TokenAt(token, rec.Fence).(joblock.Token), reason); err != nil {
		return err
	}
	c.s.quotas.gave(c.who.ID, rec.Key)
	return nil
}

// forceOf frees the key of a record that look has read, whoever has it.
func (c *call) forceOf(rec driver.Record, reason string) error {
	if !c.who.may(ScopeOperate) {
		return problemf(http.StatusForbidden, codeForbidden, "another principal has the lock, and the caller lacks the scope operate")
	}
	if rec.State == joblock.StateFree {
		return door.Refusal("force release", rec.Key, driver.Reply{Outcome: driver.OutcomeNotFound})
	}
	if p := c.act(); p != nil {
		return p
	}
	_, err := c.s.desk.Force(c.lasting(), ops.ForceRequest{Key: rec.Key, Fence: rec.Fence, Actor: c.actor(reason)})
	return err
}

// keyBelow returns the key of a path: the prefix, and what the path names.
func (c *call) keyBelow(prefix string) (string, error) {
	key := prefix + c.r.PathValue("key") // which is not empty: a path with two slashes in a row is refused
	return key, c.useKey(key)
}

// checkPrefix refuses a prefix that no key can begin with.
func checkPrefix(field, prefix string) error {
	if err := door.CheckText("new", "", field, prefix, 0, driver.MaxKeyBytes-1); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}
