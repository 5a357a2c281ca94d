package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseURL(t *testing.T) {
	for text, want := range map[string]address{
		"redis://localhost":                    {kind: "single", hosts: []string{"localhost:6379"}},
		"redis://h:1/3":                        {kind: "single", hosts: []string{"h:1"}, db: 3},
		"rediss://u:p%40%2F@h":                 {kind: "single", tls: true, hosts: []string{"h:6379"}, user: "u", password: "p@/"},
		"redis://:p@h":                         {kind: "single", hosts: []string{"h:6379"}, password: "p"},
		"redis://u:p@q@h":                      {kind: "single", hosts: []string{"h:6379"}, user: "u", password: "p@q"},
		"redis://[::1]:7":                      {kind: "single", hosts: []string{"[::1]:7"}},
		"redis://[::1]":                        {kind: "single", hosts: []string{"[::1]:6379"}},
		"redis-sentinel://a,b:1/main/2":        {kind: "sentinel", hosts: []string{"a:26379", "b:1"}, master: "main", db: 2},
		"rediss-sentinel://u@a/main":           {kind: "sentinel", tls: true, hosts: []string{"a:26379"}, master: "main", user: "u"},
		"redis-cluster://a:1,b:2,[::1]:3":      {kind: "cluster", hosts: []string{"a:1", "b:2", "[::1]:3"}},
		"rediss-cluster://a":                   {kind: "cluster", tls: true, hosts: []string{"a:6379"}},
		"unix:///run/redis.sock?db=4":          {kind: "unix", hosts: []string{"/run/redis.sock"}, db: 4},
		"unix:///run/redis.sock":               {kind: "unix", hosts: []string{"/run/redis.sock"}},
		"localhost:6379":                       {},
		"http://h":                             {},
		"redis://":                             {},
		"redis://a,b":                          {},
		"redis://[":                            {},
		"redis://[]":                           {},
		"redis://[::1":                         {},
		"redis://h]":                           {},
		"redis://h/x":                          {},
		"redis://h/-1":                         {},
		"redis://h?db=1":                       {},
		"redis://u:%zz@h":                      {},
		"redis-sentinel://a":                   {},
		"redis-cluster://a/1":                  {},
		"redis-cluster://a,,b":                 {},
		"unix://":                              {},
		"redis://user:secret@h:1/not-a-number": {},
		"redis://:a/secret@h:1/0":              {},
		"redis://:a?secret@h":                  {},
		"redis-cluster://:a/secret@h:1":        {},
		"redis-sentinel://:a/secret@h/main/0":  {},

		"redis-sentinel://a/main?sentinel_user=op&sentinel_password=p%40%26": {kind: "sentinel", hosts: []string{"a:26379"}, master: "main", sentinelUser: "op", sentinelPassword: "p@&"},
		"redis-sentinel://u:q@a/main/2?sentinel_password=p":                  {kind: "sentinel", hosts: []string{"a:26379"}, master: "main", db: 2, user: "u", password: "q", sentinelPassword: "p"},
		"redis-sentinel://a/main?sentinel_pasword=secret":                    {},
		"redis-sentinel://a/main?sentinel_password=%zzsecret":                {},
		"redis://a?sentinel_password=secret":                                 {},
		"redis-sentinel://a/main?sentinel_password=secret@h":                 {},
	} {
		got, err := parseURL(text)
		if want.kind == "" {
			if codeOf(err) != exitUsage || strings.Contains(err.Error(), "secret") {
				t.Errorf("parseURL(%q) = %+v, %v, want a usage error without the password", text, got, err)
			}
			if safe := withoutPassword(text); strings.Contains(safe, "secret") {
				t.Errorf("withoutPassword(%q) = %q", text, safe)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parseURL(%q) = %+v, %v, want %+v", text, got, err, want)
		}
		if safe := withoutPassword(text); strings.Contains(safe, querySentinelPassword) {
			t.Errorf("withoutPassword(%q) = %q", text, safe)
		} else if want.password != "" && (strings.Contains(safe, "p") && strings.Contains(safe, ":p")) {
			t.Errorf("withoutPassword(%q) = %q", text, safe)
		} else if _, err := parseURL(safe); err != nil {
			t.Errorf("withoutPassword(%q) = %q, which is no URL: %v", text, safe, err)
		}
	}
}

func TestAddressOfFlagsAndEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		s    server
		env  map[string]string
		host string // "" for an error
		pw   string
		spw  string // the password at the Sentinels
	}{
		"default":                          {host: "localhost:6379"},
		"flag":                             {s: server{url: "redis://a"}, env: map[string]string{envRedis: "redis://b"}, host: "a:6379"},
		"environment":                      {env: map[string]string{envRedis: "redis://b"}, host: "b:6379"},
		"password in a flag":               {s: server{url: "redis://:secret@a"}},
		"password in environment":          {env: map[string]string{envRedis: "redis://:x@b"}, host: "b:6379", pw: "x"},
		"password file":                    {s: server{url: "redis://a", passwordFile: file}, host: "a:6379", pw: "secret"},
		"password file by name":            {s: server{url: "redis://a"}, env: map[string]string{envPasswordFile: file}, host: "a:6379", pw: "secret"},
		"empty password file":              {s: server{url: "redis://a", passwordFile: empty}},
		"no password file":                 {s: server{url: "redis://a", passwordFile: file + "x"}},
		"Sentinel's password in a flag":    {s: server{url: "redis-sentinel://a/m?sentinel_password=secret"}},
		"Sentinel's password in a file":    {s: server{url: "redis-sentinel://a/m", sentinelFile: file}, host: "a:26379", spw: "secret"},
		"Sentinel's password by name":      {s: server{url: "redis-sentinel://a/m"}, env: map[string]string{envSentinelFile: file}, host: "a:26379", spw: "secret"},
		"Sentinel's password for a server": {s: server{url: "redis://a", sentinelFile: file}},
		"Sentinel's user for a cluster":    {s: server{url: "redis-cluster://a", sentinelUser: "op"}},
		"Sentinel's variable, a server":    {env: map[string]string{envSentinelFile: file}, host: "localhost:6379"},
	} {
		a, err := tc.s.address(func(name string) string { return tc.env[name] })
		if tc.host == "" {
			if codeOf(err) != exitUsage || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %+v, %v, want a usage error without the password", name, a, err)
			}
			continue
		}
		if err != nil || a.hosts[0] != tc.host || a.password != tc.pw || a.sentinelPassword != tc.spw {
			t.Errorf("%s: %+v, %v, want host %s", name, a, err, tc.host)
		}
	}
}

