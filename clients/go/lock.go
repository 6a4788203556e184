package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// A Lock describes one or several locks. It holds nothing itself, and can be acquired any number of times.
type Lock struct {
	locks   *Locks
	names   []string
	kind    kind
	limit   int
	options lockOptions
	// invalid is the error in the arguments, which every acquire returns.
	invalid error
}

func (k *Lock) check(names []string) error {
	if len(names) < 1 || len(names) > mostNames {
		return invalid("Many takes 1 to %d names, not %d", mostNames, len(names))
	}
	for i, name := range names {
		switch {
		case name == "":
			return invalid("the name of a lock must not be empty")
		case slices.Contains(names[:i], name):
			return invalid("Many takes each name only once, but %q is given twice", name)
		}
	}
	if k.kind == limited && (k.limit < 1 || k.limit > highestLimit) {
		return invalid("the limit of a semaphore must be from 1 to %d, not %d", highestLimit, k.limit)
	}
	if k.kind == shared && k.options.hasMinHold {
		return invalid("MinHold must not be set for readers: it is for exclusive locks and semaphores")
	}
	return k.options.check()
}

func (k *Lock) wanted() *wanted {
	w := &wanted{
		names: k.names, prefix: len(k.locks.core.prefix), kind: k.kind, limit: k.limit,
		lease: k.options.lease, owner: k.options.owner, isNamed: k.options.hasOwner,
	}
	if k.options.maxHold > 0 {
		w.lease = min(w.lease, k.options.maxHold)
	}
	w.lease, w.firstLease = max(w.lease, k.options.minHold), max(firstLease, k.options.minHold)
	if !w.isNamed {
		w.owner = newOwner(k.locks.core.label)
	}
	return w
}

// Acquire waits for the lock until it is granted, ctx ends, or the time of Wait has passed.
//
// If another owner holds the lock during the whole wait, the error is ErrLockTimeout, and also context.DeadlineExceeded
// if the deadline of ctx ended the wait. If ctx is cancelled, the error is that of ctx. A wait without a limit fails
// with ErrConnectionFailed when no server has replied for WithServerTimeout. After an error nothing is held.
func (k *Lock) Acquire(ctx context.Context) (*Hold, error) {
	began := now()
	hold, err := k.acquire(ctx, k.options.patience(ctx))
	if hold == nil && err == nil {
		err = k.timeout(ctx, began)
	}
	return hold, err
}

// TryAcquire takes the lock if it is free. It returns false without an error only if the server replied that another
// owner holds the lock; every failure is an error. It does not wait, and leaves no position in the queue.
func (k *Lock) TryAcquire(ctx context.Context) (*Hold, bool, error) {
	hold, err := k.acquire(ctx, patience{until: now(), probe: never, once: true})
	return hold, hold != nil, err
}

func (k *Lock) timeout(ctx context.Context, began moment) error {
	return &TimeoutError{Lock: k.label(), Waited: began.age(), Cause: ctx.Err()}
}

func (k *Lock) label() string {
	return (&wanted{names: k.names, prefix: len(k.locks.core.prefix)}).label()
}

// acquire returns nil and no error if the lock was not granted.
func (k *Lock) acquire(ctx context.Context, p patience) (*Hold, error) {
	if k.invalid != nil {
		return nil, k.invalid
	}
	began, c, w := now(), k.locks.core, k.wanted()
	w.ctx = c.hooks.Requested(ctx, w.label())
	got, err := k.grant(ctx, w, p, began)
	switch {
	case got != nil:
		c.hooks.Granted(w.ctx, w.label(), began.age())
	case err == nil || errors.Is(err, ErrLockTimeout):
		c.hooks.TimedOut(w.ctx, w.label(), began.age())
		return nil, err
	default:
		c.hooks.Failed(w.ctx, w.label(), began.age(), err)
		return nil, err
	}
	hold := newHold(ctx, k, w, got)
	if c.closing.Err() != nil {
		_ = hold.Release(ctx) // it was granted while the locks were closed
		return nil, closed()
	}
	return hold, nil
}

// grant returns nil and no error if the lock was not granted.
func (k *Lock) grant(ctx context.Context, w *wanted, p patience, began moment) (*grant, error) {
	if k.locks.core.closing.Err() != nil {
		return nil, closed()
	}
	if err := k.alreadyHeld(ctx); err != nil {
		return nil, err
	}
	got, err := k.locks.core.acquire(ctx, w, p)
	if got == nil {
		err = k.explain(ctx, w, err, began)
	}
	return got, err
}

// explain returns the reason why nothing was granted.
func (k *Lock) explain(ctx context.Context, w *wanted, err error, began moment) error {
	switch {
	case errors.Is(err, ErrClosed):
		return closed()
	case ctx.Err() == nil:
		return named(err, w.label(), w.lease)
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("redislock: the wait for lock %q was cancelled: %w", w.label(), endOf(ctx))
	}
	// A server that does not answer, or that grants nothing, is not another holder.
	if last := cmp.Or(w.last.Load(), w.quarantine.Load()); last != nil {
		var e *Error
		if errors.As(*last, &e) {
			with := *e
			with.Lock, with.Cause = w.label(), errors.Join(e.Cause, ctx.Err())
			return &with
		}
	}
	servers := k.locks.core.servers
	// A request that waits in the process for its turn has asked no server.
	isUp := moment(servers.heard.Load()) >= began || !w.sent.Load() && began.age() < 2*longestPause && servers.ready(w.name()) != nil
	if w.answered.Load() || isUp {
		return k.timeout(ctx, began)
	}
	failed := unreachable(ctx.Err(), "no server answered in time: %s", servers.place(w.name()))
	failed.Lock = w.label()
	return failed
}

