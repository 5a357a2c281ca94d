package worker_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The record of the lock says which attempt of how many has it. An archived task that was
// run again gets one more; the panic had cost it its spare one.
func TestHolderNamesTheAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(context.Context, int) error
		want []string
	}{
		"error": {fail, []string{"1/2", "2/2", "2/2"}},
		"panic": {blow, []string{"1/2", "2/2", "3/3"}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				var got []string
				r.enqueue("a", 1)
				r.serve(service{}, p.handler(func(ctx context.Context, n int) error {
					got = append(got, r.status("key-a").Holder)
					if n <= 2 {
						return tt.end(ctx, n)
					}
					return nil
				}))
				r.untilTask("a", "archived")
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
				r.untilTask("a", "gone")
				var want []string
				for _, of := range tt.want {
					want = append(want, (*core.Locker)(r.locks).Settings().Holder+" attempt "+of)
				}
				if !slices.Equal(got, want) {
					t.Errorf("the holders were %q, want %q", got, want)
				}
			})
		})
	}
}

func TestLongHolderIsCutForTheAttempt(t *testing.T) {
	virtual(t, func(r *rig) {
		locks, err := joblock.New(r.faults, &joblock.Config{
			Holder: "x" + strings.Repeat("ü", driver.MaxLabelBytes/2-1), Logger: r.log.Text(),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = locks.Close(context.Background()) }) // after the server's Shutdown
		var p probe
		var holder string
		r.enqueue("a", 0)
		r.serve(service{locks: locks}, p.handler(func(context.Context, int) error {
			holder = r.status("key-a").Holder
			return nil
		}))
		r.untilTask("a", "gone")
		if !strings.HasPrefix(holder, "xüü") || !strings.HasSuffix(holder, "ü attempt 1/1") || !utf8.ValidString(holder) ||
			len(holder) > driver.MaxLabelBytes || len(holder) < driver.MaxLabelBytes-1 {
			t.Errorf("the holder was %q, %d bytes", holder, len(holder))
		}
		r.wantEnded("key-a", "job done")
	})
}
