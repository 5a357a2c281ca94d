package keeper

import (
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// candidate is a due lock without a holder.
type candidate struct {
	jobs.Entry
	lock    joblock.Status // read before the lookup of the task
	place   *driver.Place  // the job's place in line, as of now; nil if the lock is bound to the job
	now     time.Time
	task    finding
	verdict verdict
	again   time.Duration // jobs.Settlement.Again
}

func (c *candidate) mark() bool { return c.Key == keyspace.Again(c.Job) }
