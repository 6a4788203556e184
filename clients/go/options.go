package redislock

import (
	"context"
	"log/slog"
	"time"
)

// An Option sets something for all locks of a Locks.
type Option func(*options)

type options struct {
	lease         time.Duration
	logger        *slog.Logger
	hooks         Hooks
	label, prefix string
	serverTimeout time.Duration
	maxQueued     int
}

// WithLease sets how long a hold lasts unless it is renewed: 100 ms or more, 30 s by default.
func WithLease(lease time.Duration) Option { return func(o *options) { o.lease = lease } }

// WithLogger sets where the library logs: slog.Default() by default.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithHooks sets functions that hear what becomes of locks.
func WithHooks(hooks Hooks) Option { return func(o *options) { o.hooks = hooks.filled() } }

// WithLabel sets who holds, for operators: host:pid by default. The owner of each hold is the label and a UUID.
func WithLabel(label string) Option { return func(o *options) { o.label = label } }

// WithPrefix sets what stands before each name on the server: nothing by default.
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithServerTimeout sets how long no server may answer while an acquire waits without an end: 10 s by default.
func WithServerTimeout(timeout time.Duration) Option {
	return func(o *options) { o.serverTimeout = timeout }
}

// WithMaxQueuedPerLock sets how many of this process stand in the server's queue of one lock; the others queue behind
// them in the process. It is also how many connections may wait for several locks at once. 16 by default. An Owner counts
// in neither: each of its waits has a place, and, once it holds a lock, each of its waits for several a connection.
func WithMaxQueuedPerLock(most int) Option { return func(o *options) { o.maxQueued = most } }

// Hooks are functions that hear what becomes of locks; each may be nil. They are called in the middle of the work, so they
// must be quick. Their context is the one that Requested returned for this acquire.
type Hooks struct {
	// Requested hears that an acquire begins, and one of Granted, TimedOut and Failed hears of its end. Its own context is
	// that of the acquire. The one that it returns lasts as long as the hold, so it should refer to no more than is needed.
	// Without it that is context.Background().
	Requested func(ctx context.Context, lock string) context.Context
	// Waiting hears that an acquire waits.
	Waiting func(ctx context.Context, lock string)
	// Granted and TimedOut hear how long an acquire took.
	Granted, TimedOut func(ctx context.Context, lock string, waited time.Duration)
	// Failed hears of an acquire that ended for another reason, as a context that was cancelled.
	Failed func(ctx context.Context, lock string, waited time.Duration, err error)
	// Released hears how long a hold lasted that its holder released. Where no server has answered that, the background
	// continues the release.
	Released func(ctx context.Context, lock string, held time.Duration)
	// Lost hears of a hold that was lost. Each hold that was granted is either released or lost.
	Lost func(ctx context.Context, lock string, held time.Duration, lost *LostError)
	// RenewalFailed hears of each attempt to renew that failed.
	RenewalFailed func(ctx context.Context, lock string, err error)
	// Reconnected hears of a server that serves again over a new connection.
	Reconnected func(server string)
}

// filled has a function for each of them.
func (h Hooks) filled() Hooks {
	if h.Requested == nil {
		h.Requested = func(context.Context, string) context.Context { return context.Background() }
	}
	if h.Waiting == nil {
		h.Waiting = func(context.Context, string) {}
	}
	for _, hook := range []*func(context.Context, string, time.Duration){&h.Granted, &h.TimedOut, &h.Released} {
		if *hook == nil {
			*hook = func(context.Context, string, time.Duration) {}
		}
	}
	if h.Failed == nil {
		h.Failed = func(context.Context, string, time.Duration, error) {}
	}
	if h.Lost == nil {
		h.Lost = func(context.Context, string, time.Duration, *LostError) {}
	}
	if h.RenewalFailed == nil {
		h.RenewalFailed = func(context.Context, string, error) {}
	}
	if h.Reconnected == nil {
		h.Reconnected = func(string) {}
	}
	return h
}