// place names the server that has this lock, for people.
func (s *servers) place(name string) string {
	return cmp.Or(s.address(name), s.config.Addrs[0])
}

// alreadyHeld refuses a wait that could never end, because the context is that of a hold of the same lock.
func (k *Lock) alreadyHeld(ctx context.Context) error {
	count := 0
	for h, _ := ctx.Value(holdKey{}).(*Hold); h != nil; h, _ = h.outer.Value(holdKey{}).(*Hold) {
		if ended, _ := h.held.is(); ended || h.core != k.locks.core || k.options.hasOwner && k.options.owner == h.held.w.owner {
			continue
		}
		if !slices.ContainsFunc(k.names, func(name string) bool { return slices.Contains(h.held.w.names, name) }) {
			continue
		}
		if count++; k.kind != limited || count >= k.limit {
			return &Error{
				Kind: ErrAlreadyHeld, Lock: k.label(),
				Message: "the context is that of a hold of this lock, so the task would wait for itself: pass the hold along",
			}
		}
	}
	return nil
}

// Run acquires the lock, calls fn, and releases the lock however fn ends, even by a panic. The context of fn is
// cancelled when the lock is lost, and when ctx is. If the lock is lost, Run returns a *LostError joined with the error
// of fn.
func (k *Lock) Run(ctx context.Context, fn func(ctx context.Context, hold *Hold) error) (err error) {
	k.locks.core.bodies.count.Add(1)
	defer k.locks.core.bodies.count.Add(-1)
	hold, err := k.Acquire(ctx)
	if err != nil {
		return err
	}
	hold.held.hasFunction()
	body, cancel := context.WithCancelCause(hold.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer func() {
		// An unanswered release continues in the background, and is not an error of fn.
		if lost := hold.Release(ctx); errors.Is(lost, ErrLockLost) {
			err = errors.Join(lost, err)
		}
		runtime.KeepAlive(hold)
	}()
	return fn(body, hold)
}

// A Hold is one lock, or several that were acquired together. Keep a reference to it until you release it: a Hold
// without references is no longer renewed, and ends with its lease.
type Hold struct {
	core  *core
	held  *held
	ctx   context.Context
	outer context.Context
	clean runtime.Cleanup
}

type holdKey struct{}

// A holdContext keeps its Hold alive: code that watches for the loss has not forgotten it.
type holdContext struct {
	context.Context
	hold *Hold
}

func (c *holdContext) Value(key any) any {
	if key == (holdKey{}) {
		return c.hold
	}
	return c.Context.Value(key)
}

func newHold(ctx context.Context, k *Lock, w *wanted, got *grant) *Hold {
	outer := context.WithoutCancel(ctx)
	inner, end := context.WithCancelCause(outer)
	h := &Hold{core: k.locks.core, outer: outer}
	h.held = newHeld(w, got, &k.options, end)
	h.ctx = &holdContext{inner, h}
	c := h.core
	h.clean = runtime.AddCleanup(h, c.forget, h.held)
	c.register(h.held)
	return h
}

// Token returns the fencing token, which is higher than those of all earlier holders. Pass it to the resource that you
// write to, and have that reject a lower token: UPDATE ... SET fence = $1 WHERE id = $2 AND fence <= $1.
func (h *Hold) Token() uint64 { return token(h.held.token) }

// Name returns the name of the lock, or the names of all locks separated by commas, without the prefix.
func (h *Hold) Name() string { return h.held.w.label() }

// Owner returns the owner, as LOCK.INFO shows it.
func (h *Hold) Owner() string { return h.held.w.owner }

// Context returns a context that is cancelled when the lock is lost or released. Its cause is a *LostError or
// ErrReleased. It has the values of the context of the acquire, but not its deadline or cancellation.
func (h *Hold) Context() context.Context { return h.ctx }

// Check returns nil if the lock is certainly held, by the clock of this machine; otherwise a *LostError or ErrReleased.
// It asks no server.
func (h *Hold) Check() error {
	if reason, is := h.held.overdue(); is {
		h.core.lose(h.held, reason)
	}
	switch ended, lost := h.held.is(); {
	case lost != nil:
		return lost
	case ended:
		return ErrReleased
	}
	return nil
}

// Remaining returns how long the lock is certainly held, by the clock of this machine. Renewals extend it in time.
func (h *Hold) Remaining() time.Duration {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	if h.held.ended {
		return 0
	}
	return h.held.deadline.left()
}

// Reason returns the reason for the loss; it is empty if the lock was not lost.
func (h *Hold) Reason() Reason {
	var lost *LostError
	if errors.As(h.Check(), &lost) {
		return lost.Reason
	}
	return ""
}

// Extend starts a new lease now, and later renewals use the same length. After ErrConnectionFailed either lease may be
// in force on the server, so the hold assumes the shorter one.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	if err := checkLease("lease", lease); err != nil {
		return err
	}
	if err := h.Check(); err != nil {
		return err
	}
	if err := h.core.renewHeld(ctx, h.held, lease); err != nil {
		return ended(ctx, err)
	}
	return h.Check() // it may have ended meanwhile
}

// Release releases the lock. It works even if ctx is cancelled, and takes 5 s at most. If no server has answered by
// then, the error is ErrConnectionFailed, and the release is repeated in the background. If the lock was lost, the
// error is a *LostError. A second release does nothing.
func (h *Hold) Release(ctx context.Context) error {
	h.clean.Stop()
	err := h.core.release(ctx, h.held)
	runtime.KeepAlive(h)
	return err
}
