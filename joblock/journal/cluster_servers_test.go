//go:build servers

package journal_test

import (
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

func TestStreamIsCappedInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+c.Node(0).Backend())
	capped(t, c.Client(t))
}
