package joblock

import (
	"cmp"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
)

// TryOption is an option of TryAcquire and of every other call that acquires.
type TryOption interface {
	AcquireOption
	try()
}

// AcquireOption is an option of Acquire and of the calls built on it: AcquireAll, Do,
// Singleton, and those of packages limit and singleflight.
type AcquireOption interface{ acquire(*options) }

// ResumeOption is an option of Resume.
type ResumeOption interface{ resume(*options) }

// Option is an option of every call that acquires or resumes. The wrong option for a
// call does not compile. A nil option is ErrInvalid.
//
//	                           TryAcquire  Acquire¹  Resume  Park  Lock.Release  Locker.Release
//	TTL, Holder, NoRenew           x          x        x
//	MaxRenew, Retain               x          x        x
//	Owner                          x          x
//	MaxWait                                   x
//	Reserve                                            x      x
//	ForJob                                             x      x                      x
//	IfIdle                                                                           x
//	Reason                                                        x                  x
//
// ¹ and AcquireAll, Do, Singleton, and the calls of packages limit and singleflight.
type Option interface {
	TryOption
	ResumeOption
}

// ParkOption is an option of Lock.Park.
type ParkOption interface{ park(*parkOptions) }

// ReleaseOption is an option of Locker.Release.
type ReleaseOption interface{ release(*releaseOptions) }

// ReasonOption is an option of Lock.Release, and of Locker.Release.
type ReasonOption interface {
	ReleaseOption
	reason()
}

type (
	option        func(*options)
	tryOption     func(*options)
	acquireOption func(*options)
	jobOption     string
	reserveOption time.Duration
	reasonOption  string
	idleOption    struct{}
)

func (f option) acquire(o *options)        { f(o) }
func (f option) try()                      {}
func (f option) resume(o *options)         { f(o) }
func (f tryOption) acquire(o *options)     { f(o) }
func (f tryOption) try()                   {}
func (f acquireOption) acquire(o *options) { f(o) }

func (job jobOption) resume(o *options)         { o.job = string(job) }
func (job jobOption) park(o *parkOptions)       { o.job = string(job) }
func (job jobOption) release(o *releaseOptions) { o.job = string(job) }

func (d reserveOption) resume(o *options)   { o.reserve = time.Duration(d) }
func (d reserveOption) park(o *parkOptions) { o.reserve = time.Duration(d) }

func (r reasonOption) release(o *releaseOptions) { o.reason = string(r) }
func (reasonOption) reason()                     {}

func (idleOption) release(o *releaseOptions) { o.kind = driver.ReleaseIdle }

type options struct {
	ttl      time.Duration
	retain   time.Duration
	hasKeep  bool // Retain was given
	shared   bool // the caller chose the owner and may have told others
	maxWait  time.Duration
	hasWait  bool
	owner    string
	hasOwn   bool
	holder   string
	job      string
	reserve  time.Duration
	noRenew  bool
	maxRenew time.Duration
	hasRenew bool
	door     door.Option // what only the toolkit asks for
}

// TTL sets the length of the lease: from a millisecond up to Config.MaxTTL, rounded
// down to whole milliseconds. Zero and negative are ErrInvalid and never mean "for
// ever". Default: Config.TTL; for Resume the TTL in the token.
func TTL(d time.Duration) Option {
	return option(func(o *options) { o.ttl = d })
}

// MaxWait bounds the wait; when it is over the error is ErrTimeout. Zero means no wait:
// the error is ErrHeld. Negative is ErrInvalid. Default: as long as ctx lasts.
func MaxWait(d time.Duration) AcquireOption {
	return acquireOption(func(o *options) { o.maxWait, o.hasWait = d, true })
}

// Owner sets the owner token: 1 to 128 bytes of UTF-8 without control characters. It is
// a secret: whoever knows it can release the lock (see NewToken). Locks are not
// re-entrant: the same owner does not get a lock it holds. Default: a random UUIDv4.
func Owner(owner string) TryOption {
	return tryOption(func(o *options) { o.owner, o.hasOwn, o.shared = owner, true, true })
}

// Holder sets the label that people see in Status, List and errors: at most 256 bytes.
// Default: Config.Holder.
func Holder(label string) Option {
	return option(func(o *options) { o.holder = label })
}

// ForJob names a job as "queue/taskID", at most 256 bytes. "" is no job.
//
//   - Park binds the lock to the job: only a Resume for the same job gets it. Without
//     ForJob every bearer of the token can resume.
//   - Resume names the job that asks.
//   - Locker.Release frees the lock only while it is bound to the job.
func ForJob(job string) interface {
	ResumeOption
	ParkOption
	ReleaseOption
} {
	return jobOption(job)
}

