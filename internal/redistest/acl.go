package redistest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"
)

// Password is the password of every user that [Server.SetUser] makes.
const Password = "pw"

// SetUser makes an ACL user. The user has the given rules, in the form of ACL SETUSER, and no other rules.
func (s *Server) SetUser(t testing.TB, user string, rules ...string) {
	t.Helper()
	args := []any{"acl", "setuser", user, "reset", "on", ">" + Password}
	for _, rule := range rules {
		args = append(args, rule)
	}
	if err := s.Client(t).Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("ACL SETUSER %s: %v", user, err)
	}
}

// Denied returns what users tried and were not allowed, from the server's ACL LOG, such as "hkeys (command, lua)".
func (s *Server) Denied(t testing.TB) []string {
	t.Helper()
	entries, err := s.Client(t).ACLLog(context.Background(), 100).Result()
	if err != nil {
		t.Fatalf("ACL LOG: %v", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, fmt.Sprintf("%s (%s, %s)", e.Object, e.Reason, e.Context))
	}
	return out
}

// Rules returns the rules, such as "+get", from the comment in file that follows heading, up to the next heading. A
// package lists there the rights that it needs.
func Rules(t testing.TB, file, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)\n// # ` + heading + `\n(.*?)\n// # `).FindSubmatch(text)
	if block == nil {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	var out []string
	for _, rule := range regexp.MustCompile(`(?:^|[ \t\n])(\+[a-z|]+)`).FindAllSubmatch(block[1], -1) {
		out = append(out, string(rule[1]))
	}
	return out
}