// A file that flags name may be a pipe, which can be read once.
func TestAPipeIsReadOnce(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("secret\n"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := server{url: "redis://a", timeout: time.Second, passwordFile: fmt.Sprintf("/dev/fd/%d", r.Fd())}
	for range 2 {
		if a, err := s.address(os.Getenv); err != nil || a.password != "secret" {
			t.Errorf("%+v, %v", a, err)
		}
	}
}

func TestDatabasesOfAsynq(t *testing.T) {
	for name, tc := range map[string]struct {
		s    server
		env  map[string]string
		want []string // "" for an error
	}{
		"default":              {want: []string{"localhost:6379"}},
		"flag":                 {s: server{asynq: []string{"redis://a/1", "redis://b"}}, env: map[string]string{envAsynq: "redis://c"}, want: []string{"a:6379/1", "b:6379"}},
		"environment":          {env: map[string]string{envAsynq: "redis://:secret@c/2"}, want: []string{"c:6379/2 secret"}},
		"password in a flag":   {s: server{asynq: []string{"redis://:secret@a"}}},
		"bad URL":              {env: map[string]string{envAsynq: "http://a"}},
		"same server":          {s: server{asynq: []string{"redis://a/3"}}, env: map[string]string{envRedis: "redis://:secret@a"}, want: []string{"a:6379/3 secret"}},
		"another server":       {s: server{asynq: []string{"redis://b/3"}}, env: map[string]string{envRedis: "redis://:secret@a"}, want: []string{"b:6379/3"}},
		"same Redis, password": {env: map[string]string{envRedis: "redis://:secret@a/1"}, want: []string{"a:6379/1 secret"}},
	} {
		_, all, err := tc.s.databases(func(name string) string { return tc.env[name] })
		var got []string
		for _, a := range all {
			got = append(got, strings.TrimSpace(a.name()+" "+a.password))
		}
		if !reflect.DeepEqual(got, tc.want) || (err == nil) != (tc.want != nil) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
		if err != nil && (codeOf(err) != exitUsage || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
