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
	asked, wasDoubtful := c.servers.ready(w.name()), w.doubtful.Load()
	sent, most := c.sendBlocked(ctx, w, p)
	if sent == nil {
		return nil, blockedBroken, nil
	}
	defer func() { sent.link.end(broken(nil, "the wait is over")) }()
	over, probe, again := time.NewTimer(most+waitMargin), time.NewTicker(probeTime), time.NewTimer(most*2/3)
	defer over.Stop()
	defer probe.Stop()
	defer again.Stop()
	for {
		select {
		case <-sent.done:
			return c.unblocked(ctx, w, sent, wasDoubtful)
		case <-ctx.Done():
			return nil, blockedEnded, context.Cause(ctx)
		case <-over.C:
			return nil, blockedBroken, nil
		case <-again.C:
			if p.until.left() <= most/3 {
				continue // it ends with the wait
			}
			// A newer request takes over the positions in the queues, before the older one ends and loses them.
			newer, longest := c.sendBlocked(ctx, w, p)
			if newer == nil {
				continue
			}
			older := sent
			sent, most = newer, longest
			_, failed := older.wait(ctx, attemptTime)
			older.link.end(broken(nil, "a newer request waits"))
			if failed != nil && !failed.refused {
				return nil, blockedBroken, nil
			}
			over.Reset(most + waitMargin)
			again.Reset(most * 2 / 3)
			continue
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

// sendBlocked sends a waiting request over a new connection, and returns how long it waits; nil if it cannot connect.
func (c *core) sendBlocked(ctx context.Context, w *wanted, p patience) (*call, time.Duration) {
	linking, cancel := context.WithTimeout(ctx, min(p.until.left(), 2*attemptTime))
	defer cancel()
	address, failed := c.servers.findFor(linking, w.name())
	if failed != nil {
		return nil, 0
	}
	own, failed := c.servers.dial(linking, address, &c.servers.config, nil)
	if failed != nil {
		return nil, 0
	}
	// If it is cancelled or cut, the request may have been granted without a reply.
	w.doubt()
	most := min(p.until.left(), time.Duration(c.longestBlock.Load()))
	return own.send(w.acquire(min(w.lease, w.firstLease), "BLOCK", most), nil), most
}

// unblocked handles the answer to a waiting request.
func (c *core) unblocked(ctx context.Context, w *wanted, sent *call, wasDoubtful bool) (*grant, blockedEnd, error) {
	if sent.failed == nil {
		c.servers.hears()
		w.doubtful.Store(wasDoubtful)
		token, is := sent.reply.(int64)
		if !is {
			return nil, blockedEnded, nil
		}
		// It was granted at some time during the wait, and not after this moment.
		got, err := c.begin(ctx, w, token, now().after(sure(min(w.lease, w.firstLease))))
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
		c.servers.moved(number, to, sent.link.address)
		return nil, blockedEnded, nil
	}
	return nil, blockedBroken, nil // the shared connection learns the same
}
