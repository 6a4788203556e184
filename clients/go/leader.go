package redislock

import (
	"context"
	"errors"
	"sync/atomic"
)

// A Leader stands for election: the holder of its lock leads. Set the functions that you need, and call Run.
type Leader struct {
	lock *Lock
	hold atomic.Pointer[Hold]

	// OnElected is the work of the leader. Its context is cancelled when the leader is deposed or resigns; then return nil
	// or the cause of its end. A leader that resigns keeps the lock until then, but renews it no more. If the work returns
	// nil earlier, the leader continues to lead. After any other error, the lock is released, and Run ends.
	OnElected func(ctx context.Context, hold *Hold) error
	// OnDeposed is called when the leader loses the lock, but not when it resigns. It then stands for election again.
	OnDeposed func(lost *LostError)
	// OnError is called when the candidate cannot ask for the lock, for example because no server answers. It keeps
	// trying. OnError is called once for consecutive failures of the same kind.
	OnError func(err error)
}

// Leader describes an election by the name of its lock. The option Lease sets how long a leader keeps the lock after
// the server last heard from it.
func (l *Locks) Leader(name string, opts ...LockOption) *Leader {
	leader := &Leader{lock: l.Lock(name, opts...)}
	if leader.lock.options.hasMinHold {
		leader.lock.invalid = invalid("MinHold must not be set for leaders: the next leader waits only for the lease")
	}
	return leader
}

// Hold returns the hold while it leads; otherwise nil.
func (l *Leader) Hold() *Hold {
	if h := l.hold.Load(); h != nil && h.Check() == nil {
		return h
	}
	return nil
}

// IsLeading reports whether it leads now.
func (l *Leader) IsLeading() bool { return l.Hold() != nil }

// Run stands for election, leads, and stands again when it is deposed. It ends when ctx does: the leader resigns, and the
// error is that of ctx. It also ends with the error of OnElected, with ErrClosed and with ErrInvalid.
func (l *Leader) Run(ctx context.Context) error {
	var told error
	for {
		hold, err := l.lock.Acquire(ctx)
		switch {
		case err == nil:
			told = nil
			if err := l.lead(ctx, hold); err != nil {
				return err
			}
		case ctx.Err() != nil:
			return endOf(ctx)
		case errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrAlreadyHeld):
			return err
		default:
			kind := err
			if e := (*Error)(nil); errors.As(err, &e) {
				kind = e.Kind
			}
			if !errors.Is(told, kind) {
				told = kind
				l.lock.locks.core.logger.Warn("redislock: could not stand for election, will retry",
					"lock", l.lock.label(), "cause", err)
				tell(l.OnError, err)
			}
			sleep(ctx, longestPause)
		}
	}
}

// lead leads until it is deposed; an error ends its candidacy.
func (l *Leader) lead(ctx context.Context, hold *Hold) error {
	c := hold.core
	c.bodies.count.Add(1)
	defer c.bodies.count.Add(-1)
	hold.held.hasFunction()
	l.hold.Store(hold)
	defer l.hold.Store(nil)
	work, cancel := context.WithCancelCause(hold.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	done := make(chan error, 1)
	go func() {
		done <- guarded(func() error {
			if l.OnElected == nil {
				return nil
			}
			return l.OnElected(work, hold)
		})
	}()
	var err error
	isDone := false
	select {
	case err = <-done:
		isDone = true
		if err == nil {
			<-work.Done()
		}
	case <-work.Done():
	}
	lost := hold.Check()
	hasEnded := lost != nil || work.Err() != nil
	// The work may return the end of its context, or the loss, as its error.
	hasFailed := func() bool {
		if err == nil || !hasEnded {
			return err != nil
		}
		isEnd := false
		for _, end := range []error{context.Canceled, context.Cause(work), lost, ErrReleased} {
			isEnd = isEnd || errors.Is(err, end)
		}
		return !isEnd
	}
	var why *LostError
	if errors.As(lost, &why) && ctx.Err() == nil && !hasFailed() {
		tell(l.OnDeposed, why)
	}
	// The hold ends for the work, which may ask Check. The server keeps the lock until the work has ended, or its lease.
	_, resigns := c.keeper.finish(hold.held, "")
	if !isDone {
		err = <-done
	}
	// It leads no more either way: the rest goes on in the background.
	if resigns {
		_ = c.giveBack(context.WithoutCancel(ctx), hold.held)
	}
	_ = hold.Release(ctx)
	var thrown *panicked
	if errors.As(err, &thrown) {
		panic(thrown.value)
	}
	if hasFailed() {
		return err
	}
	return endOf(ctx)
}

// A panicked is a panic of the work, which continues in the goroutine of Run once the lock is released.
type panicked struct{ value any }

func (*panicked) Error() string { return "the work of the leader panicked" }

func guarded(work func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicked{value}
		}
	}()
	return work()
}

// tell calls a function of the user, if it is set.
func tell[T any](hook func(T), with T) {
	if hook != nil {
		hook(with)
	}
}
