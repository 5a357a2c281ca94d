package redistest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"
)

// Password is that of every user made by [Server.SetUser].
const Password = "pw"

// SetUser makes the ACL user with the rules, as ACL SETUSER takes them, and with no
// others.
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

// Denied returns what users were not allowed, as the server's ACL LOG has it: "hkeys
// (command, lua)".
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

// Rules returns the rules "+command" that stand in a text in the block behind a heading,
// up to the next heading: the rights that a package's documentation lists.
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
