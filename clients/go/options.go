package redislock

import (
	"context"
	"log/slog"
	"time"
)

// An Option applies to all locks of a Locks.
type Option func(*options)

type options struct {
	lease         time.Duration
	logger        *slog.Logger
	hooks         Hooks
	label, prefix string
	serverTimeout time.Duration
	maxQueued     int
}

// WithLease sets the lease of locks that set none: 100 ms or more, 30 s by default.
func WithLease(lease time.Duration) Option { return func(o *options) { o.lease = lease } }

// WithLogger sets the logger: slog.Default() by default.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithHooks sets functions that are called for each event.
func WithHooks(hooks Hooks) Option { return func(o *options) { o.hooks = hooks.filled() } }

// WithLabel names this process for operators, as in LOCK.INFO: host:pid by default. The owner of each hold is the label
// and a UUID.
func WithLabel(label string) Option { return func(o *options) { o.label = label } }

// WithPrefix sets a prefix that is prepended to each lock name on the server: empty by default.
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithServerTimeout sets after how long without an answer of any server a wait without a limit fails: 10 s by default.
func WithServerTimeout(timeout time.Duration) Option {
	return func(o *options) { o.serverTimeout = timeout }
}

// WithMaxQueuedPerLock sets how many requests of these locks the server queues for one lock: 16 by default. The others
// wait in the process, in order. It also limits the connections that wait for several locks. Requests with an explicit
// Owner do not count, because the server must see them to detect deadlocks. A wait of theirs for several locks counts
// only until the Owner holds a lock.
func WithMaxQueuedPerLock(most int) Option { return func(o *options) { o.maxQueued = most } }

// Hooks are functions that are called for lock events; each may be nil. They are called while the library works, so they
// must not block. Their context is the one that Requested returned for this acquire.
type Hooks struct {
	// Requested is called when an acquire begins, with its context. When the acquire ends, one of Granted, TimedOut and
	// Failed is called. The context that Requested returns lives as long as the hold, so it should refer to no more than
	// needed. Without Requested, that context is context.Background().
	Requested func(ctx context.Context, lock string) context.Context
	// Waiting is called when an acquire has to wait.
	Waiting func(ctx context.Context, lock string)
	// Granted and TimedOut are called when an acquire ends, with the time that it took.
	Granted, TimedOut func(ctx context.Context, lock string, waited time.Duration)
	// Failed is called when an acquire ends for another reason, for example because its context was cancelled.
	Failed func(ctx context.Context, lock string, waited time.Duration, err error)
	// Released is called when a holder releases its hold, with the time that the hold lasted. If no server has answered
	// the release yet, it is repeated in the background.
	Released func(ctx context.Context, lock string, held time.Duration)
	// Lost is called when a hold is lost. Each granted hold is either released or lost.
	Lost func(ctx context.Context, lock string, held time.Duration, lost *LostError)
	// RenewalFailed is called for each failed renewal.
	RenewalFailed func(ctx context.Context, lock string, err error)
	// Reconnected is called when a server answers again over a new connection.
	Reconnected func(server string)
}

// filled sets a function for each of them.
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

// A LockOption applies to one lock.
type LockOption func(*lockOptions)

type lockOptions struct {
	lease, wait, maxHold, minHold    time.Duration
	hasWait, noRenewal               bool
	hasMaxHold, hasMinHold, hasOwner bool
	owner                            string
}

// Lease sets how long the server keeps the lock unless it is renewed. It overrides WithLease.
func Lease(lease time.Duration) LockOption { return func(o *lockOptions) { o.lease = lease } }

// Wait sets how long Acquire and Run wait for the lock, in addition to the deadline of their context. Without both,
// they wait without a limit.
func Wait(most time.Duration) LockOption {
	return func(o *lockOptions) { o.wait, o.hasWait = most, true }
}

// NoRenewal turns renewals off: the hold ends with its first lease.
func NoRenewal() LockOption { return func(o *lockOptions) { o.noRenewal = true } }

// MaxHold sets how long the hold lasts at most: 100 ms or more. The last lease is shortened to fit.
func MaxHold(most time.Duration) LockOption {
	return func(o *lockOptions) { o.maxHold, o.hasMaxHold = most, true }
}

// MinHold sets how long the lock stays taken at least, counted from its grant, whatever happens to the holder: 100 ms
// or more. An earlier release ends the hold, but the server keeps the lock for the rest of that time. For a job that
// must run once a minute, on any one of many machines, use TryAcquire with MinHold(50 * time.Second).
func MinHold(least time.Duration) LockOption {
	return func(o *lockOptions) { o.minHold, o.hasMinHold = least, true }
}

// Owner sets one owner for the several locks of a task, so that the server detects its deadlocks: 1 to 256 bytes, and
// not *. The server treats requests of the same owner as one, and two holds of one owner and lock are one hold.
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
		return invalid("Owner must have from 1 to %d bytes, and must not be *, which makes a new owner for each request", longestOwner)
	}
	return checkLease("Lease", o.lease)
}

// patience returns the limit of an acquire's wait.
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
