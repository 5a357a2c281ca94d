// Package keyspace names the toolkit's own keys. No key that an application may use is
// one of them, whatever its users typed.
//
// In an application's key a '%' stands only before two upper-case hexadecimal digits, as
// joblock.Key writes it. Any other '%' makes the key the toolkit's own. Calls that take
// locks refuse such a key, unless they have the option door.OwnKey. Calls that only read,
// and those for operators, accept all keys.
package keyspace

import (
	"fmt"
	"strconv"
	"strings"
)

// Keeper is the key of the lock that a keeper needs to work, so that only one in the
// cluster does.
const Keeper = "%keeper"

// Cron returns the key of one of the scheduler's records: a prefix and the given rest.
func Cron(rest string) string { return "%cron:" + rest }

// Again returns the key of the lock that a worker holds while job is in asynq's archive for
// a pause. If the worker dies, the lock tells the keeper to run job again.
func Again(job string) string { return "%again:" + job }

// Next returns the key whose lock a job has while it waits for the job that has the lock on
// key; see handoff.KeepLast.
func Next(key string) string { return key + "%next" }

// permitMark separates the key of a limit from the number of a permit. The limit's key
// ends at the last permitMark.
const permitMark = "%#"

// Permit returns the key of a permit of the limit on key.
func Permit(key string, number int) string { return key + permitMark + strconv.Itoa(number) }

// Gate returns the key of the gate of the limit on key; see package limit.
func Gate(key string) string { return key + permitMark + "gate" }

// Limit returns the key of the limit whose permit or gate has key.
func Limit(key string) (limit string, ok bool) {
	i := strings.LastIndex(key, permitMark)
	if i < 0 {
		return "", false
	}
	return key[:i], true
}

// emptyMark is what joblock.Key writes for an empty part, before the part's number. All
// calls refuse a key with it.
const emptyMark = "%!"

// Empty returns what stands for an empty part; the first part has number 1.
func Empty(number int) string { return emptyMark + strconv.Itoa(number) }

// CheckParts returns a sentence about the key's empty part, "" if there is none.
func CheckParts(key string) string {
	_, rest, ok := strings.Cut(key, emptyMark)
	if !ok {
		return ""
	}
	number := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	if number == "" {
		return "" // not written by joblock.Key
	}
	return fmt.Sprintf("part %s of the key is empty", number)
}

// CheckApplication returns why an application may not use key, "" if it may.
func CheckApplication(key string) string {
	if detail := CheckParts(key); detail != "" {
		return detail
	}
	for rest, at := key, 0; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			return ""
		}
		if rest, at = rest[i+1:], at+i+1; len(rest) < 2 || !isHex(rest[0]) || !isHex(rest[1]) {
			return fmt.Sprintf("key has a '%%' at byte %d that is not followed by two upper-case hexadecimal digits; "+
				"such keys are the toolkit's own, build yours with joblock.Key", at-1)
		}
	}
}

// isHex rejects lower case, because the toolkit's keys have lower case after a '%'.
func isHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }
