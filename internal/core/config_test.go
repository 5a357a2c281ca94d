package core_test

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
)

func TestConfigDefaults(t *testing.T) {
	var none *core.Config
	c := core.WithDefaults(none)
	if c.TTL != 30*time.Second || c.MaxTTL != 24*time.Hour || c.Reserve != time.Hour || c.Retain != 5*time.Minute ||
		c.JobGrace != 20*time.Second || c.Poll != 4*time.Second || c.CallTimeout != 3*time.Second || c.Margin != 0 || c.MaxRenew != 0 ||
		c.Holder == "" || c.Logger == nil {
		t.Errorf("the defaults are %+v", c)
	}
	mine := &core.Config{TTL: 48 * time.Hour, Holder: "me"}
	c = core.WithDefaults(mine)
	if c.TTL != 48*time.Hour || c.MaxTTL != 48*time.Hour || c.Holder != "me" {
		t.Errorf("got %+v", c)
	}
	if mine.MaxTTL != 0 || mine.Logger != nil {
		t.Error("WithDefaults has changed its receiver")
	}
}
