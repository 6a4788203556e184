package redislock

import (
	"context"
	"slices"
	"sync"
)

// errands release, in the background, what a request got or may still get.
type errands struct {
	mu   sync.Mutex
	same map[string][]*errand
}

type errand struct {
	wanted   *wanted
	name     string
	words    []string
	hasToken bool
	// isSent is true if the release was sent once, after the request that it gives up.
	isSent bool
	off    context.Context
	cancel context.CancelFunc
}

// abandon releases all that this request got or may still get; with a token, the hold that has it. It sends a release
// at once, after all earlier requests, and repeats it in the background until a server has answered.
func (c *core) abandon(w *wanted, token int64) {
	for _, name := range w.names {
		e := &errand{wanted: w, name: name, words: w.release(name, token), hasToken: token != 0}
		e.off, e.cancel = context.WithCancel(context.Background())
		var sent *call
		if l := c.servers.ready(name); l != nil {
			sent, e.isSent = l.send(e.words, nil), true
		}
		// A late release would end the owner's next hold, too: an owner that asks again while a server still has its
		// hold gets the same token.
		key := name + "\x00" + w.owner
		c.file(key, e)
		c.working.run(func() {
			defer c.unfile(key, e)
			c.giveUp(e, sent)
		})
	}
}

func (c *core) giveUp(e *errand, sent *call) {
	if sent != nil {
		_, failed := sent.wait(context.Background(), attemptTime)
		isDone := failed == nil || failed.refused
		if !isDone {
			e.wanted.doubt()
		}
		if failed == nil && !e.wanted.doubtful.Load() {
			return
		}
	}
	// An unanswered request may still arrive, so its grant is released a little later, and again.
	began, wait := now(), 2*longestPause
	for began.age() < min(e.wanted.lease, 3*defaultServerTimeout) && e.off.Err() == nil {
		_, err := c.servers.request(e.off, &ask{name: e.name, words: e.words, until: now().after(attemptTime)})
		if c.closing.Err() != nil || err == nil && !e.wanted.doubtful.Load() {
			return
		}
		if c.closing.Err() == nil {
			sleep(e.off, wait)
		}
		wait *= 2
	}
}

// file lets a later request for the same locks call the errand off. The later of two releases does that, too.
func (c *core) file(key string, e *errand) {
	c.errands.mu.Lock()
	defer c.errands.mu.Unlock()
	if !e.hasToken {
		c.errands.callOff(key, e.wanted)
	}
	c.errands.same[key] = append(c.errands.same[key], e)
}

func (c *core) unfile(key string, e *errand) {
	e.cancel()
	c.errands.mu.Lock()
	defer c.errands.mu.Unlock()
	c.errands.same[key] = slices.DeleteFunc(c.errands.same[key], func(other *errand) bool { return other == e })
	if len(c.errands.same[key]) == 0 {
		delete(c.errands.same, key)
	}
}

// callOff stops giving up earlier requests of this owner.
func (c *core) callOff(w *wanted) {
	c.errands.mu.Lock()
	defer c.errands.mu.Unlock()
	for _, name := range w.names {
		c.errands.callOff(name+"\x00"+w.owner, w)
	}
}

// callOff stops the errands. The server executes earlier requests before later ones. A request that was not given up
// may still arrive, even after the one that calls this off, so the newer request inherits its doubt.
func (all *errands) callOff(key string, by *wanted) {
	for _, e := range all.same[key] {
		e.cancel()
		if !e.isSent || e.wanted.doubtful.Load() {
			by.doubt()
		}
	}
	delete(all.same, key)
}
