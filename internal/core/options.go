package core

import (
	"cmp"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Options are the options of a call that acquires or resumes a lock. The zero value of each field means its default.
type Options struct {
	TTL      time.Duration // default Config.TTL, and the TTL in the token for Resume
	Retain   time.Duration // default Config.Retain
	MaxRenew time.Duration // default Config.MaxRenew
	NoRenew  bool
	Holder   string        // default Config.Holder
	Owner    string        // default: a random UUIDv4
	Shared   bool          // the caller chose Owner, and other callers may know it
	Bounded  bool          // MaxWait was given
	MaxWait  time.Duration // 0 with Bounded means no wait
	Job      string        // for Resume: the job that the lock is bound to
	Reserve  time.Duration // for Resume
	Bad      string        // why the call returns ErrInvalid; "" if it does not

	// OwnKey permits one of the toolkit's own keys; see package keyspace. The call may also take a lock that ctx carries:
	// the toolkit takes its locks for work other than that of ctx.
	OwnKey bool

	// Memo asks for the key's memo along with the grant; see package memo.
	Memo bool

	// Part marks a part of a larger acquisition. Only the larger acquisition bounds the wait and has event.Contended and
	// event.GaveUp. The part's event.Acquired counts Waited from Since, unless Since is zero.
	Part  bool
	Since time.Time

	// Silent suppresses all events of the lock, because users do not see this lock.
	Silent bool

	// Nonce, unless empty, names the call to the store. Another process that repeats the call with the same Nonce and the
	// same Owner gets the grant of the first process. Therefore a grant whose answer was lost is not cleaned up: a late
	// clean-up could end the grant that the other process has found. Only a place in the queue is given up.
	Nonce string

	// Detached leaves the lock to the bearer of its token. This process neither renews the lock nor signals its loss, and
	// the Lock that the call returns is for reading only.
	Detached bool

	// Waits, unless nil, is called after each refusal that leaves the caller in line, with the number of places ahead.
	// Waits must not block. A wait for a permit of a limit does not call Waits.
	Waits func(ahead int)

	// LongGate makes the lease of a limit's gate last as long as Config.TTL, for waiters that wait for days; see
	// package limit. Each of them polls the store less often, but if the first in line dies, the others lose up to one
	// TTL instead of five seconds.
	LongGate bool

	kept bool // Retain was given
}

// With is an option of the calls of package joblock that acquire or resume.
type With func(*Options)

// Acquire and Resume implement joblock.Option.
func (w With) Acquire(o *Options) { w(o) }
func (w With) Resume(o *Options)  { w(o) }

// OwnKey is an option for one of the toolkit's own keys; see Options.OwnKey.
var OwnKey With = func(o *Options) { o.OwnKey = true }

// nilOption is the Options.Bad of a nil option.
const nilOption = "an option is nil"

// Acquiring returns the Options that opts set. O is joblock.AcquireOption, or joblock.Option.
func Acquiring[O interface{ Acquire(*Options) }](opts []O) Options {
	return set(opts, O.Acquire, Options{Bad: nilOption})
}

// Resuming is Acquiring for joblock.ResumeOption.
func Resuming[O interface{ Resume(*Options) }](opts []O) Options {
	return set(opts, O.Resume, Options{Bad: nilOption})
}

// set returns what opts set, or bad if one of them is nil.
func set[O, T any](opts []O, apply func(O, *T), bad T) T {
	if len(opts) == 0 {
		var none T
		return none // without the allocation below
	}
	var all T
	for _, opt := range opts {
		if any(opt) == nil {
			return bad
		}
		apply(opt, &all)
	}
	return all
}

// complete fills in the defaults of c, with ttl as the default of TTL, and checks the values.
func (o *Options) complete(c *Config, op, key string, ttl time.Duration) error {
	if o.Bad != "" {
		return Invalid(op, key, "%s", o.Bad)
	}
	least := time.Duration(driver.MinPeriod) // of MaxRenew; the default may be 0: no bound
	if o.MaxRenew == 0 {
		o.MaxRenew, least = c.MaxRenew, 0
	}
	o.kept = o.Retain != 0
	o.TTL, o.Retain, o.Holder = cmp.Or(o.TTL, ttl), cmp.Or(o.Retain, c.Retain), cmp.Or(o.Holder, c.Holder)
	for _, text := range [...]struct{ name, val string }{{"job", o.Job}, {"holder", o.Holder}} {
		if err := CheckText(op, key, text.name, text.val, 0, driver.MaxLabelBytes); err != nil {
			return err
		}
	}
	if err := checkDurations(op, key,
		duration{"TTL", o.TTL, driver.MinPeriod, c.MaxTTL},
		duration{"MaxRenew", o.MaxRenew, least, driver.MaxPeriod},
		duration{"Retain", o.Retain, driver.MinPeriod, driver.MaxPeriod},
		duration{"Reserve", o.Reserve, 0, driver.MaxPeriod},
	); err != nil {
		return err
	}
	o.TTL = o.TTL.Truncate(time.Millisecond)
	if o.MaxWait < 0 {
		return Invalid(op, key, "MaxWait is %s, must not be negative", o.MaxWait)
	}
	if o.Owner == "" && !o.Shared {
		return nil
	}
	return CheckText(op, key, "owner", o.Owner, 1, driver.MaxOwnerBytes)
}

// Release are the options of a call that releases locks.
type Release struct {
	Reason string

	// Job, unless empty, releases only a lock that is bound to this job. With Done the lock ends as EndedDone, so that a
	// later delivery of the job does not run.
	Job  string
	Done bool

	IfIdle bool   // for tokens and keys: release only while no lease is alive
	Fence  int64  // for tokens and keys: release only this term, unless 0
	Bad    string // why the call returns ErrInvalid; "" if it does not

	// Granted receives each job that the call has granted a key to, before the call returns. Granted must not block: the
	// caller starts the job after the call. Without Granted, the store announces the job to jobs.Listen.
	Granted Granted

	// Releaser, unless nil, stands in for Store.Release, for locks of one Locker. After its error the Locker holds the
	// locks as before, and does not repeat the releases. A later Release of these locks sends the same requests.
	Releaser Releaser
}

// Granted is a function that receives a job, "queue/taskID", and the key that the job has got.
type Granted func(key, job string)

// Releaser is driver.Store.Release or a stand-in for it.
type Releaser func(context.Context, []driver.ReleaseRequest) ([]driver.Reply, error)

// Releasing returns the Release that opts set. O is joblock.ReleaseOption or joblock.LockReleaseOption.
func Releasing[O interface{ Release(*Release) }](opts []O) Release {
	return set(opts, O.Release, Release{Bad: nilOption})
}

// check returns ErrInvalid for values out of bounds.
func (r *Release) check(op, key string) error {
	switch {
	case r.Bad != "":
		return Invalid(op, key, "%s", r.Bad)
	case r.Fence < 0 || r.Fence > driver.MaxFence:
		return Invalid(op, key, "fence is %d, must be from 1 to %d", r.Fence, int64(driver.MaxFence))
	}
	if err := CheckText(op, key, "job", r.Job, 0, driver.MaxLabelBytes); err != nil {
		return err
	}
	return CheckText(op, key, "reason", r.Reason, 0, driver.MaxLabelBytes)
}

// Park are the options of a Park.
type Park struct {
	Job     string        // binds the lock to this job; "" means that each bearer of the token can resume
	Reserve time.Duration // default Config.Reserve
	Bad     string        // why the call returns ErrInvalid; "" if it does not
}

// Parking returns the Park that opts set. O is joblock.ParkOption.
func Parking[O interface{ Park(*Park) }](opts []O) Park {
	return set(opts, O.Park, Park{Bad: nilOption})
}
