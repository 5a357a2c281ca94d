package storemodel

import (
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	heardInbox   = "heard"
	unheardInbox = "unheard" // this inbox has no subscriber: its pushes are lost
)

// pushTimeout is how long the test waits for a push. The timeout only ends a test that would hang, and is no
// requirement.
const pushTimeout = 10 * time.Second

// pushes has the pushes that were not read yet. A store promises no order between the pushes to different inboxes: the
// items of one batch may push to both.
type pushes struct{ heard, jobs chan driver.Push }

func listen(t *testing.T, store driver.Store) pushes {
	p := pushes{make(chan driver.Push, 1<<16), make(chan driver.Push, 1<<16)}
	for inbox, to := range map[string]chan driver.Push{heardInbox: p.heard, driver.JobsInbox: p.jobs} {
		stop, err := store.Subscribe(t.Context(), inbox, func(push driver.Push) { to <- push })
		if err != nil {
			t.Fatalf("Subscribe: %v", err)
		}
		t.Cleanup(stop)
	}
	return p
}

func (p pushes) left() int { return len(p.heard) + len(p.jobs) }

func (p pushes) clear() {
	for _, from := range []chan driver.Push{p.heard, p.jobs} {
		for len(from) > 0 {
			<-from
		}
	}
}

// await reads the next push to heardInbox. The nonce of the push must be call. If the push carries a grant, it must be
// grant.
func (p pushes) await(call string, grant driver.Grant) error {
	timeout := time.NewTimer(pushTimeout)
	defer timeout.Stop()
	select {
	case got := <-p.heard:
		if got.Nonce != call {
			return fmt.Errorf("a push came for %s, want one for %s", got.Nonce, call)
		}
		if got.Grant != nil && *got.Grant != grant {
			return fmt.Errorf("the push has the grant %+v, want %+v", *got.Grant, grant)
		}
		return nil
	case <-timeout.C:
		return fmt.Errorf("no push for %s came in %s", call, pushTimeout)
	}
}

// awaitJob reads the next push to JobsInbox, which must be for this key and this job.
func (p pushes) awaitJob(key, job string) error {
	timeout := time.NewTimer(pushTimeout)
	defer timeout.Stop()
	select {
	case got := <-p.jobs:
		if want := (driver.Push{Key: key, Job: job}); got != want {
			return fmt.Errorf("a push %+v came, want %+v", got, want)
		}
		return nil
	case <-timeout.C:
		return fmt.Errorf("no push for job %s came in %s", job, pushTimeout)
	}
}
