// Package keyspace has the keys that the toolkit keeps for itself, so that no key
// that an application makes, of whatever its users typed, can be one of them.
//
// The rule is about '%'. In a key of an application it stands only as joblock.Key
// writes it: before two upper-case hexadecimal digits. Any other '%' makes the key
// the toolkit's own. Calls that take locks refuse such a key, unless they are made
// with the option door.OwnKey; calls that only look, and those of operators, take all keys.
package keyspace

import (
	"fmt"
	"strconv"
	"strings"
)

// Keeper is the key under which one keeper of the cluster works.
const Keeper = "%keeper"

// Cron returns the key of the scheduler's record that rest names.
func Cron(rest string) string { return "%cron:" + rest }

// Again returns the key of the mark that a job is to be taken out of asynq's archive.
func Again(job string) string { return "%again:" + job }

// Next returns the key of the job that waits for the one that has key.
func Next(key string) string { return key + "%next" }

// permitMark is between the key of a limit and the number of a permit. The last one
// in a key ends the limit's own key.
const permitMark = "%#"

// Permit returns the key of a permit of the limit on key.
func Permit(key string, number int) string { return key + permitMark + strconv.Itoa(number) }

// Gate returns the key of the lock for which the waiters of the limit on key line up.
func Gate(key string) string { return key + permitMark + "gate" }

// Limit returns the key of the limit that key is a permit of, or the gate.
func Limit(key string) (limit string, ok bool) {
	i := strings.LastIndex(key, permitMark)
	if i < 0 {
		return "", false
	}
	return key[:i], true
}

// emptyMark is what joblock.Key writes for an empty part, before the part's number.
// It is in nobody's key: all calls refuse it.
const emptyMark = "%!"

// Empty returns what stands for an empty part; the first part has number 1.
func Empty(number int) string { return emptyMark + strconv.Itoa(number) }

// CheckParts returns what is wrong with the key's parts, "" if nothing is.
func CheckParts(key string) string {
	_, rest, ok := strings.Cut(key, emptyMark)
	if !ok {
		return ""
	}
	number := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	if number == "" {
		return "" // not by joblock.Key
	}
	return fmt.Sprintf("part %s of the key is empty", number)
}

// CheckApplication returns why the key is none of an application, "" if it is one.
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

// isHex does not take lower case, in which the names of the toolkit's keys are.
func isHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }
