package redisstore

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// rules returns the documented rights of areas, with the keys and channels.
func rules(areas ...area) []string {
	out := []string{"~joblock:*", "resetchannels", "&joblock:*"}
	for _, a := range areas {
		for _, r := range a.rights {
			out = append(out, "+"+r.rule)
		}
	}
	return out
}

// onOne are the areas of a Store on one server.
var onOne = []area{lockRights, jobRights, rateRights, pushRights, deathRights, listRights}

func TestRightsAreDocumented(t *testing.T) {
	documented := redistest.Rules(t, "doc.go", "Permissions")
	listed := rules(append(slices.Clone(onOne), clusterRights, shardRights, replicaRights)...)[3:]
	slices.Sort(documented)
	slices.Sort(listed)
	if !slices.Equal(documented, listed) {
		t.Errorf("documented are %v, listed %v", documented, listed)
	}
}

// What the scripts may call is found in them, so that none can be forgotten; that each is
// needed is another matter.
func TestRightsAreThoseOfTheScripts(t *testing.T) {
	files, err := fs.Glob(scripts, "scripts/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	var called []string
	for _, name := range files {
		text, err := scripts.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`redis\.p?call\(\s*'([A-Z]+)'`).FindAllSubmatch(text, -1)
		if all := len(regexp.MustCompile(`redis\.p?call\b`).FindAll(text, -1)); all != len(found) {
			t.Errorf("%s has %d calls, of which %d begin with a command's name", name, all, len(found))
		}
		for _, m := range found {
			called = append(called, strings.ToLower(string(m[1])))
		}
	}
	slices.Sort(called)
	called = slices.Compact(called)
	var listed []string
	for _, a := range []area{lockRights, jobRights, rateRights, pushRights, deathRights, shardRights} {
		for _, r := range a.rights {
			notOfScripts := []string{
				"eval", "evalsha", "getrange", "subscribe", "unsubscribe", "ping", "ssubscribe", "sunsubscribe", "cluster|shards", "cluster|myid",
			}
			if !slices.Contains(notOfScripts, r.rule) {
				command, _, _ := strings.Cut(r.rule, "|")
				listed = append(listed, command)
			}
		}
	}
	slices.Sort(listed)
	listed = slices.Compact(listed) // two rights of PUBSUB
	if !slices.Equal(called, listed) {
		t.Errorf("the scripts call %v, listed are %v", called, listed)
	}
}
