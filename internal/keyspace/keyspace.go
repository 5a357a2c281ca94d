// Package keyspace names the toolkit's own keys. An application's key is never one of them, whatever the application's
// users typed.
//
// In an application's key a '%' stands only before two upper-case hexadecimal digits, as joblock.Key writes it. Any other
// '%' makes the key one of the toolkit's own. Calls that take locks refuse such a key unless they have the option
// core.OwnKey; calls that only read, and calls for operators, accept all keys. No key begins with two '%': such names are
// for records other than locks, see noLock of package redisstore.
package keyspace

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/joblock/toolkit/joblock/driver"
)

// DefaultPrefix is the default of redisstore.Config.Prefix.
const DefaultPrefix = "joblock:"

// Keepers is the key of the limit whose permits the working keepers hold. DryKeepers is the same for keepers that change
// nothing.
const (
	Keepers    = "%keeper"
	DryKeepers = "%keeper:dry"
)

// Durations is the key of the record of how long the tasks of each type usually take; see package workerstats.
const Durations = "%durations"

// Controls is the key of the registry of what operators have set; see package controls. ControlsChanged is the key of a
// lock whose release pushes that the registry has changed.
const (
	Controls        = "%controls"
	ControlsChanged = "%controls:changed"
)

// pause begins the keys of the lines of jobs that are held back.
const pause = "%pause:"

// MaxPausedBytes is the largest length of a key that can be paused.
const MaxPausedBytes = driver.MaxKeyBytes - len("%pause%end:")

// Pause returns the key in whose line those jobs wait that the pause of key holds back.
func Pause(key string) string { return pause + key }

// PauseEnd returns the key of the lock under which a process starts the jobs of a pause that has ended.
func PauseEnd(key string) string { return "%pause%end:" + key }

// Base returns the application's key of which key is a permit, a slot or the Next. All other keys are returned as they are.
func Base(key string) string {
	if limit, ok := Limit(key); ok {
		return limit
	}
	key, _ = driver.LineOf(key)
	return strings.TrimSuffix(key, Next(""))
}

// Outbox returns the key of the lock of the relay of the outbox with this name, which is a part of a key.
func Outbox(name string) string { return "%outbox:" + name }

// Outboxes is the key of the record of what the relays of outboxes report; see package workerstats.
const Outboxes = "%outboxes"

// Cron returns the key of one of the scheduler's records.
func Cron(rest string) string { return "%cron:" + rest }

// CronScopes is the key of the list of scopes. It cannot be the key of a scope, because no scope is empty.
const CronScopes = "%cron%scopes"

// CronNames returns the key of a page of the names of a scope's jobs. The scope is a part of a key, as joblock.Key writes
// it, so no job of any scope has this key, nor the two keys below.
func CronNames(scope string, page int) string { return Cron(scope) + "%names" + strconv.Itoa(page) }

// CronNodes returns the key of the list of a scope's nodes.
func CronNodes(scope string) string { return Cron(scope) + "%nodes" }

// CronLane returns the key of the lock under which an execution of a job runs if several may run at once. job is the key
// of the job.
func CronLane(job string, lane int) string { return job + "%lane" + strconv.Itoa(lane) }

// CronNode returns the key of a node of a scope.
func CronNode(scope, id string) string { return Cron(scope) + "%node:" + id }

// Again returns the key of the lock that a worker holds while the job is in asynq's archive for a pause. If the worker
// dies, the lock makes the keeper run the job again.
func Again(job string) string { return "%again:" + job }

// Next returns the key of the lock for a job that waits until another job has released the lock on key; see
// handoff.KeepLast.
func Next(key string) string { return key + "%next" }

// Last returns the key of a record that says which job has started last, of the jobs that replace each other under the
// lock on key. With handoff.KeepLast that key is a Next.
func Last(key string) string { return key + "%last" }

// Unique is the first part of the keys that handoff.TaskKey makes for applications, and UniqueDigits is how many hexadecimal
// digits the last part has. The part between is a type of tasks.
const (
	Unique       = "unique"
	UniqueDigits = 32
)

// TaskType returns the type of the tasks for which handoff.TaskKey returns key, or the key of which key is the Next. An
// application may also have made such a key in another way.
func TaskType(key string) (kind string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(key, Next("")), Unique+":")
	escaped, digest, two := strings.Cut(rest, ":")
	if !ok || !two || len(digest) != UniqueDigits || strings.Trim(digest, "0123456789abcdef") != "" {
		return "", false
	}
	kind, err := url.PathUnescape(escaped)
	return kind, err == nil
}

// permitMark separates the key of a limit from the number of a permit. The limit's key ends at the last permitMark.
const permitMark = "%#"

// Permit returns the key of a permit of the limit on key.
func Permit(key string, number int) string { return key + permitMark + strconv.Itoa(number) }

// Gate returns the key of the gate of the limit on key; see package limit.
func Gate(key string) string { return key + permitMark + "gate" }

// Size returns the key of the record that says how many permits the limit on key has; see package limit.
func Size(key string) string { return key + permitMark + "size" }

// Limit returns the key of the limit. key is the key of a permit, of the gate or of the size of that limit.
func Limit(key string) (limit string, ok bool) {
	i := strings.LastIndex(key, permitMark)
	if i < 0 {
		return "", false
	}
	return key[:i], true
}

// emptyMark is the text that joblock.Key writes for an empty part, before the part's number. All calls refuse a key with
// an emptyMark and a number.
const emptyMark = "%!"

// NoSecret is the text that joblock.Secret.Key writes if the secret cannot be one. All calls refuse a key with it.
const NoSecret = emptyMark + "secret"

// Empty returns the text that joblock.Key writes in place of the empty part with this number; the first part is number 1.
func Empty(number int) string { return emptyMark + strconv.Itoa(number) }

// CheckParts returns a sentence about the first empty part of key, or about the secret that made it, or "" if all is well.
func CheckParts(key string) string {
	_, rest, ok := strings.Cut(key, emptyMark)
	if !ok {
		return ""
	}
	if strings.HasPrefix(rest, "secret") {
		return "the secret of the key must have from 16 to 1024 bytes, and not be SecretOfStore"
	}
	number := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	if number == "" {
		return "" // not written by joblock.Key
	}
	return fmt.Sprintf("part %s of the key is empty", number)
}

// CheckApplication returns a sentence about why an application may not use key, or "" if it may.
func CheckApplication(key string) string {
	if detail := CheckParts(key); detail != "" {
		return detail
	}
	for i := range len(key) {
		if key[i] == '%' && (len(key) < i+3 || !isHex(key[i+1]) || !isHex(key[i+2])) {
			return fmt.Sprintf("key has a '%%' at byte %d that is not followed by two upper-case hexadecimal digits; "+
				"such keys are the toolkit's own, build yours with joblock.Key", i)
		}
	}
	return ""
}

// isHex rejects lower case, because the toolkit's keys have lower case after a '%'.
func isHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }
