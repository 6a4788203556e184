package redislock

import (
	"context"
	"errors"
	"time"
)

// The outcome of a waiting request.
type blockedEnd int

const (
	// blockedEnded: its time is up, or another server must be asked.
	blockedEnded blockedEnd = iota
	// blockedLost: it was granted, but the grant expired before it was known.
	blockedLost
	// blockedBroken: the connection ended.
	blockedBroken
)

// waitBlocked waits for several locks at once, over a connection of its own.
func (c *core) waitBlocked(ctx context.Context, w *wanted, p patience) (*grant, error) {
	times, tries := 0, 0
	for ctx.Err() == nil {
		// This uses the shared connection, which finds the primary and pauses between two attempts for all waiters.
		got, err := c.attempt(ctx, w, p)
		switch {
		case errors.Is(err, ErrQuarantine): // one that waits is let in when it is over
			c.servers.isRefused(w, err)
		case got != nil || err != nil:
			return got, err
		}
		if p.isOver() {
			return nil, nil
		}
		c.tellOfWaiting(w, &times)
		room := c.enter(ctx, w, p)
		if room == nil {
			break
		}
		sleep(ctx, min(backOff(tries), p.until.left()))
		got, end, err := c.block(ctx, w, p)
		<-room
		switch {
		case got != nil || err != nil:
			return got, err
		case end == blockedLost && p.isOver():
			return nil, &LostError{Lock: w.label(), Reason: ReasonRenewal}
		case end == blockedBroken:
			tries++
		default:
			tries = 0
		}
	}
	return nil, context.Cause(ctx)
}

// enter waits for its turn to open a waiting connection, and returns the room to leave afterwards. It returns nil if
// the time or the context ended first.
func (c *core) enter(ctx context.Context, w *wanted, p patience) chan struct{} {
	over := time.NewTimer(p.until.left())
	defer over.Stop()
	for {
		room := c.blocking
		// The server must see the deadlock of an owner that holds another lock, so such an owner does not wait for a
		// connection.
		isHolding, begins := c.keeper.holdsBy(w)
		if isHolding {
			room = make(chan struct{}, 1)
		}
		select {
		case room <- struct{}{}:
			return room
		case <-begins:
		case <-ctx.Done():
			return nil
		case <-over.C:
			return nil
		}
	}
}

// block sends one waiting request. It asks at intervals over the shared connection whether that was granted: the
// network may have lost the grant, or the request.
func (c *core) block(ctx context.Context, w *wanted, p patience) (*grant, blockedEnd, error) {
	lease := min(w.lease, w.firstLease)
	linking, cancel := context.WithTimeout(ctx, min(p.until.left(), 2*attemptTime))
	defer cancel()
	address, failed := c.servers.findFor(linking, w.name())
	if failed != nil {
		return nil, blockedBroken, nil
	}
	asked := c.servers.ready(w.name())
	own, failed := c.servers.dial(linking, address, &c.servers.config, nil)
	if failed != nil {
		return nil, blockedBroken, nil
	}
	defer own.end(broken(nil, "the wait is over"))
	// If it is cancelled or cut, the request may have been granted without a reply.
	wasDoubtful := w.doubtful.Swap(true)
	most := min(p.until.left(), time.Duration(c.longestBlock.Load()))
	sent := own.send(w.acquire(lease, "BLOCK", most), nil)
	over, probe := time.NewTimer(most+waitMargin), time.NewTicker(probeTime)
	defer over.Stop()
	defer probe.Stop()
	for {
		select {
		case <-sent.done:
			return c.unblocked(ctx, w, sent, address, wasDoubtful, lease)
		case <-ctx.Done():
			return nil, blockedEnded, context.Cause(ctx)
		case <-over.C:
			return nil, blockedBroken, nil
		case <-probe.C:
		}
		// A plain request leaves the queue position unchanged, and gets the token if the lock was granted.
		got, err := c.attempt(ctx, w, p)
		if got != nil || err != nil && !errors.Is(err, ErrQuarantine) {
			return got, blockedEnded, err
		}
		if c.servers.ready(w.name()) != asked {
			return nil, blockedBroken, nil
		}
	}
}

// unblocked handles the answer to a waiting request.
func (c *core) unblocked(
	ctx context.Context, w *wanted, sent *call, address string, wasDoubtful bool, lease time.Duration,
) (*grant, blockedEnd, error) {
	if sent.failed == nil {
		c.servers.hears()
		w.doubtful.Store(wasDoubtful)
		token, is := sent.reply.(int64)
		if !is {
			return nil, blockedEnded, nil
		}
		// It was granted at some time during the wait, and not after this moment.
		got, err := c.begin(ctx, w, token, now().after(sure(lease)))
		return got, blockedLost, err
	}
	if !sent.failed.refused {
		return nil, blockedBroken, nil
	}
	w.doubtful.Store(wasDoubtful)
	text := sent.failed.text
	if most, told := longestWait(text); told {
		c.longestBlock.Store(int64(most))
		return nil, blockedEnded, nil
	}
	switch next, number, to := judge(text); {
	case next == fail || next == moved && c.servers.isSingle():
		return nil, blockedEnded, errorOf(text)
	case next == moved:
		c.servers.moved(number, to, address)
		return nil, blockedEnded, nil
	}
	return nil, blockedBroken, nil // the shared connection learns the same
}
