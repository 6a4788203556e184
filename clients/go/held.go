package redislock

import (
	"context"
	"sync"
	"time"
)

// A held is one hold, as its keeper sees it: it does not refer to the Hold, so that one can be forgotten.
type held struct {
	w         *wanted
	token     int64
	grantedAt moment
	renews    bool
	// overAt is when the hold ends at the latest (MaxHold), and parkedUntil when the lock may be free (MinHold).
	overAt, parkedUntil moment
	end                 context.CancelCauseFunc
	// renewing lets one renewal go at a time: one that is sent again might undo a lease that was asked for meanwhile.
	renewing chan struct{}

	mu sync.Mutex
	// lease is the one that the server was asked for last, and next what renewals ask for.
	lease, next                time.Duration
	deadline, renewAt, watchAt moment
	// stray is the shortest lease of a renewal that went unanswered, and strayUntil until when it may reach the server.
	stray      time.Duration
	strayUntil moment
	// failures counts attempts to renew that failed since one succeeded, and cause is why the last one did.
	failures int
	cause    error
	// ended tells that it is over, and lost why, unless it was released.
	ended bool
	lost  *LostError
	// isLooking tells that the server is being asked, and looksAgain that it has to be asked once more then.
	isLooking, looksAgain bool
	// isLeft tells that what is left of a lost hold was given up; hasBody that Run works under it.
	isLeft, hasBody, isForgotten bool

	// Those of the keeper.
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

// countFrom counts a lease from the moment at which it was asked for. It returns how many renewals had failed before.
func (h *held) countFrom(sent moment, lease time.Duration) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	surely := lease
	// An older renewal that comes late may still cut it: no more is sure than its lease.
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

// mayCountFrom notes that a lease is asked for, which may be shorter than the one before. Until that is answered, and if
// it never is, the server may have begun it. So no more is sure.
func (h *held) mayCountFrom(sent moment, lease time.Duration) moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = min(h.deadline, sent.after(sure(lease)))
	if h.renewAt != never {
		h.renewAt = min(h.renewAt, sent.after(renewal(lease)))
	}
	return h.deadline
}

// nextLease is what the next renewal asks for by itself.
func (h *held) nextLease() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return min(max(h.next, h.parked()), h.overAt.left())
}

// parked is for how long the lock is to stay taken, whatever becomes of the hold: in whole milliseconds, rounded up.
func (h *held) parked() time.Duration {
	return (h.parkedUntil.left() + time.Millisecond - 1).Truncate(time.Millisecond)
}

// mayComeLate notes that a renewal for this lease went unanswered.
func (h *held) mayComeLate(lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.strayUntil == 0 {
		h.stray = lease
	}
	h.stray, h.strayUntil = min(h.stray, lease), now().after(strayTime)
}

// renewAgain notes that a renewal that has failed is tried again.
func (h *held) renewAgain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := now().after(longestPause); h.renews && at < h.overAt {
		h.renewAt = at
	}
}

// failed notes that a renewal failed; whether it is the first of an outage.
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

// is tells whether it is over, and why.
func (h *held) is() (ended bool, lost *LostError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended, h.lost
}

// overdue tells whether the deadline has passed, and what that is a loss by.
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
