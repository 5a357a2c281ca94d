package joblock

import (
	"time"

	"github.com/joblock/toolkit/internal/core"
)

// Option is an option of every call that acquires or resumes. An option that does not fit a call does not compile.
// Calls return ErrInvalid for a nil option.
//
//	                           Acquire¹  Resume  Park  Lock.Release²  Locker.Release, ForceRelease
//	TTL, Holder, NoRenew          x        x
//	MaxRenew, Retain              x        x
//	Owner, MaxWait                x
//	Reserve, ForJob                        x      x
//	Reason                                               x                 x
//	IfIdle, IfFence                                                        x
//
// ¹ and TryAcquire, AcquireAll, Do, Singleton, and the calls of packages limit, singleflight and fallback that take a
// lock. With MaxWait, TryAcquire returns ErrInvalid.
//
// ² and Locks.Release.
type Option interface {
	AcquireOption
	ResumeOption
}

// AcquireOption is an option of the calls that acquire: TryAcquire, Acquire, AcquireAll, Do, Singleton, and those of
// packages limit, singleflight and fallback.
type AcquireOption interface{ Acquire(*core.Options) }

// ResumeOption is an option of Resume.
type ResumeOption interface{ Resume(*core.Options) }

// ParkOption is an option of Lock.Park and of Resume.
type ParkOption interface {
	ResumeOption
	Park(*core.Park)
}

// ReleaseOption is an option of Locker.Release and of ForceRelease.
type ReleaseOption interface{ Release(*core.Release) }

// LockReleaseOption is an option of Lock.Release, and of every other call that releases.
type LockReleaseOption interface {
	ReleaseOption
	releaseLock()
}

// TTL sets the length of the lease, from a millisecond to Config.MaxTTL, rounded down to whole milliseconds. For other
// values the error is ErrInvalid. Default: Config.TTL, and for Resume the TTL in the token.
func TTL(d time.Duration) Option {
	return core.With(func(o *core.Options) { period(&o.TTL, "TTL", d, &o.Bad) })
}

// MaxWait bounds the wait. When d has passed, the error is ErrTimeout. If d is zero, the call does not wait, and the
// error is ErrHeld. If d is negative, the error is ErrInvalid. Default: as long as ctx lasts.
func MaxWait(d time.Duration) AcquireOption {
	return core.With(func(o *core.Options) { o.MaxWait, o.Bounded = d, true })
}

// Owner sets the owner token: 1 to 128 bytes of UTF-8 without control characters. An owner token is a secret, because
// any caller that knows it can release the lock (see NewToken). Locks are not re-entrant: an owner that holds a lock
// cannot acquire it again. Default: a random UUIDv4.
func Owner(owner string) AcquireOption {
	return core.With(func(o *core.Options) { o.Owner, o.Shared = owner, true })
}

// Holder sets the label that people see in Status, List and errors, at most 256 bytes. Default: Config.Holder.
func Holder(label string) Option {
	return core.With(func(o *core.Options) { o.Holder = label })
}

// NoRenew leaves renewing to the caller. The lock is lost one TTL after it was taken, unless the caller calls
// Lock.Renew in time.
func NoRenew() Option {
	return core.With(func(o *core.Options) { o.NoRenew = true })
}

// MaxRenew bounds how long the lock is renewed, from a millisecond to 366 days. Then the lease ends. Default:
// Config.MaxRenew.
func MaxRenew(d time.Duration) Option {
	return core.With(func(o *core.Options) { period(&o.MaxRenew, "MaxRenew", d, &o.Bad) })
}

// Retain sets how long the store remembers the key after the lock has ended, from a millisecond to 366 days. Default:
// Config.Retain.
func Retain(d time.Duration) Option {
	return core.With(func(o *core.Options) { period(&o.Retain, "Retain", d, &o.Bad) })
}

// period sets a period that must not be 0, which would mean the default.
func period(set *time.Duration, name string, d time.Duration, bad *string) {
	if *set = d; d == 0 {
		*bad = name + " is 0s, must be at least 1ms"
	}
}

// ForJob binds the lock to a job, "queue/taskID", in at most 256 bytes. "" means no job.
//
//   - Park binds the lock to the job: only a Resume for the same job gets the lock. Without ForJob every bearer of the
//     token can resume.
//   - Resume resumes a lock that is bound to the job.
func ForJob(job string) ParkOption { return forJob(job) }

type forJob string

func (j forJob) Park(p *core.Park)      { p.Job = string(j) }
func (j forJob) Resume(o *core.Options) { o.Job = string(j) }

// Reserve keeps the key reserved for the token while the lock has no live holder, for at most 366 days. 0 means the
// default.
//
//   - After Park: for d from the Park on. The job must start within that time. Default: Config.Reserve.
//   - After Resume: for d after the end of each lease, so that no other owner gets the key between a crash of the
//     holder and the job's next attempt. Default: the reservation of the Park.
func Reserve(d time.Duration) ParkOption { return reserve(d) }

type reserve time.Duration

func (d reserve) Park(p *core.Park)      { p.Reserve = time.Duration(d) }
func (d reserve) Resume(o *core.Options) { o.Reserve = time.Duration(d) }

// Reason gives the reason for the release, in at most 256 bytes. Status and later errors about the lock show it.
func Reason(text string) LockReleaseOption { return reason(text) }

type reason string

func (r reason) Release(o *core.Release) { o.Reason = string(r) }
func (reason) releaseLock()              {}

// IfIdle releases the lock only while it has no live holder; see Locker.Release and ForceRelease.
func IfIdle() ReleaseOption {
	return releaseIf(func(r *core.Release) { r.IfIdle = true })
}

// IfFence releases the lock only while it has this fence, as Status.Fence shows it. Each Acquire, Park, Reclaim and
// Resume gives the key a new fence. For a fence below 1 the error is ErrInvalid.
func IfFence(fence int64) ReleaseOption {
	return releaseIf(func(r *core.Release) {
		if r.Fence = fence; fence == 0 {
			r.Bad = "fence is 0, must be at least 1"
		}
	})
}

type releaseIf func(*core.Release)

func (f releaseIf) Release(r *core.Release) { f(r) }
