package redislock

import (
	"context"
	"slices"
	"sync"
)

// errands give up, in the background, what a request got or may still get.
type errands struct {
	mu   sync.Mutex
	same map[string][]*errand
}

type errand struct {
	wanted   *wanted
	name     string
	words    []string
	hasToken bool
	// isSent tells that the release was sent once, behind what it gives up.
	isSent bool
	off    context.Context
	cancel context.CancelFunc
}

// abandon gives up whatever this request got or may still get, or, with a token, the hold that has it. It does so at
// once, behind whatever was sent for it, and again in the background until a server has answered.
func (c *core) abandon(w *wanted, token int64) {
	for _, name := range w.names {
		e := &errand{wanted: w, name: name, words: w.release(name, token), hasToken: token != 0}
		e.off, e.cancel = context.WithCancel(context.Background())
		var sent *call
		if l := c.servers.ready(name); l != nil {
			sent, e.isSent = l.send(e.words, nil), true
		}
		// It would end the next hold of the same owner, too: one that asks again while a server still has the hold gets
		// the same token.
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
	// What was sent and not answered may still arrive: so it is given up a little later, and again.
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

// file lets it be called off by one that asks for the same, which the later of two that give it up does, too.
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

// callOff gives up no more what this owner has asked for before.
func (c *core) callOff(w *wanted) {
	c.errands.mu.Lock()
	defer c.errands.mu.Unlock()
	for _, name := range w.names {
		c.errands.callOff(name+"\x00"+w.owner, w)
	}
}

// callOff stops them. The server does what was sent before ahead of what comes now. What was not given up may still arrive,
// even after the request that calls this off: so it must be given up, too.
func (all *errands) callOff(key string, by *wanted) {
	for _, e := range all.same[key] {
		e.cancel()
		if !e.isSent || e.wanted.doubtful.Load() {
			by.doubt()
		}
	}
	delete(all.same, key)
}
