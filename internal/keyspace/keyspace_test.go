package keyspace

import (
	"strings"
	"testing"
)

func TestTheToolkitsKeysAreNoApplications(t *testing.T) {
	for _, key := range []string{Keepers, DryKeepers, Usual, Again("default/1"), Again("default/beef"), Cron("cron"), Cron("cron:%25"), CronScopes, CronNames("a%3Ab", 3), CronNodes("a"), CronNode("a", "f00"), Next("x"), Next("a%3Ab"), Permit("x", 3), Gate("x"), Size("x")} {
		if CheckApplication(key) == "" {
			t.Errorf("%q passes for a key of an application", key)
		}
		if detail := CheckParts(key); detail != "" {
			t.Errorf("%q: %s", key, detail)
		}
	}
	for _, key := range []string{"", "x", "a:b", "a::b", "%25", "a%3A%0Ab"} {
		if detail := CheckApplication(key); detail != "" {
			t.Errorf("%q: %s", key, detail)
		}
	}
}

func TestLimit(t *testing.T) {
	for key, want := range map[string]string{Permit("x", 3): "x", Gate("x"): "x", Permit("a%#1", 2): "a%#1", Gate(""): "", Size("y"): "y"} {
		if limit, ok := Limit(key); !ok || limit != want {
			t.Errorf("Limit(%q) is %q, %t, want %q", key, limit, ok, want)
		}
	}
	if limit, ok := Limit("x%next"); ok {
		t.Errorf("x%%next is of the limit %q", limit)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	for key, want := range map[string]string{
		"a:" + Empty(2): "part 2 of", "a:" + Empty(12) + ":b": "part 12 of", "100%!": "byte 3", "a%3A%": "byte 4", "%3a": "byte 0",
	} {
		if got := CheckApplication(key); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want it to say %q", key, got, want)
		}
	}
}

func TestTaskType(t *testing.T) {
	const digest = "541dc1350123456789abcdef00000000"
	for key, want := range map[string]string{
		"unique:report:" + digest:           "report",
		Next("unique:report:" + digest):     "report",
		"unique:mail%3Awelcome:" + digest:   "mail:welcome",
		"unique:100%25:" + digest:           "100%",
		"unique:report:" + digest[1:]:       "-",
		"unique:report:" + digest + "0":     "-",
		"unique:report:X" + digest[1:]:      "-",
		"unique:mail:welcome:" + digest:     "-", // TaskKey writes no colon within a part
		"unique:" + Empty(2) + ":" + digest: "-",
		"unique:" + digest:                  "-",
		"report:" + digest:                  "-",
		"a:unique:report:" + digest:         "-",
		"":                                  "-",
	} {
		kind, ok := TaskType(key)
		if !ok {
			kind = "-"
		}
		if kind != want {
			t.Errorf("TaskType(%q) is %q, want %q", key, kind, want)
		}
	}
}
