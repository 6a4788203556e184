package redislock

import (
	"context"
	"slices"
	"time"
)

// renewHeld starts a new lease of this length, or loses the hold.
func (c *core) renewHeld(ctx context.Context, h *held, lease time.Duration) error {
	select {
	case h.renewing <- struct{}{}:
		defer func() { <-h.renewing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ended, _ := h.is(); ended {
		return nil // while it waited for another renewal
	}
	extended := lease
	if extended == 0 {
		lease = h.nextLease()
	} else if left := h.overAt.left(); lease > left {
		return invalid("lease must be %v or less, because of MaxHold, not %v", left.Round(time.Millisecond), lease)
	} else {
		lease = max(lease, h.parked())
	}
	until := h.mayCountFrom(now(), lease)
	c.keeper.refile(h)
	sent, isLate, err := c.renewed(ctx, h.w, lease, h.token, until, func(err error) {
		isFirst, isLive := h.failed(err)
		if isFirst {
			c.logger.Warn("redislock: could not renew a lock, will retry", "lock", h.w.label(), "cause", err)
		}
		if isLive {
			c.hooks.RenewalFailed(h.w.ctx, h.w.label(), err)
		}
	})
	if isLate {
		h.mayComeLate(lease)
	}
	switch {
	case isOverwritten(err) || err == nil && sent == 0:
		c.lose(h, ReasonRenewal)
	case err != nil:
		if !isRefusal(err) {
			h.mayComeLate(lease)
		}
		h.renewAgain() // it may pass, as a lack of replicas does; the deadline tells if it does not
		c.keeper.refile(h)
		return named(err, h.w.label(), lease)
	default:
		h.renewsFor(extended)
		if failures := h.countFrom(sent, lease); failures > 0 {
			c.logger.Warn("redislock: renewed a lock after failures", "lock", h.w.label(), "failed_renewals", failures)
		}
		c.keeper.refile(h)
	}
	return nil
}

// look asks whether the hold is live, and subscribes to its next change. It sends one request at a time.
func (c *core) look(h *held) {
	h.mu.Lock()
	h.looksAgain = h.isLooking
	isLooking := h.isLooking
	h.isLooking = true
	h.mu.Unlock()
	if isLooking {
		return
	}
	c.ask(h)
	h.mu.Lock()
	h.isLooking = false
	if h.looksAgain {
		h.watchAt, h.looksAgain = now(), false
	}
	h.mu.Unlock()
	c.keeper.refile(h)
}

func (c *core) ask(h *held) {
	for _, name := range h.w.names {
		isLive, err := c.fence(c.ctx, name, h.token)
		switch {
		case isOverwritten(err) || err == nil && !isLive:
			c.lose(h, ReasonPush)
			return
		case err != nil && !isRefusal(err):
			h.watch(now().after(longestPause))
			c.keeper.refile(h)
			return
		}
	}
}

// lose ends the hold as lost. The holder may still work under it, so the server's hold is released only when the holder
// releases it.
func (c *core) lose(h *held, reason Reason) {
	if lost, did := c.keeper.finish(h, reason); did {
		c.tellLoss(h, lost)
	}
}

func (c *core) tellLoss(h *held, lost *LostError) {
	level, text := c.logger.Warn, "redislock: lost a lock"
	if lost.Reason == ReasonForgotten {
		level, text = c.logger.Error, "redislock: lost a lock, but its Hold was dropped, so nothing in the program is notified"
	}
	level(text, "lock", lost.Lock, "reason", string(lost.Reason), "cause", lost)
	c.hooks.Lost(h.w.ctx, lost.Lock, h.grantedAt.age(), lost)
}

// release releases the hold. If a server does not answer in time, the release continues in the background.
func (c *core) release(ctx context.Context, h *held) error {
	ctx = context.WithoutCancel(ctx)
	if _, did := c.keeper.finish(h, ""); !did {
		h.mu.Lock()
		lost, isLeft := h.lost, h.isLeft
		h.isLeft = true
		h.mu.Unlock()
		if lost == nil {
			return nil // it was released before
		}
		if !isLeft && lost.Reason != ReasonClose && h.parked() == 0 {
			c.abandon(h.w, h.token)
		}
		return lost
	}
	return c.giveBack(ctx, h)
}

// giveBack releases a hold that has ended in this process.
func (c *core) giveBack(ctx context.Context, h *held) error {
	c.working.count.Add(1) // a close waits for it
	defer c.working.count.Add(-1)
	until, held := now().after(releaseTime), make([]bool, len(h.w.names))
	err := each(h.w.names, func(i int, name string) error {
		words := h.w.release(name, h.token)
		if parked := h.parked(); parked > 0 {
			words = h.w.renew(name, parked, h.token)
		}
		got, err := c.servers.request(ctx, &ask{name: name, words: words, until: until})
		if isOverwritten(err) {
			return nil
		}
		held[i] = err == nil && (got.reply == int64(1) || got.isRepeated)
		return err
	})
	if (err != nil || h.w.doubtful.Load()) && h.parked() == 0 {
		c.abandon(h.w, h.token)
	}
	if err == nil && slices.Contains(held, false) {
		lost := &LostError{Lock: h.w.label(), Token: token(h.token), Reason: ReasonRelease}
		c.tellLoss(h, lost)
		return lost
	}
	c.hooks.Released(h.w.ctx, h.w.label(), h.grantedAt.age())
	return named(err, h.w.label(), 0)
}

// forget handles that the program has dropped the Hold. Renewals stop, because they would lock out everyone else.
func (c *core) forget(h *held) {
	h.mu.Lock()
	if h.ended || h.hasBody {
		h.mu.Unlock()
		return
	}
	h.isForgotten, h.renews, h.renewAt = true, false, never
	left := h.deadline.left()
	h.mu.Unlock()
	c.keeper.refile(h)
	c.logger.Warn("redislock: a Hold was dropped without a release, so it is no longer renewed: keep it, and `defer hold.Release(ctx)`",
		"lock", h.w.label(), "lease_left", left.Round(time.Millisecond))
}

// shut ends all holds, waits and connections.
func (c *core) shut(ctx context.Context) {
	c.close(ErrClosed)
	c.loseAll()
	c.acquiring.wait(ctx)
	c.loseAll() // locks that were granted meanwhile
	c.bodies.wait(ctx)
	for _, h := range c.keeper.all() { // bodies that still work
		h.mu.Lock()
		left := h.deadline.left()
		h.mu.Unlock()
		c.logger.Warn("redislock: closed while the function of Run still works, so its lock stays taken until the lease expires",
			"lock", h.w.label(), "lease_left", left.Round(time.Millisecond))
		if lost, did := c.keeper.finish(h, ReasonClose); did {
			c.hooks.Lost(h.w.ctx, lost.Lock, h.grantedAt.age(), lost)
		}
	}
	c.working.wait(ctx)
	if ctx.Err() != nil { // releases that were just requested must still reach the server
		moment, cancel := context.WithTimeout(context.Background(), longestPause)
		defer cancel()
		c.bodies.wait(moment)
		c.working.wait(moment)
	}
	c.stop()
	c.servers.end()
	ending, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.working.wait(ending)
	c.scheduling.wait(ending)
	c.servers.running.wait(ending)
}

// loseAll notifies all holders, and releases the holds that no Run works under.
func (c *core) loseAll() {
	for _, h := range c.keeper.all() {
		h.mu.Lock()
		hasBody := h.hasBody
		h.mu.Unlock()
		if hasBody {
			h.end(&LostError{Lock: h.w.label(), Token: token(h.token), Reason: ReasonClose})
			continue
		}
		if lost, did := c.keeper.finish(h, ReasonClose); did {
			c.tellLoss(h, lost)
			if parked := h.parked(); parked > 0 {
				c.working.run(func() { _, _, _ = c.renewed(c.ctx, h.w, parked, h.token, now().after(attemptTime), nil) })
				continue
			}
			c.abandon(h.w, h.token)
		}
	}
}
