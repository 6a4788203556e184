package redislock

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// A held is one hold, as its keeper sees it. It does not refer to the Hold, so that a forgotten Hold can be collected.
type held struct {
	w         *wanted
	token     int64
	grantedAt moment
	renews    bool
	// overAt is the time at which the hold ends at the latest (MaxHold), and parkedUntil that at which the lock may be
	// free (MinHold).
	overAt, parkedUntil moment
	end                 context.CancelCauseFunc
	// renewing allows one renewal at a time: a repeated one might undo a lease that was requested meanwhile.
	renewing chan struct{}

	mu sync.Mutex
	// lease is the last requested one, and next the one that renewals ask for.
	lease, next                time.Duration
	deadline, renewAt, watchAt moment
	// stray is the shortest lease of an unanswered renewal, and strayUntil the time until which it may still reach the
	// server.
	stray      time.Duration
	strayUntil moment
	// failures counts consecutive failed renewals, and cause is the last error.
	failures int
	cause    error
	// ended is true once the hold has ended, and lost is the loss, unless it was released.
	ended bool
	lost  *LostError
	// isLooking is true while the server is asked, and looksAgain if it must be asked once more after that.
	isLooking, looksAgain bool
	// isLeft is true once a lost hold was released on the server; hasBody while a function works under it.
	isLeft, hasBody, isForgotten bool

	// The fields of the keeper.
	due   moment
	index int
}

func newHeld(w *wanted, got *grant, o *lockOptions, end context.CancelCauseFunc) *held {
	h := &held{
		w: w, token: got.token, grantedAt: now(), renews: !o.noRenewal, overAt: never, end: end,
		renewing: make(chan struct{}, 1), watchAt: now().after(watchAfter), index: -1,
	}
	if o.maxHold > 0 {
		h.overAt = got.sent.after(o.maxHold)
	}
	if o.minHold > 0 {
		h.parkedUntil = now().after(o.minHold)
	}
	h.next = min(w.lease, o.lease)
	h.countFrom(got.sent, w.lease)
	return h
}

// countFrom starts a lease at the moment when it was requested. It returns how many renewals had failed before.
func (h *held) countFrom(sent moment, lease time.Duration) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	surely := lease
	// An older renewal that arrives late may still shorten it, so only that shorter lease is certain.
	if sent < h.strayUntil {
		surely = min(lease, h.stray)
	} else {
		h.strayUntil = 0
	}
	h.lease, h.deadline, h.renewAt = lease, min(sent.after(sure(surely)), h.overAt), never
	if h.renews && sent.after(lease) < h.overAt {
		h.renewAt = sent.after(renewal(surely))
	}
	failures := h.failures
	h.failures, h.cause = 0, nil
	return failures
}

// mayCountFrom records that a lease is requested, which may be shorter than the one before. Until it is answered, the
// server may have started it, so only the shorter lease is certain.
func (h *held) mayCountFrom(sent moment, lease time.Duration) moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = min(h.deadline, sent.after(sure(lease)))
	if h.renewAt != never {
		h.renewAt = min(h.renewAt, sent.after(renewal(lease)))
	}
	return h.deadline
}

// nextLease returns the lease that the next automatic renewal asks for.
func (h *held) nextLease() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return min(max(h.next, h.parked()), h.overAt.left())
}

// renewsFor has later renewals ask for this lease, once the server has granted it; 0 changes nothing.
func (h *held) renewsFor(lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = cmp.Or(lease, h.next)
}

// parked returns the time for which the lock must stay taken, whatever happens to the hold, in whole milliseconds,
// rounded up.
func (h *held) parked() time.Duration {
	return (h.parkedUntil.left() + time.Millisecond - 1).Truncate(time.Millisecond)
}

// mayComeLate records that a renewal for this lease went unanswered.
func (h *held) mayComeLate(lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.strayUntil == 0 {
		h.stray = lease
	}
	h.stray, h.strayUntil = min(h.stray, lease), now().after(strayTime)
}

// hasFunction records that a function works under the hold: a close waits for it.
func (h *held) hasFunction() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hasBody = true
}

// renewAgain schedules the retry of a failed renewal.
func (h *held) renewAgain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	wait := min(longestPause, max(h.deadline.left()/4, pause)) // leaves a short lease time for more than one
	if at := now().after(wait); h.renews && at < h.overAt {
		h.renewAt = at
	}
}

// failed records that a renewal failed, and returns whether it is the first failure of an outage.
func (h *held) failed(err error) (isFirst, isLive bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false, false
	}
	h.failures++
	h.cause = err
	return h.failures == 1, true
}

func (h *held) watch(at moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchAt = at
}

// is returns whether the hold has ended, and its loss.
func (h *held) is() (ended bool, lost *LostError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended, h.lost
}

// overdue reports whether the deadline has passed, and the reason of that loss.
func (h *held) overdue() (Reason, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended || now() < h.deadline:
		return "", false
	case h.isForgotten:
		return ReasonForgotten, true
	case h.overAt != never && now().after(h.lease/driftPart+margin+pause) >= h.overAt:
		return ReasonMaxHold, true
	}
	return ReasonDeadline, true
}
