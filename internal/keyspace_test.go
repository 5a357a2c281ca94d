package internal_test

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/keyspace"
)

func TestTheToolkitsKeysAreNoApplications(t *testing.T) {
	for _, key := range []string{keyspace.Keepers, keyspace.DryKeepers, keyspace.Durations, keyspace.Again("default/1"), keyspace.Again("default/beef"), keyspace.Cron("cron"), keyspace.Cron("cron:%25"), keyspace.CronScopes, keyspace.CronNames("a%3Ab", 3), keyspace.CronNodes("a"), keyspace.CronNode("a", "f00"), keyspace.Next("x"), keyspace.Next("a%3Ab"), keyspace.Permit("x", 3), keyspace.Gate("x"), keyspace.Size("x")} {
		if keyspace.CheckApplication(key) == "" {
			t.Errorf("%q passes for a key of an application", key)
		}
		if detail := keyspace.CheckParts(key); detail != "" {
			t.Errorf("%q: %s", key, detail)
		}
	}
	for _, key := range []string{"", "x", "a:b", "a::b", "%25", "a%3A%0Ab"} {
		if detail := keyspace.CheckApplication(key); detail != "" {
			t.Errorf("%q: %s", key, detail)
		}
	}
}

func TestKeyOfALimit(t *testing.T) {
	for key, want := range map[string]string{keyspace.Permit("x", 3): "x", keyspace.Gate("x"): "x", keyspace.Permit("a%#1", 2): "a%#1", keyspace.Gate(""): "", keyspace.Size("y"): "y"} {
		if limit, ok := keyspace.Limit(key); !ok || limit != want {
			t.Errorf("Limit(%q) is %q, %t, want %q", key, limit, ok, want)
		}
	}
	if limit, ok := keyspace.Limit("x%next"); ok {
		t.Errorf("x%%next is of the limit %q", limit)
	}
}

func TestWhatIsWrongWithAKeyIsNamed(t *testing.T) {
	for key, want := range map[string]string{
		"a:" + keyspace.Empty(2): "part 2 of", "a:" + keyspace.Empty(12) + ":b": "part 12 of", "100%!": "byte 3", "a%3A%": "byte 4", "%3a": "byte 0",
	} {
		if got := keyspace.CheckApplication(key); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want it to say %q", key, got, want)
		}
	}
}

func TestTaskTypeOfAKey(t *testing.T) {
	const digest = "541dc1350123456789abcdef00000000"
	for key, want := range map[string]string{
		"unique:report:" + digest:                    "report",
		keyspace.Next("unique:report:" + digest):     "report",
		"unique:mail%3Awelcome:" + digest:            "mail:welcome",
		"unique:100%25:" + digest:                    "100%",
		"unique:report:" + digest[1:]:                "-",
		"unique:report:" + digest + "0":              "-",
		"unique:report:X" + digest[1:]:               "-",
		"unique:mail:welcome:" + digest:              "-", // TaskKey writes no colon within a part
		"unique:" + keyspace.Empty(2) + ":" + digest: "-",
		"unique:" + digest:                           "-",
		"report:" + digest:                           "-",
		"a:unique:report:" + digest:                  "-",
		"":                                           "-",
	} {
		kind, ok := keyspace.TaskType(key)
		if !ok {
			kind = "-"
		}
		if kind != want {
			t.Errorf("TaskType(%q) is %q, want %q", key, kind, want)
		}
	}
}
