package core

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// The holdings of these tests are granted at begun, under fence 10. They are to be
// renewed after 10 s, trusted for 26 s, and count as lost after 25.5 s.
var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(d time.Duration) time.Time { return begun.Add(d) }

func testTerms() terms {
	owner := "owner"
	return terms{key: "key", owner: &owner, holder: "us", ttl: 30 * time.Second, margin: 4 * time.Second}
}

func testHolding() holding { return granted(testTerms(), begun, begun, 10, true, time.Minute, nil) }

// The answers of the store.
var (
	silence = driver.Reply{}
	refused = driver.Reply{Outcome: driver.OutcomeNotOwner, Holder: "them"}
)

func ok(fence int64) driver.Reply { return driver.Reply{Outcome: driver.OutcomeOK, Fence: fence} }

// Only holding.go changes a holding: elsewhere a Lock's is assigned once, as a whole.
func TestOnlyHoldingsChangeThemselves(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || name == "holding.go" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			a, is := n.(*ast.AssignStmt)
			if !is {
				return true
			}
			for _, to := range a.Lhs {
				if field, is := to.(*ast.SelectorExpr); is {
					if h, is := field.X.(*ast.SelectorExpr); is && h.Sel.Name == "h" {
						t.Errorf("%s assigns %s of a holding", name, field.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

// The error of a loss says if this process was paused, and if its holder has ended the renewals.
func TestLossSaysWhatStoodStill(t *testing.T) {
	const stood = "noticed 6s after it: this process was paused"
	for _, c := range []struct {
		seen time.Duration
		says bool
	}{{25500 * time.Millisecond, false}, {27 * time.Second, false}, {32 * time.Second, true}} {
		h := testHolding()
		s := h.timePassed(at(c.seen))
		if !errors.Is(s.lost, ErrLost) || strings.Contains(s.lost.Error(), stood) != c.says {
			t.Errorf("seen after %s: %v", c.seen, s.lost)
		}
	}
	h := testHolding()
	h.renewingStopped()
	if s := h.timePassed(at(32 * time.Second)); !errors.Is(s.lost, ErrNotRenewed) || strings.Contains(s.lost.Error(), stood) {
		t.Errorf("no longer renewed: %v", s.lost)
	}
}
