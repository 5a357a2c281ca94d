package rig

import (
	"errors"
	"os"
	"testing"
)

func TestClusterCountsPushesAndLeavesNothing(t *testing.T) {
	const masters = 3
	c, err := StartCluster(t.Context(), DefaultProgram, masters)
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.nodes[0].rdb.Publish(t.Context(), "channel", "text").Err(); err != nil {
		t.Error(err)
	}
	after, err := c.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != masters || len(c.Addrs()) != masters || after[0].Pushes-before[0].Pushes != masters-1 || after[1].Pushes != 0 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if got := after[0].Of("publish").Number; got != 1 {
		t.Errorf("%d calls of publish", got)
	}
	if after[0].Bytes <= before[0].Bytes {
		t.Errorf("%d bytes, then %d", before[0].Bytes, after[0].Bytes)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	for _, s := range c.nodes {
		if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a directory is still there: %v", err)
		}
	}
}

func TestMissingProgramOfAClusterIsAnError(t *testing.T) {
	if c, err := StartCluster(t.Context(), "no-such-server", 3); err == nil {
		t.Errorf("a cluster %v", c)
	}
}
