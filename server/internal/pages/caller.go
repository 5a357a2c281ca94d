package pages

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// Caller is the viewer of a page.
type Caller struct {
	ID      string
	From    string // the caller's address, for the record of actions
	Operate bool   // may free locks and control tasks
	Cron    bool   // may pause, resume and trigger cron jobs
	Admin   bool   // may see what operators have done
	Expires time.Time

	// Prefixes and Queues are all that the caller may see, unless AllKeys or AllQueues is set.
	Prefixes  []string
	AllKeys   bool
	Queues    []string
	AllQueues bool

	// Acts counts actions of the caller, and reports whether they may begin. Nil allows all.
	Acts func(n int) bool

	// Session says that the caller has signed in on these pages, and can sign out.
	Session bool
}

// MayUse reports whether the caller may see the key.
func (c *Caller) MayUse(key string) bool {
	return c.AllKeys || slices.ContainsFunc(c.Prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}

// mayJob reports whether the caller may see and control the job, judging by the job's queue.
func (c *Caller) mayJob(job string) bool {
	queue, _, ok := ops.ParseJob(job)
	return c.AllQueues || ok && slices.Contains(c.Queues, queue)
}

// sight returns a text for cache keys that stands for what the caller may see: callers with the same sight read the same.
func (c *Caller) sight() string {
	if c.AllKeys && c.AllQueues {
		return ""
	}
	return "\x00" + c.sees()
}

// seen returns a load that reads only what the caller may see. The cache calls load with a context of its own, so load
// itself must carry the caller's rights.
func seen[T any](c *Caller, load func(context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) { return load(ops.SeenBy(ctx, c.viewer())) }
}

func (c *Caller) viewer() (v ops.Viewer) {
	if !c.AllKeys {
		v.Key = c.MayUse
	}
	if !c.AllQueues {
		v.Queue = func(queue string) bool { return slices.Contains(c.Queues, queue) }
	}
	return v
}

// sees returns a text that stands for what the caller may see: what is computed for one caller is right for all with the
// same text.
func (c *Caller) sees() string {
	return fmt.Sprintf("%q %t %q %t", c.Prefixes, c.AllKeys, c.Queues, c.AllQueues)
}

func (c *Caller) mayDo(n int) bool { return c.Acts == nil || c.Acts(n) }

func (c *Caller) ended(now time.Time) bool { return !c.Expires.IsZero() && !now.Before(c.Expires) }
