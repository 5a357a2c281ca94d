package joblock

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Option changes one acquisition: TryAcquire, Acquire, Do, AcquireAll, Resume.
// Where an option makes no sense for a call its comment says what happens.
type Option func(*options)

type options struct {
	ttl      time.Duration
	retain   time.Duration
	hasKeep  bool // Retain was given
	shared   bool // whoever calls may have told others the owner
	maxWait  time.Duration
	hasWait  bool
	owner    string
	hasOwn   bool
	holder   string
	memo     bool
	job      string
	reserve  time.Duration
	noRenew  bool
	limit    int // 0 for a lock, else how many permits there are
	hasLimit bool
	maxHold  time.Duration
	hasHold  bool
	part     *permits // the acquisition under a Limit that this one is a part of
	silent   bool     // no event tells of the lock: its user does not see it
	own      bool     // the key may be one of the toolkit's own, see package keyspace
}

// TTL sets the length of the lease, from MinTTL up to Config.MaxTTL, in whole
// milliseconds (rounded down). Zero and negative are errors and never mean "for
// ever". Default: Config.TTL; for Resume, the TTL in the token.
func TTL(d time.Duration) Option { return func(o *options) { o.ttl = d } }

// MaxWait bounds how long Acquire, Do and AcquireAll wait; afterwards they
// return ErrTimeout. Zero means not to wait at all: ErrHeld. Default: as long as
// ctx lets them. TryAcquire and Resume never wait and ignore it.
func MaxWait(d time.Duration) Option {
	return func(o *options) { o.maxWait, o.hasWait = d, true }
}

// Owner sets the owner token instead of a random UUIDv4: 1 to MaxOwnerBytes of
// UTF-8 without control characters. It is a secret, and whoever knows it can
// release the lock. The same owner does not get a lock it already holds: locks
// are not re-entrant. Resume takes the owner from its token and ignores this.
func Owner(owner string) Option {
	return func(o *options) { o.owner, o.hasOwn, o.shared = owner, true, true }
}

// Holder sets the label that people see in Status, List and errors, at most
// MaxLabelBytes long. Default: Config.Holder.
func Holder(label string) Option { return func(o *options) { o.holder = label } }

// ForJob names the job that resumes, as "queue/taskID". A lock parked for a job
// can be resumed under that name only. ReleaseIdle takes it too; acquisitions other
// than Resume ignore it.
func ForJob(job string) Option { return func(o *options) { o.job = job } }

// Reserve keeps the key reserved for the token until d after the end of each
// lease of a resumed lock: so that nobody else gets it between the crash of a
// job's holder and the job's next attempt. Without it a reservation ends when the
// Park before said, however long the holder ran. At most MaxPeriod. Calls other
// than Resume ignore it.
func Reserve(d time.Duration) Option { return func(o *options) { o.reserve = d } }

// NoRenew makes the lock run out one TTL after it was taken, unless Renew is
// called by hand.
func NoRenew() Option { return func(o *options) { o.noRenew = true } }

// MaxHold sets how long the lock is renewed at the most, in place of
// Config.MaxHold. It must be positive.
func MaxHold(d time.Duration) Option {
	return func(o *options) { o.maxHold, o.hasHold = d, true }
}

// WithMemo has the store send the key's memo along with the grant, for Lock.Memo. A memo
// may be large, and most holders have no use for it.
func WithMemo() Option { return func(o *options) { o.memo = true } }

// Retain sets how long the store remembers this key after the lock has ended,
// in place of Config.Retain: the life of its memo.
func Retain(d time.Duration) Option {
	return func(o *options) { o.retain, o.hasKeep = d, true }
}

// options applies opts over the defaults of c and checks the result.
func (c *Config) options(op, key string, ttl time.Duration, opts []Option) (options, error) {
	var o options
	err := c.optionsTo(&o, op, key, ttl, opts)
	return o, err
}

// optionsTo is options for a caller that has a place for them: what options
// functions are given a pointer to is allocated.
func (c *Config) optionsTo(o *options, op, key string, ttl time.Duration, opts []Option) error {
	*o = options{ttl: ttl, retain: c.Retain, holder: c.Holder, maxHold: c.MaxHold}
	for _, opt := range opts {
		if opt == nil {
			return invalid(op, key, "an option is nil")
		}
		opt(o)
	}
	if err := checkDuration(op, key, "TTL", o.ttl, MinTTL, c.MaxTTL); err != nil {
		return err
	}
	o.ttl = o.ttl.Truncate(time.Millisecond)
	if o.hasHold {
		if err := checkDuration(op, key, "MaxHold", o.maxHold, MinTTL, driver.MaxPeriod); err != nil {
			return err
		}
	}
	if o.maxWait < 0 {
		return invalid(op, key, "MaxWait is %s, must not be negative", o.maxWait)
	}
	if err := checkDuration(op, key, "Retain", o.retain, MinTTL, driver.MaxPeriod); err != nil {
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
	if err := o.checkLimit(op, key); err != nil {
		return err
	}
	return checkText(op, key, "holder", o.holder, 0, driver.MaxLabelBytes)
}
