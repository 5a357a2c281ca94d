package redisstore

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// errReply is the error for a reply that no script gives. A proxy or a mock may give such a reply. The outcome of the
// call is unknown.
var errReply = errors.New("redisstore: unexpected reply from a script")

// Outcomes that only the scripts and this package know.
const (
	unlisted = int64(11) // of resume.lua and reserve.lua
	more     = int64(12) // of acquire.lua, take.lua, release.lua and reserve.lua
)

// errMore says that not all dead waiters were dropped yet, so the call has to be sent again. A release that gets
// errMore has taken effect, and its Reply is valid.
var errMore = errors.New("redisstore: there may be more waiters")

// fields reads the answer of a script from front to back. A field of another type or out of range sets bad.
// end reports bad as an error.
type fields struct {
	rest []any
	bad  bool
}

func (f *fields) next() any {
	if len(f.rest) == 0 {
		f.bad = true
		return nil
	}
	v := f.rest[0]
	f.rest = f.rest[1:]
	return v
}

// num reads a non-negative integer.
func (f *fields) num() int64 {
	n, ok := f.next().(int64)
	if !ok || n < 0 {
		f.bad = true
		return 0
	}
	return n
}

// digits reads a positive number that comes as text: a fence, or a time in microseconds since 1970. Such
// numbers come as text because not every server can return so large a Lua number as an integer.
func (f *fields) digits() int64 {
	n, err := strconv.ParseInt(strings.TrimLeft(f.str(), " "), 10, 64)
	f.bad = f.bad || err != nil || n <= 0
	return n
}

func (f *fields) str() string {
	s, ok := f.next().(string)
	if !ok {
		f.bad = true
	}
	return s
}

func (f *fields) clock() time.Time { return time.UnixMicro(f.digits()) }

// date reads a time as clock does, and drops the fraction of a millisecond.
func (f *fields) date() time.Time { return time.UnixMilli(f.digits() / 1000) }

// moment reads a time as date does. For 0 or less it returns the zero time.
func (f *fields) moment() time.Time {
	us, err := strconv.ParseInt(strings.TrimLeft(f.str(), " "), 10, 64)
	f.bad = f.bad || err != nil
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(us / 1000)
}

// blob reads a string that may be missing.
func (f *fields) blob() []byte {
	switch v := f.next().(type) {
	case nil:
		return nil
	case string:
		return []byte(v)
	}
	f.bad = true
	return nil
}

// job reads the job that a call has granted the key to. A missing job is "".
func (f *fields) job() string {
	if len(f.rest) == 0 {
		return ""
	}
	return f.str()
}

func (f *fields) place() driver.Place {
	p := driver.Place{Ahead: int(f.num()), Holder: f.str(), Job: f.str(), Since: f.clock()}
	until, err := strconv.ParseInt(f.str(), 10, 64)
	f.bad = f.bad || err != nil
	p.Until = time.UnixMilli(until)
	return p
}

