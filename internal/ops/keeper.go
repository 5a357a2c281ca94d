package ops

import (
	"context"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// Keeper is what the keepers of package worker report about themselves, in all processes that share the store.
type Keeper struct {
	// Places are the keepers that work now, followed by those that worked until recently. Among the working keepers,
	// those that change locks come first.
	Places  []KeeperPlace `json:"places"`
	StandBy int           `json:"stand_by"` // how many wait for a place; for a while this includes processes that have died
	Now     Time          `json:"now,omitzero"`

	lengths workerstats.Durations // how long the tasks of workers took, read in the same call
}

// KeeperPlace is the place of a keeper. The counts are those of the keeper's process since it began; see
// worker.KeeperStats.
type KeeperPlace struct {
	Number int    `json:"number"`
	Works  bool   `json:"works"`   // the keeper works now; false for the last keeper that had this place
	DryRun bool   `json:"dry_run"` // the keeper changes nothing
	Holder string `json:"holder"`  // label of the process
	Since  Time   `json:"since"`   // when the keeper began to work
	Fence  int64  `json:"fence"`

	// Problem says why there are no stats. If Problem is set, all fields below are zero.
	Problem string `json:"problem,omitempty"`

	At      Time   `json:"at,omitzero"`         // when the stats were written
	Asked   Time   `json:"asked,omitzero"`      // when the keeper last read the list of locks whose check is due
	Behind  bool   `json:"behind"`              // the keeper is behind, so locks are freed later than Every promises
	Late    Millis `json:"late_ms,omitzero"`    // the largest delay of a check since the previous stats
	Every   Millis `json:"every_ms,omitzero"`   // how often the keeper checks a lock: worker.KeeperConfig.Interval
	Reserve Millis `json:"reserve_ms,omitzero"` // worker.Config.Reserve

	Share     float64 `json:"share,omitempty"`
	Keepers   int     `json:"keepers,omitempty"`   // how many keepers this process lets work at a time
	Databases int     `json:"databases,omitempty"` // how many databases of asynq this process knows

	Checked    int64            `json:"checked"`
	Held       int64            `json:"held"`
	Kept       int64            `json:"kept"`
	Listed     int64            `json:"listed"`
	Extended   int64            `json:"extended"`
	Over       int64            `json:"over"`
	Foreign    int64            `json:"foreign"`
	Unanswered int64            `json:"unanswered"`
	Freed      map[string]int64 `json:"freed,omitempty"` // by reason

	// Strangers are queues that have jobs with locks and are in none of this process's databases; about twenty at most. The
	// keeper leaves the locks of these jobs alone.
	Strangers []string `json:"strangers,omitempty"`
}

// Works returns the first working keeper that changes locks, or nil.
func (k Keeper) Works() *KeeperPlace {
	for i := range k.Places {
		if p := &k.Places[i]; p.Works && !p.DryRun {
			return p
		}
	}
	return nil
}

// working returns the number of working keepers that change locks.
func (k Keeper) working() (n int) {
	for _, p := range k.Places {
		if p.Works && !p.DryRun {
			n++
		}
	}
	return n
}

// defaultEvery is the default of worker.KeeperConfig.Interval, for keepers whose stats are not known.
const defaultEvery = 30 * time.Second

// every returns how often the keeper checks a lock.
func (k Keeper) every() time.Duration { return k.Works().every() }

// every returns how often the keeper checks a lock. The place may be nil.
func (p *KeeperPlace) every() time.Duration {
	if p != nil && p.Every > 0 {
		return p.Every.Duration()
	}
	return defaultEvery
}

// Lags reports whether the keeper is late by at least one interval, so that an operator should know. A keeper that is
// Behind by less catches up by itself.
func (p *KeeperPlace) Lags() bool { return p.Behind && p.Late.Duration() >= p.every() }

// Keeper reads which keepers serve the locks of jobs, and the stats that they write once per workerstats.KeeperPeriod.
// Errors: joblock.ErrUnavailable, joblock.ErrClosed.
func (d *Desk) Keeper(ctx context.Context) (Keeper, error) {
	return d.keepers(ctx, keyspace.Keepers, keyspace.DryKeepers)
}

// keepers is Keeper for only the limits with the given keys. It reads hundreds of records for each.
func (d *Desk) keepers(ctx context.Context, keys ...string) (Keeper, error) {
	const op = "keeper"
	k := Keeper{Places: []KeeperPlace{}}
	if err := d.in.Check(op); err != nil {
		return k, err
	}
	for _, key := range keys {
		if err := d.readKeepers(ctx, op, key, &k); err != nil {
			return Keeper{}, err
		}
	}
	slices.SortStableFunc(k.Places, func(a, b KeeperPlace) int { return rank(a) - rank(b) })
	return k, nil
}

// rank orders places: working keepers first, and among these those that change locks first.
func rank(p KeeperPlace) (n int) {
	if !p.Works {
		n += 2
	}
	if p.DryRun {
		n++
	}
	return n
}

// readKeepers adds to k the keepers that have the permits of the limit key.
func (d *Desk) readKeepers(ctx context.Context, op, key string, k *Keeper) error {
	keys := []string{keyspace.Gate(key)}
	for n := range limit.Max {
		keys = append(keys, keyspace.Permit(key, n+1))
	}
	recs, err := d.inspect(ctx, op, "", keys)
	if err != nil {
		return err
	}
	if gate := lockOf(recs[0]); gate.State == joblock.StateHeld {
		k.StandBy += gate.Waiters + 1
	}
	var used []string
	for _, rec := range recs[1:] {
		if rec.Fence != 0 {
			used = append(used, rec.Key)
		}
	}
	if key == keyspace.Keepers {
		used = append(used, keyspace.Durations)
	}
	recs, err = d.in.Inspect(ctx, op, "", driver.InspectRequest{Keys: used, Memo: true}) // few, because memos are read one by one
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Now.After(k.Now.Time) {
			k.Now = Time{rec.Now}
		}
		if rec.Key == keyspace.Durations {
			if k.lengths, err = workerstats.DecodeDurations(rec.Memo); err != nil {
				k.lengths = workerstats.Durations{} // a worker will rewrite it
			}
			continue
		}
		_, _, number := permitOf(rec.Key)
		k.Places = append(k.Places, placeOf(number, key == keyspace.DryKeepers, rec))
	}
	return nil
}

