package redislocktest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

const (
	exclusive = 0
	shared    = -1
)

// tokens increase over all servers of a process.
var tokens atomic.Int64

type hold struct {
	name, owner string
	// kind is exclusive, shared, or the limit of a semaphore.
	kind           int
	token          int64
	granted, until time.Time
}

// A wait is a position in the queues of some locks; blocked is the connection that waits for the reply, if any.
type wait struct {
	names        []string
	owner        string
	kind         int
	lease        time.Duration
	since, until time.Time
	blocked      *connection
}

// overtaken replies that a newer request of the same owner took its place.
func (w *wait) overtaken() {
	if w.blocked != nil {
		w.blocked.send(refuse("UNBLOCKED a newer request of the same owner took over this place in the queue"))
	}
}

// A table has the locks of one server.
type table struct {
	holds []*hold
	// waits are in order of arrival, which is the order of each queue.
	waits       []*wait
	connections map[*connection]bool
	// watched has the connections to notify of the next change of each lock.
	watched map[string]map[*connection]bool
}

// next returns the time until a lease or a wait ends.
func (t *table) next(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	for _, each := range t.holds {
		next = earlier(next, each.until)
	}
	for _, each := range t.waits {
		next = earlier(next, each.until)
	}
	return max(0, next.Sub(now))
}

func earlier(one, other time.Time) time.Time {
	if other.Before(one) {
		return other
	}
	return one
}

// tick ends the leases and waits whose time is up.
func (t *table) tick(now time.Time) {
	t.drop(func(h *hold) bool { return !h.until.After(now) })
	t.leave(func(w *wait) bool { return !w.until.After(now) })
}

func (t *table) lose(name string) { t.drop(func(h *hold) bool { return h.name == name }) }

func (t *table) detach(c *connection) {
	delete(t.connections, c)
	for _, who := range t.watched {
		delete(who, c)
	}
	t.leave(func(w *wait) bool { return w.blocked == c })
}

// drop ends these holds, which may admit others.
func (t *table) drop(is func(*hold) bool) {
	var names []string
	t.holds = slices.DeleteFunc(t.holds, func(h *hold) bool {
		if is(h) {
			names = append(names, h.name)
			return true
		}
		return false
	})
	t.changes(names)
}

// leave ends these waits without a grant, which may admit others.
func (t *table) leave(is func(*wait) bool) {
	var names []string
	t.waits = slices.DeleteFunc(t.waits, func(w *wait) bool {
		if !is(w) {
			return false
		}
		if w.blocked != nil {
			w.blocked.send(null)
		}
		names = append(names, w.names...)
		return true
	})
	t.changes(names)
}

// changes notifies the connections that watch these locks, and grants to the blocked requests whose turn it is.
func (t *table) changes(names []string) {
	for _, name := range names {
		for c := range t.watched[name] {
			c.send(">2\r\n" + bulk("invalidate") + array([]string{bulk(name)}))
		}
		delete(t.watched, name)
		at := slices.IndexFunc(t.waits, func(w *wait) bool {
			return w.blocked != nil && slices.Contains(w.names, name) && t.fits(w.names, w.owner, w.kind)
		})
		if at >= 0 {
			w := t.waits[at]
			t.waits = slices.Delete(t.waits, at, at+1)
			w.blocked.send(integer(t.grant(w.names, w.owner, w.kind, w.lease))) // comes here again
		}
	}
}

// kindOf returns the mode in which the lock is held or waited for, if it is.
func (t *table) kindOf(name string) (int, bool) {
	for _, h := range t.holds {
		if h.name == name {
			return h.kind, true
		}
	}
	for _, w := range t.waits {
		if slices.Contains(w.names, name) {
			return w.kind, true
		}
	}
	return 0, false
}

// An other keeps an owner from a lock, which it holds or waits for in this mode.
type other struct {
	owner string
	kind  int
}

func (t *table) others(name, owner string) (found []other) {
	for _, h := range t.holds {
		if h.name == name && h.owner != owner {
			found = append(found, other{h.owner, h.kind})
		}
	}
	for _, w := range t.waits {
		if !slices.Contains(w.names, name) {
			continue
		}
		if w.owner == owner {
			break
		}
		found = append(found, other{w.owner, w.kind})
	}
	return found
}

// fits reports whether holders and earlier waiters leave room for this owner.
func (t *table) fits(names []string, owner string, kind int) bool {
	for _, name := range names {
		others := t.others(name, owner)
		isIn := len(others) == 0 || kind > 0 && len(others) < kind ||
			kind == shared && !slices.ContainsFunc(others, func(o other) bool { return o.kind != shared })
		if !isIn {
			return false
		}
	}
	return true
}

// chain returns the steps by which this wait depends on the first of these owners; nil if it does not.
func (t *table) chain(names []string, owner string, kind int, seen *[]string) []string {
	for _, name := range names {
		if kind > 0 || t.fits([]string{name}, owner, kind) { // a permit may come from any of the holders
			continue
		}
		for _, o := range t.others(name, owner) {
			step := fmt.Sprintf("'%s' waits for '%s' and there for '%s'", owner, name, o.owner)
			if o.owner == (*seen)[0] {
				return []string{step}
			}
			if slices.Contains(*seen, o.owner) {
				continue
			}
			*seen = append(*seen, o.owner)
			if rest := t.waitsOf(o.owner, seen); rest != nil {
				return append([]string{step}, rest...)
			}
		}
	}
	return nil
}

// waitsOf returns the steps of this owner's first wait, if all its waits depend on the first of these owners. An owner
// continues once any of its waits ends.
func (t *table) waitsOf(owner string, seen *[]string) (first []string) {
	for _, w := range t.waits {
		if w.owner != owner {
			continue
		}
		rest := t.chain(w.names, owner, w.kind, seen)
		if rest == nil {
			return nil
		}
		if first == nil {
			first = rest
		}
	}
	return first
}