func (o *options) check() error {
	switch {
	case o.logger == nil:
		return invalid("WithLogger must have a logger: slog.New(slog.DiscardHandler) logs nothing")
	case len(o.label) > longestOwner-40:
		return invalid("WithLabel must have at most %d bytes, not %d", longestOwner-40, len(o.label))
	case o.serverTimeout < attemptTime:
		return invalid("WithServerTimeout must be %v or more, not %v", attemptTime, o.serverTimeout)
	case o.maxQueued < 1:
		return invalid("WithMaxQueuedPerLock must be 1 or more, not %d", o.maxQueued)
	}
	return checkLease("WithLease", o.lease)
}

func checkLease(what string, lease time.Duration) error {
	if lease < shortestLease {
		return invalid("%s must be %v or more, not %v", what, shortestLease, lease)
	}
	return nil
}

// A LockOption sets something for one lock.
type LockOption func(*lockOptions)

type lockOptions struct {
	lease, wait, maxHold, minHold    time.Duration
	hasWait, noRenewal               bool
	hasMaxHold, hasMinHold, hasOwner bool
	owner                            string
}

// Lease sets how long the hold lasts unless it is renewed, in place of WithLease.
func Lease(lease time.Duration) LockOption { return func(o *lockOptions) { o.lease = lease } }

// Wait bounds the wait of Acquire and Run, besides the deadline of their context: without both they wait without an end.
func Wait(most time.Duration) LockOption {
	return func(o *lockOptions) { o.wait, o.hasWait = most, true }
}

// NoRenewal leaves the lease to its end: the hold is over then.
func NoRenewal() LockOption { return func(o *lockOptions) { o.noRenewal = true } }

// MaxHold sets after what time the hold ends at the latest. The last lease is cut to it.
func MaxHold(most time.Duration) LockOption {
	return func(o *lockOptions) { o.maxHold, o.hasMaxHold = most, true }
}

// MinHold sets for how long the lock stays taken from its grant at least, whatever becomes of the holder: the server keeps
// it. A release before ends the hold for its holder, and leaves the lock taken for the rest. A job that is to be done once
// a minute on any machine takes a lock with TryAcquire and MinHold(50 * time.Second).
func MinHold(least time.Duration) LockOption {
	return func(o *lockOptions) { o.minHold, o.hasMinHold = least, true }
}

// Owner sets who holds: 1 to 256 bytes, and not *. For the server all requests of one owner are the same, so use it for
// the several locks of one task: the server sees its deadlocks with others. Two holds of one owner and lock are one hold.
func Owner(owner string) LockOption {
	return func(o *lockOptions) { o.owner, o.hasOwner = owner, true }
}

func (o *lockOptions) check() error {
	switch {
	case o.hasWait && o.wait < 0:
		return invalid("Wait must be 0 or more, not %v", o.wait)
	case o.hasMaxHold && o.maxHold < shortestLease:
		return invalid("MaxHold must be %v or more, not %v", shortestLease, o.maxHold)
	case o.hasMinHold && o.minHold < shortestLease:
		return invalid("MinHold must be %v or more, not %v", shortestLease, o.minHold)
	case o.hasMaxHold && o.minHold > o.maxHold:
		return invalid("MinHold must be MaxHold (%v) or less, not %v", o.maxHold, o.minHold)
	case o.hasOwner && (o.owner == "" || o.owner == "*" || len(o.owner) > longestOwner):
		return invalid("Owner must have from 1 to %d bytes, and not be *, which is another owner each time", longestOwner)
	}
	return checkLease("Lease", o.lease)
}

// patience is how long an acquire may wait.
func (o *lockOptions) patience(ctx context.Context) patience {
	p := patience{arrived: numbers.Add(1), until: never, probe: never, once: o.hasWait && o.wait == 0}
	if o.hasWait {
		p.until = now().after(o.wait)
	}
	if end, has := ctx.Deadline(); has {
		left := max(0, time.Until(end))
		if until := now().after(left); until < p.until {
			p.until, p.byContext = until, true
		}
		p.probe = now().after(left - min(longestPause, left/4))
	}
	return p
}
