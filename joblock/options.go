package joblock

import (
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
)

// TryOption is an option of TryAcquire, and of every other call that acquires.
type TryOption interface {
	AcquireOption
	try()
}

// AcquireOption is an option of Acquire and of the calls built on Acquire: AcquireAll, Do, Singleton, and those of
// packages limit, singleflight and fallback.
type AcquireOption interface {
	applier
	acquire()
}

// ResumeOption is an option of Resume.
type ResumeOption interface {
	applier
	resume()
}

// Option is an option of every call that acquires or resumes. The wrong option for a call does not compile. A nil
// option is ErrInvalid.
//
//	                           TryAcquire  Acquire¹  Resume  Park  Lock.Release²  Locker.Release  ForceRelease
//	TTL, Holder, NoRenew           x          x        x
//	MaxRenew, Retain               x          x        x
//	Owner                          x          x
//	MaxWait                                   x
//	Reserve                                            x      x
//	ForJob                                             x      x                         x              x
//	IfIdle                                                                              x              x
//	IfFence                                                                                            x
//	Reason                                                         x                    x              x
//
// ¹ and AcquireAll, Do, Singleton, and the calls of packages limit, singleflight and fallback that take a lock.
// ² and Locks.Release.
type Option interface {
	TryOption
	ResumeOption
}

// ParkOption is an option of Lock.Park.
type ParkOption interface {
	applier
	park()
}

// ReleaseOption is an option of Locker.Release.
type ReleaseOption interface {
	applier
	release()
}

// LockReleaseOption is an option of Lock.Release, and of every other call that releases.
type LockReleaseOption interface {
	ReleaseOption
	ForceOption
	releaseLock()
}

// ForceOption is an option of ForceRelease.
type ForceOption interface {
	applier
	force()
}

// JobOption is what ForJob returns.
type JobOption interface {
	ResumeOption
	ParkOption
	ReleaseOption
	ForceOption
}

// ReserveOption is what Reserve returns.
type ReserveOption interface {
	ResumeOption
	ParkOption
}

// IdleOption is what IfIdle returns.
type IdleOption interface {
	ReleaseOption
	ForceOption
}

// The type applier is every option. The other methods of the interfaces only mark the calls that take the option.
type applier interface{ apply(*options) }

// The type option implements every option interface. The functions below return only those interfaces that fit the
// option.
type option func(*options)

func (f option) apply(o *options) { f(o) }
func (option) try()               {}
func (option) acquire()           {}
func (option) resume()            {}
func (option) park()              {}
func (option) release()           {}
func (option) releaseLock()       {}
func (option) force()             {}

// The type options has the values of one call's options, or the defaults of the options that the call takes.
type options struct {
	ttl      time.Duration
	retain   time.Duration
	hasKeep  bool // Retain was given
	shared   bool // the caller chose the owner, and may have told others
	maxWait  time.Duration
	hasWait  bool
	owner    string
	hasOwn   bool
	holder   string
	job      string
	hasJob   bool // ForJob was given
	reserve  time.Duration
	noRenew  bool
	maxRenew time.Duration
	minRenew time.Duration // the least maxRenew; 0 for the default, which may be 0: no bound
	why      string        // the text in the option Reason
	kind     driver.ReleaseKind
	fence    int64
	hasFence bool        // IfFence was given
	door     door.Option // what only the toolkit asks for
}

// TTL sets the length of the lease, from a millisecond to Config.MaxTTL, rounded down to whole milliseconds. Other
// values are ErrInvalid. Default: Config.TTL, and for Resume the TTL in the token.
func TTL(d time.Duration) Option {
	return option(func(o *options) { o.ttl = d })
}

// MaxWait bounds the wait. When d has passed, the error is ErrTimeout. Zero means no wait, and the error is ErrHeld. A
// negative d is ErrInvalid. Default: as long as ctx lasts.
func MaxWait(d time.Duration) AcquireOption {
	return option(func(o *options) { o.maxWait, o.hasWait = d, true })
}

// Owner sets the owner token: 1 to 128 bytes of UTF-8 without control characters. An owner token is a secret, because
// whoever knows the owner token can release the lock (see NewToken). Locks are not re-entrant: an owner that holds a
// lock cannot acquire the lock again. Default: a random UUIDv4.
func Owner(owner string) TryOption {
	return option(func(o *options) { o.owner, o.hasOwn, o.shared = owner, true, true })
}

// Holder sets the label that people see in Status, List and errors, at most 256 bytes. Default: Config.Holder.
func Holder(label string) Option {
	return option(func(o *options) { o.holder = label })
}

