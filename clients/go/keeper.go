package redislock

import (
	"container/heap"
	"slices"
	"sync"
	"time"
)

// A keeper tracks holds, and the time at which each must be renewed, checked or ended.
type keeper struct {
	mu    sync.Mutex
	holds heapOfHolds
	names map[string]map[*held]struct{}
	// begins is closed when a hold begins whose owner the program has named.
	begins chan struct{}
	wake   chan struct{}
	runs   bool
}

// heapOfHolds orders holds by the time of their next action.
type heapOfHolds []*held

func (h heapOfHolds) Len() int           { return len(h) }
func (h heapOfHolds) Less(i, j int) bool { return h[i].due < h[j].due }
func (h heapOfHolds) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *heapOfHolds) Push(x any) {
	one := x.(*held)
	one.index = len(*h)
	*h = append(*h, one)
}

func (h *heapOfHolds) Pop() any {
	last := len(*h) - 1
	one := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	one.index = -1
	return one
}

func (h *held) nextDue() moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return min(h.deadline, h.renewAt, h.watchAt)
}

// register tracks the hold from now on.
func (c *core) register(h *held) {
	k := c.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	h.due = h.nextDue()
	heap.Push(&k.holds, h)
	for _, name := range h.w.names {
		if k.names[name] == nil {
			k.names[name] = map[*held]struct{}{}
		}
		k.names[name][h] = struct{}{}
	}
	if h.w.isNamed {
		close(k.begins)
		k.begins = make(chan struct{})
	}
	if !k.runs {
		k.runs = true
		c.scheduling.run(c.schedule)
	}
	if h.index == 0 {
		notify(k.wake)
	}
}

// refile files the hold again, because its next action has changed.
func (k *keeper) refile(h *held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.index < 0 {
		return
	}
	h.due = h.nextDue()
	heap.Fix(&k.holds, h.index)
	if h.index == 0 {
		notify(k.wake)
	}
}

// finish ends the hold. It returns true if this call ended it, and no earlier one.
func (k *keeper) finish(h *held, reason Reason) (*LostError, bool) {
	k.mu.Lock()
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		k.mu.Unlock()
		return nil, false
	}
	h.ended = true
	if reason != "" {
		h.lost = &LostError{Lock: h.w.label(), Token: token(h.token), Reason: reason, Cause: h.cause}
	}
	lost := h.lost
	h.mu.Unlock()
	if h.index >= 0 {
		heap.Remove(&k.holds, h.index)
	}
	for _, name := range h.w.names {
		if delete(k.names[name], h); len(k.names[name]) == 0 {
			delete(k.names, name)
		}
	}
	k.mu.Unlock()
	if lost == nil {
		h.end(ErrReleased)
	} else {
		h.end(lost)
	}
	return lost, true
}

func (k *keeper) all() []*held {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*held(nil), k.holds...)
}

// holdsBy reports whether the owner of this request, if the program has named it, holds a lock. It also returns a
// channel that is closed when that may change.
func (k *keeper) holdsBy(w *wanted) (isHolding bool, begins <-chan struct{}) {
	if !w.isNamed {
		return false, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.holds, func(h *held) bool { return h.w.owner == w.owner }), k.begins
}

// heldSince returns the time since when this very client has held any of these locks; never if it holds none.
func (k *keeper) heldSince(names []string) moment {
	k.mu.Lock()
	defer k.mu.Unlock()
	since := never
	for _, name := range names {
		for h := range k.names[name] {
			since = min(since, h.grantedAt)
		}
	}
	return since
}

// changed makes the holders of these locks check them, because they have changed: nil for any lock.
func (k *keeper) changed(names []any) {
	k.mu.Lock()
	var found []*held
	if names == nil {
		found = append(found, k.holds...)
	}
	for _, name := range names {
		text, _ := name.(string)
		for h := range k.names[text] {
			found = append(found, h)
		}
	}
	k.mu.Unlock()
	for _, h := range found {
		h.watch(now())
		k.refile(h)
	}
}

// schedule renews all holds, and ends those whose deadline has passed, until the locks are closed.
func (c *core) schedule() {
	k := c.keeper
	timer := time.NewTimer(nap)
	defer timer.Stop()
	for {
		k.mu.Lock()
		next := never
		if len(k.holds) > 0 {
			next = k.holds[0].due
		}
		k.mu.Unlock()
		if next == never {
			timer.Stop()
		} else {
			timer.Reset(min(next.left(), nap))
		}
		select {
		case <-c.ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		for _, one := range k.due() {
			c.handle(one)
		}
	}
}

// A due is the action that is due for a hold.
type due struct {
	held        *held
	renew, look bool
}

// due returns the actions that are due now, or a little later.
func (k *keeper) due() (found []due) {
	k.mu.Lock()
	defer k.mu.Unlock()
	soon := now().after(pause)
	for len(k.holds) > 0 && k.holds[0].due <= soon && len(found) <= len(k.holds) {
		h := k.holds[0]
		h.mu.Lock()
		one := due{held: h, renew: h.renewAt <= soon && h.renewAt != never, look: h.watchAt <= soon}
		if h.deadline <= soon && now() < h.deadline && !one.renew && !one.look {
			h.mu.Unlock()
			break // it is over a little later
		}
		if one.renew {
			h.renewAt = never
		}
		if one.look {
			h.watchAt = never
		}
		h.mu.Unlock()
		found = append(found, one)
		if h.due = h.nextDue(); now() >= h.due {
			h.due = now().after(pause) // it is ended by then
		}
		heap.Fix(&k.holds, 0)
	}
	return found
}

func (c *core) handle(one due) {
	if reason, is := one.held.overdue(); is {
		c.lose(one.held, reason)
		return
	}
	if one.renew {
		c.working.run(func() { _ = c.renewHeld(c.ctx, one.held, 0) }) // it is logged, and tried again
	}
	if one.look {
		c.working.run(func() { c.look(one.held) })
	}
}
