package ops

import (
	"strconv"
	"strings"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// Role says what a key is for.
type Role string

// The roles. The toolkit makes the keys of all roles but RoleLock itself.
const (
	RoleLock   Role = ""       // a lock of an application
	RolePermit Role = "permit" // a permit of a limit
	RoleSlot   Role = "slot"   // a slot of a sequence other than the first, whose key is that of the sequence
	RoleNext   Role = "next"   // the lock of the job that runs after the present one; see handoff.KeepLast
	RoleGate   Role = "gate"   // the line of a limit
	RoleSize   Role = "size"   // the number of permits of a limit
	RoleLimit  Role = "limit"  // in lists of the command line: the key of a limit for which callers wait; it has no holder
	RoleKeeper Role = "keeper" // a place of a working keeper, or the line of those that stand by
	RoleCron   Role = "cron"   // a record of a scheduler
	RoleMark   Role = "mark"   // the key of a task that is snoozed in asynq's archive
	RoleOther  Role = "other"  // any other key of the toolkit
)

// inner reports whether only the toolkit itself uses keys of this role.
func (r Role) inner() bool { return r != RoleLock && r != RolePermit && r != RoleSlot && r != RoleNext }

// roleOf returns the role of key. For a permit, a gate, a size or a slot, group is the key of the limit or the sequence.
// number is the number of the permit or slot.
func roleOf(key string) (role Role, group string, number int) {
	if line, other := driver.LineOf(key); other {
		number, _ = strconv.Atoi(key[len(driver.SlotKey(line, 2))-1:]) // LineOf has checked the number
		return RoleSlot, line, number
	}
	if limit, ok := keyspace.Limit(key); ok {
		role, group, number = permitOf(key)
		if limit == keyspace.Keepers || limit == keyspace.DryKeepers {
			role, group = RoleKeeper, limit
		}
		return role, group, number
	}
	switch {
	case strings.HasPrefix(key, keyspace.Cron("")), key == keyspace.CronScopes:
		return RoleCron, "", 0
	case strings.HasPrefix(key, keyspace.Again("")):
		return RoleMark, "", 0
	case strings.HasSuffix(key, keyspace.Next("")):
		return RoleNext, "", 0
	case keyspace.CheckApplication(key) != "":
		return RoleOther, "", 0
	}
	return RoleLock, "", 0
}

// permitOf is roleOf for the keys of limits, both the toolkit's and an application's.
func permitOf(key string) (Role, string, int) {
	limit, _ := keyspace.Limit(key)
	switch key {
	case keyspace.Gate(limit):
		return RoleGate, limit, 0
	case keyspace.Size(limit):
		return RoleSize, limit, 0
	}
	number, err := strconv.Atoi(key[len(keyspace.Permit(limit, 0))-1:])
	if err != nil || number < 1 || keyspace.Permit(limit, number) != key {
		return RoleOther, "", 0
	}
	return RolePermit, limit, number
}
