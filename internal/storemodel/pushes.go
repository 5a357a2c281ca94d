package storemodel

import (
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	heardInbox   = "heard"
	unheardInbox = "unheard" // nobody listens to it any more: its pushes are lost
)

// pushTimeout is how long the test waits for a push. It guards against hanging; it is no requirement.
const pushTimeout = 10 * time.Second

// pushes has the pushes to heardInbox that were not read yet.
type pushes chan driver.Push

func listen(t *testing.T, store driver.Store) pushes {
	p := make(pushes, 1<<16)
	stop, err := store.Subscribe(t.Context(), heardInbox, func(push driver.Push) { p <- push })
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	t.Cleanup(stop)
	if stop, err = store.Subscribe(t.Context(), unheardInbox, func(driver.Push) {}); err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	stop()
	return p
}

func (p pushes) left() int { return len(p) }

func (p pushes) clear() {
	for len(p) > 0 {
		<-p
	}
}

// await reads the next push. Its nonce must be the parameter call. If the push carries a grant, it
// must be this one.
func (p pushes) await(call string, grant driver.Grant) error {
	timeout := time.NewTimer(pushTimeout)
	defer timeout.Stop()
	select {
	case got := <-p:
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
