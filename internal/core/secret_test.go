package core

import (
	"strings"
	"testing"
)

func TestASecretRevealsItsOwner(t *testing.T) {
	const id = "5c3e7a11-0b1d-4e2f-9a77-d00dfeedc0de"
	owners := []string{
		id, newOwner(), "00000000-0000-0000-0000-000000000000", strings.ToUpper(id), "5C3e7a11-0b1d-4e2f-9a77-d00dfeedc0de", "x" + id[1:],
		"urn:uuid:" + id, "{" + id + "}", strings.ReplaceAll(id, "-", ""), id[:35] + "\x00", id + "x", "worker-1", "", strings.Repeat("o", 128),
	}
	seen := make(map[secret]string)
	for _, owner := range owners {
		s := newSecret(owner)
		if got := s.reveal(); got != owner {
			t.Errorf("%q is revealed as %q", owner, got)
		}
		if s != newSecret(strings.Clone(owner)) {
			t.Errorf("two secrets of %q are not ==", owner)
		}
		if other, found := seen[s]; found {
			t.Errorf("%q and %q have the same secret", owner, other)
		}
		seen[s] = owner
	}
	if got := (secret{}).reveal(); got != "" {
		t.Errorf("the zero secret reveals %q", got)
	}
	if n := testing.AllocsPerRun(100, func() { _ = newSecret(id) }); n > 1 {
		t.Errorf("the secret of a UUID takes %v allocations", n)
	}
}