func (f *fields) dur() time.Duration {
	ms := f.num()
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

func (f *fields) state() driver.State {
	n := f.num()
	if n > int64(driver.StateOrphaned) {
		f.bad = true
		return 0
	}
	return driver.State(n)
}

// endings maps the letters in records and replies to driver.Ended.
var endings = map[string]driver.Ended{
	"":  driver.EndedNone,
	"-": driver.EndedNone,
	"R": driver.EndedReleased,
	"F": driver.EndedForced,
	"L": driver.EndedLapsed,
	"D": driver.EndedDone,
}

func (f *fields) ended() driver.Ended {
	e, ok := endings[f.str()]
	if !ok {
		f.bad = true
	}
	return e
}

// outcome reads the first field of an answer. The returned fields are the rest of the answer.
func outcome(val any) (driver.Outcome, fields) {
	var f fields
	n, alone := val.(int64) // an answer may be an outcome without further fields
	if !alone {
		list, ok := val.([]any)
		f = fields{rest: list, bad: !ok}
		n = f.num()
	}
	if n < int64(driver.OutcomeOK) || n > int64(driver.OutcomeFull) {
		f.bad = true
	}
	return driver.Outcome(n), f
}

// end returns errReply unless all fields were read and none was bad. The error does not show the fields: an
// owner might be among them.
func (f *fields) end(op string) error {
	if f.bad || len(f.rest) > 0 {
		return fmt.Errorf("%w: %s", errReply, op)
	}
	return nil
}

// foreign reads the rest of the answer FOREIGN, and describes the value that is not a record.
func (f *fields) foreign() string {
	kind, key := f.str(), f.str()
	if kind == "" { // this user may not run TYPE
		kind = "value"
	}
	return fmt.Sprintf("a %s that is not a lock is at the Redis key %q; it was not changed", kind, key)
}

// parseReply reads the answer of every script but inspect.
func parseReply(sc *script, val any) (driver.Reply, error) {
	if (sc == resumeScript || sc == reserveScript) && val == unlisted {
		return driver.Reply{}, errUnlisted
	}
	if text, ok := val.(string); ok && len(text) > 1 { // from a fast stage
		var f fields
		r := driver.Reply{Outcome: driver.OutcomeOK}
		switch sc {
		case resumeScript:
			text, r.Hint = text[:min(fenceBytes, len(text))], text[min(fenceBytes, len(text)):]
			f.rest = []any{text}
			r.Fence = f.digits()
		case acquireScript, takeScript:
			if sc == acquireScript {
				text, r.Hint = text[:min(1+fenceBytes, len(text))], text
			}
			f.rest = []any{text[1:], text[:1]}
			r.Fence, r.Ended = f.digits(), f.ended()
		default:
			f.bad = true
		}
		if err := f.end(sc.op); err != nil {
			return driver.Reply{}, err
		}
		return r, nil
	}
	if list, ok := val.([]any); ok && len(list) > 0 && list[0] == more {
		switch {
		case (sc == acquireScript || sc == takeScript || sc == reserveScript) && len(list) == 1:
			return driver.Reply{}, errMore
		case sc == releaseScript && len(list) == 2:
			r, err := parseReply(sc, list[1])
			if err == nil {
				err = errMore
			}
			return r, err
		}
	}
	out, f := outcome(val)
	r := driver.Reply{Outcome: out}
	switch out {
	case driver.OutcomeOK:
		switch sc {
		case acquireScript:
			r.Fence, r.Ended, r.Lease = f.digits(), f.ended(), f.dur()
			if len(f.rest) > 0 {
				r.Memo, r.Now = f.blob(), f.clock()
			}
		case resumeScript:
			r.Fence, r.Memo, r.Recovered = f.digits(), f.blob(), f.num() == 1
		case takeScript:
			r.Fence, r.Ended = f.digits(), f.ended()
		case parkScript, renewScript:
			r.Fence = f.digits()
		case reserveScript:
			r.State, r.Remaining, r.Holder, r.Job = f.state(), f.dur(), f.str(), f.str()
			switch f.num() {
			case 1:
				r.Recovered = true
			case 2:
				r.Next = r.Job
			}
		case releaseScript:
			r.Next = f.job()
		}
	case driver.OutcomeLapsed, driver.OutcomeNotFound:
		r.Next = f.job()
	case driver.OutcomeHeld, driver.OutcomeBusy, driver.OutcomeNotOwner, driver.OutcomeWrongJob, driver.OutcomeFull:
		r.State, r.Remaining, r.Holder, r.Job = f.state(), f.dur(), f.str(), f.str()
		if out == driver.OutcomeHeld {
			r.Fence = f.digits()
		}
		if len(f.rest) > 0 {
			r.Ahead = int(f.num())
		}
		if len(f.rest) > 0 {
			r.Now = f.clock()
		}
		if len(f.rest) > 0 {
			r.Since = f.clock()
		}
		r.Next = f.job()
	case driver.OutcomeReleased:
		r.Ended, r.Reason = f.ended(), f.str()
	case driver.OutcomeForeign:
		r.Detail = f.foreign()
	}
	if err := f.end(sc.op); err != nil {
		return driver.Reply{}, err
	}
	return r, nil
}

// parseRecord reads the answer of inspectScript about key, and reports whether there is a record.
func parseRecord(key string, val any) (driver.Record, bool, error) {
	out, f := outcome(val)
	rec := driver.Record{Key: key}
	switch out {
	case driver.OutcomeOK:
		rec.State, rec.Owner, rec.Fence, rec.First = f.state(), f.str(), f.digits(), f.digits()
		rec.Lease, rec.Reserved = f.dur(), f.dur()
		rec.Since, rec.Changed = f.date(), f.date()
		rec.Renewed, rec.TTL, rec.EndedAt = f.moment(), f.dur(), f.moment()
		rec.Holder, rec.Job = f.str(), f.str()
		rec.Ended, rec.Reason, rec.Memo = f.ended(), f.str(), f.blob()
		rec.Waiters, rec.Now = int(f.num()), f.clock()
		if len(f.rest) > 0 {
			p := f.place()
			rec.Place = &p
		}
	case driver.OutcomeNotFound:
	case driver.OutcomeForeign:
		_ = f.foreign() // a driver.Record has no field for the description
		rec.State = driver.StateForeign
	default:
		f.bad = true
	}
	if err := f.end("inspect"); err != nil {
		return driver.Record{Key: key}, false, err
	}
	return rec, out != driver.OutcomeNotFound, nil
}

// parsePage reads the answer of lineScript.
func parsePage(val any) (driver.LinePage, error) {
	var page driver.LinePage
	out, f := outcome(val)
	switch out {
	case driver.OutcomeOK:
		if next := f.num(); next > 0 {
			page.Next = strconv.FormatInt(next, 10)
		}
		for !f.bad && len(f.rest) > 0 {
			page.Places = append(page.Places, f.place())
		}
	case driver.OutcomeNotFound:
	case driver.OutcomeForeign:
		_ = f.foreign()
	default:
		f.bad = true
	}
	if err := f.end("line"); err != nil {
		return driver.LinePage{}, err
	}
	return page, nil
}