// ForJob names a job as "queue/taskID", in at most 256 bytes. "" is no job: for Park and Resume as without ForJob, and
// ErrInvalid for a release, because a release without ForJob frees the lock of any job.
//
//   - Park binds the lock to the job: only a Resume for the same job gets the lock. Without ForJob every bearer of the
//     token can resume.
//   - Resume resumes a lock that is bound to the job.
//   - Locker.Release and ForceRelease free the lock only while the lock is bound to the job.
func ForJob(job string) JobOption {
	return option(func(o *options) { o.job, o.hasJob = job, true })
}

// Reserve keeps the key reserved for the token while nobody runs, for at most 366 days. 0 means the default.
//
//   - After Park: until d from now, by which time the job must have started. Default: Config.Reserve.
//   - After Resume: until d after the end of each lease. So nobody else gets the key between a crash of the holder and
//     the job's next attempt. Default: the reservation of the Park.
func Reserve(d time.Duration) ReserveOption {
	return option(func(o *options) { o.reserve = d })
}

// Reason gives the reason for the release, in at most 256 bytes. Status shows the reason, and so do later errors about
// the lock.
func Reason(text string) LockReleaseOption {
	return option(func(o *options) { o.why = text })
}

// IfIdle releases the lock only while nobody runs under the lock; see Locker.Release and ForceRelease.
func IfIdle() IdleOption {
	return option(func(o *options) { o.kind = driver.ReleaseIdle })
}

// IfFence frees the key only while it has this fence, as Status.Fence shows it. Each Acquire, Park, Reclaim and Resume
// gives the key another fence.
func IfFence(fence int64) ForceOption {
	return option(func(o *options) { o.fence, o.hasFence = fence, true })
}

// NoRenew leaves renewing to the caller. The lock is lost one TTL after it was taken, unless the caller calls
// Lock.Renew in time.
func NoRenew() Option {
	return option(func(o *options) { o.noRenew = true })
}

// MaxRenew bounds for how long the lock is renewed, from a millisecond to 366 days. Then the lease ends. Default:
// Config.MaxRenew.
func MaxRenew(d time.Duration) Option {
	return option(func(o *options) { o.maxRenew, o.minRenew = d, driver.MinPeriod })
}

// Retain sets how long the store remembers the key after the lock has ended, from a millisecond to 366 days. Default:
// Config.Retain.
func Retain(d time.Duration) Option {
	return option(func(o *options) { o.retain, o.hasKeep = d, true })
}

// optionsOf returns the values of opts, without defaults, for a call that hands over or releases.
func optionsOf[O applier](op, key string, opts []O) (options, error) {
	if len(opts) == 0 {
		return options{}, nil // without the allocation below
	}
	var o options
	err := applyAll(&o, op, key, opts)
	return o, err
}

// leaseOptions sets o to the values of opts, with the defaults of c and the default TTL ttl, for calls that acquire or
// resume. The caller allocates o as part of something larger, because options get a pointer to o.
func leaseOptions[O applier](c *Config, o *options, op, key string, ttl time.Duration, opts []O) error {
	*o = options{ttl: ttl, retain: c.Retain, holder: c.Holder, maxRenew: c.MaxRenew}
	if err := applyAll(o, op, key, opts); err != nil {
		return err
	}
	if err := checkDurations(op, key,
		duration{"TTL", o.ttl, driver.MinPeriod, c.MaxTTL},
		duration{"MaxRenew", o.maxRenew, o.minRenew, driver.MaxPeriod},
		duration{"Retain", o.retain, driver.MinPeriod, driver.MaxPeriod},
		duration{"Reserve", o.reserve, 0, driver.MaxPeriod},
	); err != nil {
		return err
	}
	o.ttl = o.ttl.Truncate(time.Millisecond)
	if o.maxWait < 0 {
		return invalid(op, key, "MaxWait is %s, must not be negative", o.maxWait)
	}
	if !o.hasOwn {
		return nil
	}
	return checkText(op, key, "owner", o.owner, 1, driver.MaxOwnerBytes)
}

// applyAll applies opts to o, and checks the texts, which have the same bound in all calls.
func applyAll[O applier](o *options, op, key string, opts []O) error {
	for _, opt := range opts {
		if any(opt) == nil {
			return invalid(op, key, "an option is nil")
		}
		opt.apply(o)
	}
	for _, text := range [...]struct{ name, val string }{{"job", o.job}, {"holder", o.holder}, {"reason", o.why}} {
		if err := checkText(op, key, text.name, text.val, 0, driver.MaxLabelBytes); err != nil {
			return err
		}
	}
	return nil
}
