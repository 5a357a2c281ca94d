//go:build servers

package ops

import (
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

func TestDeskOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, "cluster of "+c.Node(0).Backend())
	deskOf(t, c.Client(t))
}
