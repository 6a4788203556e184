package redislock

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
)

// An answer is a reply, and the time when its request was sent.
type answer struct {
	reply  any
	sent   moment
	number uint64
	link   uint64
	// isRepeated is true if the request was sent before and not answered: it may have been executed then. mayComeLate
	// is true if the earlier copy may still arrive.
	isRepeated, mayComeLate bool
}

// An ask is a request for the server that has this lock.
type ask struct {
	name  string
	words []string
	// until is the time until which it is repeated; never: as long as servers reply at all.
	until moment
	// failed is called for each failed attempt.
	failed func(error)
	// wanted is the acquire that it is for, which records the outcome.
	wanted *wanted
	// pings is true if the preceding reply to HELLO counts, of a primary that does not refuse it.
	pings bool
	// before returns the commands to send first if the server reports changes.
	before func(*link) [][]string
}

// patience returns the time left for a request that began then.
func (s *servers) patience(a *ask, began moment) time.Duration {
	if a.until == never {
		return max(began, moment(s.heard.Load())).after(s.timeout).left()
	}
	return a.until.left()
}

// request returns the reply of the server that has this lock. It repeats the request until its time is up.
func (s *servers) request(ctx context.Context, a *ask) (*answer, error) {
	began, wait, node := now(), pause, ""
	earlier := &answer{}
	var refused, lost error
	for {
		address := cmp.Or(node, s.address(a.name))
		got, failed := s.attempt(ctx, a, node, earlier, s.patience(a, began))
		if failed == nil {
			return got, nil
		}
		node, address = "", cmp.Or(address, s.address(a.name), strings.Join(s.config.Addrs, ", "))
		next, number, to := again, 0, ""
		if failed.refused {
			next, number, to = judge(failed.text)
			if next == moved && s.isSingle() {
				return nil, errorOf(failed.text)
			}
		}
		err := failed.told(address)
		if ctx.Err() == nil && a.failed != nil && (!failed.tooLate || lost == nil && refused == nil) {
			a.failed(err)
		}
		switch next {
		case fail:
			return nil, err
		case moved:
			s.moved(number, to, address)
		case asking:
			node = beside(to, address)
		default:
			s.forget(address)
		}
		if failed.refused {
			s.isRefused(a.wanted, err)
			refused, lost = err, nil
		} else if lost == nil || !failed.tooLate && ctx.Err() == nil {
			lost = err
		}
		if a.wanted != nil && ctx.Err() == nil {
			told := lastOf(refused, lost)
			a.wanted.last.Store(&told)
		}
		left := s.patience(a, began)
		if left <= 0 || s.ctx.Err() != nil || !sleep(ctx, min(wait, left)) {
			return nil, lastOf(refused, lost)
		}
		wait = min(2*wait, longestPause)
	}
}

// lastOf returns a server's answer, if there is one, rather than a lost connection.
func lastOf(refused, lost error) error {
	var one, two *Error
	if errors.As(refused, &one) && errors.As(lost, &two) {
		return unreachable(two.Cause, "%s; then %s", one.Message, two.Message)
	}
	if refused != nil {
		return refused
	}
	return lost
}

// isRefused logs a temporary refusal, once until the server grants again.
func (s *servers) isRefused(w *wanted, err error) {
	if w != nil && !s.refuses.Swap(true) {
		s.log.Warn("redislock: waiting for a lock that the server cannot grant for now", "lock", w.label(), "cause", err)
	}
}

func (s *servers) attempt(ctx context.Context, a *ask, node string, earlier *answer, left time.Duration) (*answer, *failure) {
	l, failed := s.linkIn(ctx, a, node, left)
	if failed != nil {
		return nil, failed
	}
	before := a.before
	if node != "" {
		// A node that the slot is still moving to reports no changes. ASKING applies only to the very next command.
		before = func(*link) [][]string { return [][]string{{"ASKING"}} }
	} else if before != nil && !l.told.Load() {
		before = nil
	}
	sent := now()
	if a.wanted != nil {
		a.wanted.sends()
	}
	var hello *call
	if a.pings {
		hello = l.send([]string{"HELLO"}, nil)
	}
	asked := l.send(a.words, before)
	reply, failed := asked.wait(ctx, min(attemptTime, max(5*pause, left/2)))
	if a.pings && (failed == nil || failed.refused) {
		reply, failed = pinged(hello, a.name, failed)
	}
	if failed == nil {
		s.hears()
		if a.wanted != nil || a.failed != nil {
			s.refuses.Store(false)
			if !l.served.Swap(true) {
				s.isServed(l.address)
			}
		}
		if a.wanted != nil && reply == nil {
			a.wanted.gotNothing()
		}
		return &answer{reply, sent, asked.number, l.number, earlier.isRepeated, earlier.mayComeLate}, nil
	}
	if !failed.refused {
		earlier.isRepeated = true
		earlier.mayComeLate = earlier.mayComeLate || l.givenUp.Load()
		if a.wanted != nil && ctx.Err() == nil {
			a.wanted.doubt()
		}
		return nil, failed
	}
	s.hears()
	// A request that fails with NOREPLICAS may have been executed, and may stay so.
	if a.wanted != nil && !strings.HasPrefix(failed.text, "NOREPLICAS") {
		a.wanted.gotNothing()
	}
	return nil, leave(l, failed)
}

// isServed records that a server does what only a primary does, for the first time over a new connection.
func (s *servers) isServed(address string) {
	d := s.door(address)
	d.tries.Store(0)
	if d.hasServed.Swap(true) {
		s.log.Info("redislock: reconnected", "server", address)
		s.onReconnect(address)
	}
}

func (s *servers) linkIn(ctx context.Context, a *ask, node string, left time.Duration) (*link, *failure) {
	if node == "" {
		if l := s.ready(a.name); l != nil && len(s.door(l.address).gate) == 0 {
			return l, nil // no caller is waiting for a new connection
		}
	}
	if a.failed != nil {
		left /= 2 // a renewal is told why it fails before its time is over
	}
	ctx, cancel := context.WithTimeout(ctx, min(max(left, 5*pause), 2*attemptTime))
	defer cancel()
	if node == "" {
		var failed *failure
		if node, failed = s.findFor(ctx, a.name); failed != nil {
			return nil, failed
		}
	}
	return s.linkTo(ctx, node)
}

// leave closes the connection over which a server refused what only a primary does, if its address may now lead
// elsewhere.
func leave(l *link, failed *failure) *failure {
	next, _, _ := judge(failed.text)
	isLong := strings.HasPrefix(failed.text, "LOADING") && l.born.age() > longestReconnect
	if isLong || next == elsewhere {
		l.end(failed)
	} else if strings.HasPrefix(failed.text, "QUARANTINE") && (l.served.Load() || l.born.age() > 3*keepTime) {
		// It was the primary, and its address may lead to another server by now.
		l.end(broken(nil, "the server that was the primary has restarted"))
		return broken(nil, "%s", failed.text)
	}
	return failed
}