func placeOf(number int, dry bool, rec driver.Record) KeeperPlace {
	st := joblock.Status(core.StatusOf(rec))
	p := KeeperPlace{
		Number: number, Works: st.State == joblock.StateHeld, DryRun: dry, Holder: st.Holder, Since: Time{st.Since}, Fence: st.Fence,
	}
	if len(rec.Memo) == 0 {
		p.Problem = "The keeper has not written figures yet."
		return p
	}
	f, err := workerstats.DecodeKeeper(rec.Memo)
	if err != nil {
		p.Problem = "The figures could not be read: " + err.Error() + "."
		return p
	}
	if f.Began.Before(st.Since.Add(-time.Second)) { // these stats are from the previous keeper
		p.Problem = "The keeper has not written figures yet."
		return p
	}
	p.At, p.Asked, p.Behind, p.Late = Time{f.At}, Time{f.Asked}, f.Behind, millisOf(f.Late)
	p.Every, p.Reserve, p.Share, p.Keepers, p.Databases = millisOf(f.Every), millisOf(f.Reserve), f.Share, f.Keepers, f.Databases
	p.Checked, p.Held, p.Kept, p.Listed, p.Extended = f.Checked, f.Held, f.Kept, f.Listed, f.Extended
	p.Over, p.Foreign, p.Unanswered, p.Freed, p.Strangers = f.Over, f.Foreign, f.Unanswered, f.Freed, f.Strangers
	return p
}

func millisOf(ms int64) Millis { return Millis(time.Duration(ms) * time.Millisecond) }
