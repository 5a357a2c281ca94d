package worker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/worker"
)

// A program that can read the locks can read what the working keeper has found, without asking its process.
func TestKeeperPublishesItsStats(t *testing.T) {
	virtual(t, func(r *rig) {
		read := func() (workerstats.Keeper, memo.View) {
			r.t.Helper()
			views, err := memo.Read(r.t.Context(), r.locks, keyspace.Permit(keyspace.Keepers, 1))
			if err != nil {
				t.Fatal(err)
			}
			f, err := workerstats.DecodeKeeper(views[0].Memo)
			if err != nil {
				t.Fatal(err)
			}
			return f, views[0]
		}
		lock, err := r.locks.TryAcquire(r.t.Context(), "key")
		if err == nil {
			_, err = lock.Park(r.t.Context(), joblock.ForJob("nowhere/1"))
		}
		if err != nil {
			t.Fatal(err)
		}
		w, stop := r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: 1, MaxLoad: 0.5}})
		time.Sleep(time.Second)
		if f, view := read(); f.Began.Sub(view.Since).Abs() > time.Second || f.Checked != 0 {
			t.Errorf("at the begin: %+v, want it to have begun at %s", f, view.Since)
		}
		time.Sleep(2 * every)
		for range 20 {
			time.Sleep(3 * time.Second)
			f, view := read()
			if age := view.Now.Sub(f.At); age < -time.Second || age > workerstats.KeeperPeriod+time.Second {
				t.Errorf("the figures are %s old", age)
			}
			if silent := f.At.Sub(f.Asked); silent < 0 || silent > 5*time.Second {
				t.Errorf("the keeper had no answer for %s", silent)
			}
			if f.Every != every.Milliseconds() || f.Share != 0.5 || f.Keepers != 1 || f.Databases != 1 || f.DryRun || f.Behind {
				t.Errorf("%+v", f)
			}
			if f.Foreign < 1 || f.Foreign > w.KeeperStats().Foreign || f.Checked > w.KeeperStats().Checked {
				t.Errorf("%+v, and the keeper itself says %+v", f, w.KeeperStats())
			}
			if !slices.Equal(f.Strangers, []string{"nowhere"}) {
				t.Errorf("strangers: %q", f.Strangers)
			}
		}
		stop()
		last, view := read() // of the keeper that worked last
		if view.State != joblock.StateFree || last.Checked == 0 {
			t.Errorf("after the keeper: %s, %+v", view.State, last)
		}
		r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 0.25}})
		time.Sleep(time.Second)
		if f, _ := read(); !f.Began.After(last.At) || f.Share != 0.25 || f.Checked != 0 {
			t.Errorf("the next keeper: %+v", f)
		}
	})
}