// Reserve keeps the key reserved for the token while nobody runs, for at most 366 days.
// 0 means the default.
//
//   - Park: until d from now, by which the job must have started. Default: Config.Reserve.
//   - Resume: until d after the end of each lease, so that nobody else gets the key
//     between a crash of the holder and the job's next attempt. Default: as long as
//     the Park said.
func Reserve(d time.Duration) interface {
	ResumeOption
	ParkOption
} {
	return reserveOption(d)
}

// Reason says why the lock is released, in at most 256 bytes. Status shows it, and so
// do later errors about the lock.
func Reason(text string) ReasonOption { return reasonOption(text) }

// IfIdle releases the lock only while nobody runs under it; see Locker.Release.
func IfIdle() ReleaseOption { return idleOption{} }

// NoRenew leaves renewing to the caller: the lock is lost one TTL after it was taken,
// unless Lock.Renew is called before.
func NoRenew() Option {
	return option(func(o *options) { o.noRenew = true })
}

// MaxRenew bounds how long the lock is renewed, from a millisecond to 366 days. Then it
// runs out. Default: Config.MaxRenew.
func MaxRenew(d time.Duration) Option {
	return option(func(o *options) { o.maxRenew, o.hasRenew = d, true })
}

// Retain sets how long the store remembers the key after the lock has ended, from a
// millisecond to 366 days; see Config.Retain, which is the default.
func Retain(d time.Duration) Option {
	return option(func(o *options) { o.retain, o.hasKeep = d, true })
}

// acquireOptions applies opts over the defaults of c and checks the result. o is the
// caller's, as part of something that is allocated anyway: options get a pointer to it.
func acquireOptions[O AcquireOption](c *Config, o *options, op, key string, opts []O) error {
	o.defaults(c, c.TTL)
	for _, opt := range opts {
		if any(opt) == nil {
			return nilOption(op, key)
		}
		opt.acquire(o)
	}
	return o.check(c, op, key)
}

// resumeOptions is acquireOptions for Resume of a token with that TTL.
func resumeOptions(c *Config, o *options, op, key string, ttl time.Duration, opts []ResumeOption) error {
	o.defaults(c, ttl)
	for _, opt := range opts {
		if opt == nil {
			return nilOption(op, key)
		}
		opt.resume(o)
	}
	return o.check(c, op, key)
}

type parkOptions struct {
	job     string
	reserve time.Duration
}

func (c *Config) parkOptions(op, key string, opts []ParkOption) (parkOptions, error) {
	if len(opts) == 0 {
		return parkOptions{reserve: c.Reserve}, nil
	}
	var o parkOptions
	for _, opt := range opts {
		if opt == nil {
			return o, nilOption(op, key)
		}
		opt.park(&o)
	}
	o.reserve = cmp.Or(o.reserve, c.Reserve)
	if err := checkDuration(op, key, "Reserve", o.reserve, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return o, err
	}
	return o, checkText(op, key, "job", o.job, 0, driver.MaxLabelBytes)
}

type releaseOptions struct {
	job    string
	reason string
	kind   driver.ReleaseKind
}

func releaseOptionsOf[O ReleaseOption](op, key string, opts []O) (releaseOptions, error) {
	if len(opts) == 0 {
		return releaseOptions{}, nil // saves the allocation that the pointer below costs
	}
	var o releaseOptions
	for _, opt := range opts {
		if any(opt) == nil {
			return o, nilOption(op, key)
		}
		opt.release(&o)
	}
	if err := checkText(op, key, "job", o.job, 0, driver.MaxLabelBytes); err != nil {
		return o, err
	}
	return o, checkText(op, key, "reason", o.reason, 0, driver.MaxLabelBytes)
}

func nilOption(op, key string) error { return invalid(op, key, "an option is nil") }

func (o *options) defaults(c *Config, ttl time.Duration) {
	*o = options{ttl: ttl, retain: c.Retain, holder: c.Holder, maxRenew: c.MaxRenew}
}

func (o *options) check(c *Config, op, key string) error {
	if err := checkDuration(op, key, "TTL", o.ttl, driver.MinPeriod, c.MaxTTL); err != nil {
		return err
	}
	o.ttl = o.ttl.Truncate(time.Millisecond)
	if o.hasRenew {
		if err := checkDuration(op, key, "MaxRenew", o.maxRenew, driver.MinPeriod, driver.MaxPeriod); err != nil {
			return err
		}
	}
	if o.maxWait < 0 {
		return invalid(op, key, "MaxWait is %s, must not be negative", o.maxWait)
	}
	if err := checkDuration(op, key, "Retain", o.retain, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return err
	}
	if err := checkDuration(op, key, "Reserve", o.reserve, 0, driver.MaxPeriod); err != nil {
		return err
	}
	if o.hasOwn {
		if err := checkText(op, key, "owner", o.owner, 1, driver.MaxOwnerBytes); err != nil {
			return err
		}
	}
	if err := checkText(op, key, "job", o.job, 0, driver.MaxLabelBytes); err != nil {
		return err
	}
	return checkText(op, key, "holder", o.holder, 0, driver.MaxLabelBytes)
}
