package cli

import (
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// keyChange is a change of a key that "watch" has seen between two looks.
type keyChange struct {
	At   ops.Time   `json:"at"`     // when the change was seen, by the store's clock
	Kind changeKind `json:"change"` // what has happened, in a word
	Key  string     `json:"key"`
	Lock ops.Lock   `json:"lock"`          // the key after the change
	Was  *ops.Lock  `json:"was,omitempty"` // the key at the previous look; nil if there was none, or if the key had no record
}

// changeKind says what has happened to a key.
type changeKind string

const (
	changeNow      changeKind = "now"      // the first look at a key that was named on the command line
	changeTaken    changeKind = "taken"    // the lock was acquired
	changeResumed  changeKind = "resumed"  // the job or the token continued under the lock, in a new step
	changeParked   changeKind = "parked"   // the lock was handed over, and nothing runs under it
	changeOrphaned changeKind = "orphaned" // the process that had the lock did not renew it; the lock is kept for its job
	changeReleased changeKind = "released" // the owner has released the lock
	changeDone     changeKind = "done"     // the owner has released the lock because the job is done
	changeForced   changeKind = "forced"   // an operator has freed the key
	changeFreed    changeKind = "freed"    // a keeper or a program has freed the key, because the job has ended
	changeLapsed   changeKind = "lapsed"   // the lock has expired, because it was not renewed
	changeGone     changeKind = "gone"     // the lock has ended, and Redis no longer knows how
	changeForeign  changeKind = "foreign"  // another program has written a value that is no lock
	changeOther    changeKind = "changed"  // anything else: the holder or the job has another name
)

// changeKinds lists all kinds, for the help and for tests.
var changeKinds = []changeKind{
	changeNow, changeTaken, changeResumed, changeParked, changeOrphaned, changeReleased, changeDone, changeForced, changeFreed, changeLapsed,
	changeGone, changeForeign, changeOther,
}

// kindOf returns what has happened between two looks at a key, or "" if nothing has. Of several changes between two looks
// it sees only the last.
func kindOf(was, is ops.Lock) changeKind {
	if was.State == is.State && was.Fence == is.Fence && was.Holder == is.Holder && was.Job == is.Job && was.Ended == is.Ended {
		return ""
	}
	switch is.State {
	case joblock.StateHeld:
		switch {
		case !was.Locked() || was.First != is.First:
			return changeTaken
		case was.Fence != is.Fence:
			return changeResumed
		}
	case joblock.StateParked:
		if was.State != is.State || was.Fence != is.Fence {
			return changeParked
		}
	case joblock.StateOrphaned:
		if was.State != is.State || was.Fence != is.Fence {
			return changeOrphaned
		}
	case joblock.StateForeign:
		return changeForeign
	case joblock.StateFree:
		if !was.Locked() && (is.Fence == 0 || was.Fence == is.Fence) {
			return "" // Redis no longer knows how the last lock ended, or has a text for the same end
		}
		switch is.Ended {
		case driver.EndedReleased:
			return changeReleased
		case driver.EndedDone:
			return changeDone
		case driver.EndedForced:
			if is.FreedBy == ops.FreedByKeeper || is.FreedBy == ops.FreedByProgram {
				return changeFreed
			}
			return changeForced
		}
		if is.Ended == driver.EndedNone {
			return changeGone
		}
		return changeLapsed
	}
	return changeOther
}

// role returns the role, and so the color, of a kind.
func (k changeKind) role() role {
	switch k {
	case changeOrphaned, changeForced, changeLapsed, changeGone, changeForeign:
		return bad
	case changeTaken, changeResumed:
		return good
	case changeParked:
		return warning
	}
	return plain
}

func changeColumns(p *printer) []column[keyChange] {
	key := column[keyChange]{head: "KEY", text: func(c keyChange) string { return c.Key }}
	if p.format == "name" {
		return []column[keyChange]{key}
	}
	return []column[keyChange]{
		{head: "TIME", text: func(c keyChange) string {
			if p.times == "relative" { // a line may be read long after it was printed
				return c.At.Local().Format("15:04:05.000")
			}
			return p.when(c.At.Time, 0)
		}},
		{head: "CHANGE", room: len(changeReleased), text: func(c keyChange) string { return string(c.Kind) }, role: func(c keyChange) role { return c.Kind.role() }},
		key,
		{head: "STATE", room: len("orphaned"), text: func(c keyChange) string { return c.Lock.State.String() }, role: func(c keyChange) role { return stateRole(c.Lock) }},
		{head: "FENCE", text: func(c keyChange) string { return count(c.Lock.Fence) }},
		{head: "HOLDER", text: func(c keyChange) string { return c.Lock.Holder }},
		{head: "WAITERS", text: func(c keyChange) string { return count(c.Lock.Waiters) }},
		{head: "JOB", text: func(c keyChange) string { return c.Lock.Job }},
		{head: "REASON", text: func(c keyChange) string { return c.Lock.Reason }},
		{head: "WAS", wide: true, text: func(c keyChange) string {
			if c.Was == nil {
				return ""
			}
			return c.Was.State.String()
		}},
		{head: "WAS FENCE", wide: true, text: func(c keyChange) string {
			if c.Was == nil {
				return ""
			}
			return count(c.Was.Fence)
		}},
		{head: "WAS HOLDER", wide: true, text: func(c keyChange) string {
			if c.Was == nil {
				return ""
			}
			return c.Was.Holder
		}},
	}
}
