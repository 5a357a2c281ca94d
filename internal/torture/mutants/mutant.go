package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/joblock/toolkit/internal/history"
)

// mutant is one broken rule.
type mutant struct {
	name  string
	edits []edit
	found []string // complaints that give it away; any of them does
}

// edit replaces a text that occurs once in a file.
type edit struct {
	file     string // from the root of the module
	old, new string
}

const (
	scripts = "joblock/redisstore/scripts/"

	leakedLock    = "leaked lock"
	leakedWaiters = "leaked waiters"
)

var mutants = []mutant{
	{"a lock is renewed by whoever was its owner once",
		[]edit{{scripts + "renew.lua", "if no then return no end", ""}},
		[]string{history.RuleForced, history.RuleOverlap, history.RuleInterleaved}},
	{"a lock is released under an older fence",
		[]edit{
			{scripts + "release_fast.lua", " and tonumber(ARGV[2]) == fence", ""},
			{scripts + "release.lua", "refusal(by, ARGV[2], grant_call, true)", "refusal(by, '0', '', true)"},
		},
		[]string{history.RuleOverlap, history.RuleOrder}},
	{"the trust deadline counts from the reply",
		[]edit{{"joblock/lock.go", "k.trust = sent.Add(", "k.trust = k.l.now().Add("}},
		[]string{history.RuleOverlap, history.RuleOrder, history.RuleFence}},
	{"a lease has no end",
		[]edit{
			{scripts + "acquire_fast.lua", "local ends = now + 1 + ttl", "local ends = now + 3600000"},
			{scripts + "queue.lua", "lease = now + 1 + waiter.ttl", "lease = now + 3600000"},
		},
		[]string{leakedLock}},
	{"fences do not grow",
		[]edit{
			{scripts + "acquire_fast.lua", "math.max((fence or 0) + 1, now_us)", "(fence or 1)"},
			{scripts + "functions.lua", "math.max((fence or 0) + 1, now_us)", "(fence or 1)"},
			{scripts + "resume_fast.lua", "math.max(fence + 1, now_us)", "fence"},
		},
		[]string{history.RuleFence}},
	{"a live holder is pre-empted by the next attempt",
		[]edit{
			{scripts + "resume_fast.lua", " and lease <= now then", " then"},
			{scripts + "resume.lua", "  return obstacle(BUSY)\n", ""},
		},
		[]string{history.RuleOverlap}},
	{"a parked lock is anybody's",
		[]edit{{scripts + "park.lua", "now + 1 + hold", "now + 1"}},
		[]string{history.RuleOrder}},
	{"who gives up leaves its place behind",
		[]edit{{scripts + "queue.lua", "  redis.call('HDEL', key, 'w' .. call, 'q' .. n)\n", "  redis.call('HDEL', key, 'q' .. n)\n"}},
		[]string{leakedWaiters}},
	{"loss is not told by the clock",
		[]edit{{"joblock/lock.go", "return k.liveLocked() && past(now, k.tellAtLocked())", "return false"}},
		[]string{history.RuleLate}},
}

// overlay writes the mutant's files to dir, and what go test is to be told of them.
func (m *mutant) overlay(root, dir string) (file string, err error) {
	replace := make(map[string]string)
	for i, e := range m.edits {
		path := filepath.Join(root, e.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return "", fmt.Errorf("%s: %q occurs %d times in %s, must be there once", m.name, e.old, n, e.file)
		}
		changed := filepath.Join(dir, fmt.Sprintf("%d%s", i, filepath.Ext(e.file)))
		if err := os.WriteFile(changed, bytes.Replace(text, []byte(e.old), []byte(e.new), 1), 0o600); err != nil {
			return "", err
		}
		replace[path] = changed
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
