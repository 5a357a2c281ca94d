package compat

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/internal/problem"
)

// terraformPrefix is the default prefix. With it, a state named app does not share the lock of "joblock run app".
const terraformPrefix = "terraform:"

// Terraform returns a handler for the locking of Terraform's http backend. The state itself is kept by another server.
//
//	LOCK   /{name}  lock info  lock  200, or 423 with the info of the holder
//	UNLOCK /{name}  lock info  lock  200
//
// Mount the handler below a prefix, and name it in the configuration of the backend:
//
//	locks, err := compat.Terraform(s, "")
//	...
//	mux.Handle("/terraform/", http.StripPrefix("/terraform", locks))
//
//	backend "http" {
//	  address        = "https://states.example.com/prod/network" # of the state, which this Server does not keep
//	  lock_address   = "https://locks.example.com/terraform/prod/network"
//	  unlock_address = "https://locks.example.com/terraform/prod/network"
//	  username       = "ci"
//	}
//
// The password of the backend (TF_HTTP_PASSWORD) is the bearer token of the Server. The username is ignored, but must be
// set: without it Terraform sends no password. The name may contain slashes, but must not end in one. The ID in the lock
// info names the holding. A repeated LOCK with the same ID gets the same answer. An UNLOCK by the principal that sent
// LOCK releases the lock. An UNLOCK by another principal needs the scope operate, is recorded, and is refused if it
// cannot be recorded.
//
// "terraform force-unlock" asks for an ID but does not send it: its UNLOCK has no body. Such an UNLOCK needs the scope
// operate, is recorded as well, and unlocks whichever Terraform has the lock. "joblock force-release" is safer, because
// it names the holding to end. When a lock is held, Terraform shows the holder's ID in its message; under "Lock Info" it
// shows the lock that it failed to get.
//
// Terraform does not renew its locks, so a lease lasts joblock.Config.MaxTTL. Give the Server a Locker whose MaxTTL is
// longer than your longest run. If a Terraform process dies, its lock stays until then, or until UNLOCK.
//
// Other answers: 404 for an UNLOCK of a free key, 409 for an UNLOCK with an ID other than the holder's, 410 for a LOCK
// with an ID that was already unlocked, and the errors of the routes under /v1.
//
// The prefix is put in front of the name in the path to make the key of the lock; "" means "terraform:". The error is
// joblock.ErrInvalid for a prefix that no key can begin with.
func Terraform(s *server.Server, prefix string) (http.Handler, error) {
	if err := checkPrefix("prefix", prefix); err != nil {
		return nil, err
	}
	t := &terraformMount{cmp.Or(prefix, terraformPrefix)}
	m := mount(s.Host(), []route{
		{"LOCK", "/{key...}", []string{"lock"}, t.lock},
		{"UNLOCK", "/{key...}", []string{"lock", "operate"}, t.unlock},
	}, asProblem)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); ok {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+password)
		}
		m.ServeHTTP(w, r)
	}), nil
}

// terraformMount serves one handler of Terraform.
type terraformMount struct{ prefix string }

// lockInfo is what Terraform sends about a lock.
type lockInfo struct {
	ID        string
	Operation string
	Info      string
	Who       string
	Version   string
	Created   time.Time
	Path      string
}

// terraformMemo is the memo of a lock of Terraform.
type terraformMemo struct {
	By   string          `json:"by"` // the principal
	ID   string          `json:"id"`
	Info json.RawMessage `json:"info"`
}

// maxLockInfo bounds the lock info of Terraform, which is stored in the lock's memo.
const maxLockInfo = 32 << 10

// request returns the key and the lock info of a request.
func (t *terraformMount) request(c *call, text []byte) (key string, info lockInfo, err error) {
	if len(text) > maxLockInfo {
		return "", info, problem.New(http.StatusRequestEntityTooLarge, problem.TooLarge, "the lock info has more than %d bytes", maxLockInfo)
	}
	if json.Unmarshal(text, &info) != nil {
		return "", info, problem.New(http.StatusBadRequest, problem.Request, "the body is no lock info of Terraform")
	}
	if info.ID == "" || len(info.ID) > driver.MaxLabelBytes {
		return "", info, problem.New(http.StatusBadRequest, problem.Invalid, "ID has %d bytes, must have 1 to %d", len(info.ID), driver.MaxLabelBytes)
	}
	key, err = t.key(c)
	return key, info, err
}

// key returns the key for a path.
func (t *terraformMount) key(c *call) (string, error) {
	switch name := c.Request().PathValue("key"); {
	case name == "":
		return "", problem.New(http.StatusNotFound, problem.NoRoute, "the path has no name of a state: the address of the lock is …/terraform/NAME")
	case strings.HasSuffix(name, "/"):
		return "", problem.New(http.StatusBadRequest, problem.Request, "the name of the state ends in a slash: leave the slash out")
	}
	return c.keyBelow(t.prefix)
}

func (t *terraformMount) lock(c *call) (*answer, error) {
	text, err := c.Body()
	if err != nil {
		return nil, err
	}
	key, info, err := t.request(c, text)
	if err != nil {
		return nil, err
	}
	ask := ops.LeaseRequest{Key: key, TTL: c.settings().MaxTTL}
	if core.CheckText("acquire", key, "Who", info.Who, 1, driver.MaxLabelBytes) == nil {
		ask.Holder = info.Who
	}
	if ask.Call, err = ops.NewCall(c.Request().Context(), c.s.Locks(), terraformName(key, info.ID), ""); err != nil {
		return nil, err
	}
	if err := c.MayHold(key); err != nil {
		return nil, err
	}
	g, err := ops.AcquireLease(c.Lasting(), c.s.Locks(), ask)
	if errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrBusy) {
		return c.terraformHolder(key, err)
	}
	if err != nil {
		return nil, err
	}
	// Every refused LOCK reveals the holder's ID, so the ID alone must not suffice to take the lock over.
	rec, err := c.look("acquire", key)
	if err != nil {
		return nil, err
	}
	if first, err := c.terraformMemoOf(rec); err != nil {
		return nil, err
	} else if first != nil && first.By != c.Caller() {
		return c.terraformHolder(key, joblock.ErrHeld)
	}
	memo, err := json.Marshal(terraformMemo{By: c.Caller(), ID: info.ID, Info: text})
	if err == nil {
		err = ops.WriteMemo(c.Lasting(), c.s.Locks(), g.Token, ask.TTL, memo)
	}
	if err != nil {
		_ = ops.Release(c.Lasting(), c.s.Locks(), g.Token, "the lock info was not stored")
		return nil, err
	}
	c.Holds(g.Token.Key(), g.Until)
	return ok(json.RawMessage(text))
}

// terraformName names the call that takes a lock. UNLOCK derives the owner from the same name.
func terraformName(key, id string) string { return fmt.Sprintf("terraform %q %q", key, id) }

// terraformHolder answers 423 with the lock info of the holder. Of a holder other than Terraform only the label is known.
func (c *call) terraformHolder(key string, held error) (*answer, error) {
	rec, err := c.look("acquire", key)
	if err != nil {
		return nil, err
	}
	c.Note(joblock.CodeOf(held), nil)
	memo, err := c.terraformMemoOf(rec)
	if err != nil {
		return nil, err
	}
	if memo != nil {
		return &answer{Status: http.StatusLocked, Body: memo.Info}, nil
	}
	return &answer{Status: http.StatusLocked, Body: lockInfo{Who: rec.Holder, Created: rec.Since.UTC(), Path: c.Request().PathValue("key"), Info: "the holder has given no ID"}}, nil
}

// terraformMemoOf returns the memo of a record, or nil if the present holder did not write it.
func (c *call) terraformMemoOf(rec driver.Record) (*terraformMemo, error) {
	var memo terraformMemo
	if json.Unmarshal(rec.Memo, &memo) != nil || memo.ID == "" {
		return nil, nil
	}
	named, err := ops.NewCall(c.Request().Context(), c.s.Locks(), terraformName(rec.Key, memo.ID), "")
	if err != nil || named.Name() != rec.Owner {
		return nil, err
	}
	return &memo, nil
}

func (t *terraformMount) unlock(c *call) (*answer, error) {
	text, err := c.Body()
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return empty(t.unlockAny(c))
	}
	key, info, err := t.request(c, text)
	if err != nil {
		return nil, err
	}
	named, err := ops.NewCall(c.Request().Context(), c.s.Locks(), terraformName(key, info.ID), "")
	if err != nil {
		return nil, err
	}
	rec, err := c.look("release", key)
	if err != nil {
		return nil, err
	}
	free := rec.State == joblock.StateFree
	switch {
	case rec.Owner == named.Name() && free && rec.Ended != driver.EndedLapsed:
		return ok(struct{}{}) // a repeated UNLOCK
	case free:
		return nil, core.Refusal("release", key, driver.Reply{Outcome: driver.OutcomeNotFound})
	case rec.Owner != named.Name():
		return nil, problem.NotHolder("the ID is not that of the holder")
	}
	memo, err := c.terraformMemoOf(rec)
	if err != nil {
		return nil, err
	}
	if memo != nil && memo.By == c.Caller() && c.May("lock") {
		return empty(c.releaseOf(rec, ""))
	}
	return empty(c.forceOf(rec, "terraform force-unlock"))
}

// unlockAny serves an UNLOCK without a body.
func (t *terraformMount) unlockAny(c *call) error {
	key, err := t.key(c)
	if err != nil {
		return err
	}
	rec, err := c.look("release", key)
	if err != nil {
		return err
	}
	if rec.State == joblock.StateFree {
		return core.Refusal("release", key, driver.Reply{Outcome: driver.OutcomeNotFound})
	}
	if memo, err := c.terraformMemoOf(rec); err != nil {
		return err
	} else if memo == nil {
		return problem.NotHolder("the holder is no Terraform")
	}
	return c.forceOf(rec, "terraform force-unlock, which named no ID")
}
