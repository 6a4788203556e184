package redislock

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A core acquires, renews and releases, on one server, one primary, or one cluster.
type core struct {
	*options
	servers *servers
	lines   *lines
	keeper  *keeper
	// blocking has a place for each connection that waits for several locks.
	blocking chan struct{}
	// keep is the time for which a queue position is kept, and longestBlock the longest wait: as long as the server
	// allows.
	keep, longestBlock atomic.Int64
	errands            errands
	// closing ends when no lock can be acquired any longer.
	closing context.Context
	close   context.CancelCauseFunc
	// acquiring counts acquires, and working background work.
	acquiring, working, bodies, scheduling busy
	logged                                 sync.Map
	// ctx ends when all work has ended.
	ctx  context.Context
	stop context.CancelFunc
}

// A grant has the token, and the time when its request was sent.
type grant struct {
	token int64
	sent  moment
}

// A patience limits the wait of an acquire.
type patience struct {
	until moment
	once  bool
	// arrived is the number of the call, in order of arrival.
	arrived uint64
	// probe is the time, shortly before the context ends, to ask whether the server is in quarantine: a waiting request
	// does not learn that.
	probe    moment
	isProbed bool
	// byContext is true if the deadline of the context ends the wait.
	byContext bool
}

// next returns how long it may sleep.
func (p patience) next() time.Duration {
	if p.isProbed {
		return p.until.left()
	}
	return min(p.until.left(), max(pause, p.probe.left()))
}

func (p patience) isOver() bool { return p.once || p.until.left() <= 0 }

// requests returns the time until which a request is repeated.
func (p patience) requests() moment { return p.until.after(waitMargin) }

// acquire returns the grant, or nil if the lock was not granted in time. Then nothing is held.
func (c *core) acquire(ctx context.Context, w *wanted, p patience) (got *grant, err error) {
	c.acquiring.count.Add(1)
	defer c.acquiring.count.Add(-1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	defer func() {
		if got == nil && w.sent.Load() {
			c.giveWay(w, p, err)
		}
	}()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !p.once {
		timer := time.AfterFunc(ownWait, func() { c.logWait(ctx, w) })
		defer timer.Stop()
	}
	c.callOff(w)
	for {
		got, err = c.acquireOnce(ctx, w, p)
		if got != nil && got.sent.age() >= sure(w.lease) { // the reply took as long as the lease
			if p.isOver() {
				return nil, &LostError{Lock: w.label(), Token: token(got.token), Reason: ReasonDeadline}
			}
			continue
		}
		if ctx.Err() != nil && got == nil {
			return nil, context.Cause(ctx)
		}
		return got, err
	}
}

func token(number int64) uint64 { return uint64(max(0, number)) }

// giveWay gives up what a request may have got. If it got nothing, its owner keeps what it holds by another request.
func (c *core) giveWay(w *wanted, p patience, err error) {
	isClear := !w.doubtful.Load()
	if isClear && err == nil && p.once {
		return // nothing is left behind
	}
	var only int64
	if isClear && (err == nil || grantedNothing(err) || !w.mayBeGranted()) {
		only = nobodys
	}
	c.abandon(w, only)
}

func (c *core) acquireOnce(ctx context.Context, w *wanted, p patience) (*grant, error) {
	if p.once {
		return c.attempt(ctx, w, p)
	}
	wait := c.waitInLine
	if len(w.names) > 1 {
		wait = c.waitBlocked
	}
	got, err := wait(ctx, w, p)
	if got == nil && err == nil && p.byContext {
		<-ctx.Done() // the clocks of the two differ a little
		err = context.Cause(ctx)
	}
	if got != nil || err != nil {
		return got, err
	}
	// Only a request that does not wait learns of a quarantine, by an error that says how long it lasts.
	got, err = c.attempt(ctx, w, p)
	if errors.Is(err, ErrQuarantine) {
		return nil, err
	}
	return got, nil // the time is over, whatever else is wrong now
}

func (c *core) request(ctx context.Context, w *wanted, a *ask) (*answer, error) {
	a.name, a.wanted = w.name(), w
	got, err := c.servers.request(ctx, a)
	if err == nil {
		w.last.Store(nil)
		w.answered.Store(true)
	} else if ctx.Err() == nil {
		w.last.Store(&err)
	}
	return got, err
}

// attempt asks once.
func (c *core) attempt(ctx context.Context, w *wanted, p patience) (*grant, error) {
	got, err := c.request(ctx, w, &ask{words: w.acquire(w.lease, "", 0), until: p.requests()})
	if errors.Is(err, ErrQuarantine) {
		w.quarantine.Store(&err)
	} else if ctx.Err() == nil {
		w.quarantine.Store(nil)
	}
	if err != nil {
		return nil, err
	}
	return grantOf(got), nil
}

func grantOf(got *answer) *grant {
	if token, is := got.reply.(int64); is {
		return &grant{token, got.sent}
	}
	return nil
}

// waitInLine keeps a queue position over the shared connection, and asks when the server reports a change.
func (c *core) waitInLine(ctx context.Context, w *wanted, p patience) (*grant, error) {
	place := c.lines.join(w.name(), p.arrived, w.isNamed)
	defer place.leave()
	lease, times, behind := w.lease, 0, moment(0)
	for ctx.Err() == nil {
		place.clear()
		if !p.isProbed && p.probe.left() <= 0 {
			p.isProbed = true
			if got, err := c.attempt(ctx, w, p); got != nil || err != nil && !errors.Is(err, ErrQuarantine) {
				return got, err
			}
		}
		if times > 0 && p.isOver() {
			return nil, nil
		}
		if blocked := c.blocked(place, &behind); blocked > 0 {
			c.tellOfWaiting(w, &times)
			place.sleep(ctx, min(p.next(), blocked))
			continue
		}
		behind = 0
		a := &ask{words: w.acquire(lease, "QUEUE", time.Duration(c.keep.Load())), until: p.requests()}
		watches := times > 0
		a.before = func(over *link) [][]string {
			place.sends()
			if watches {
				return place.watch(over)
			}
			return nil
		}
		got, err := c.request(ctx, w, a)
		if err != nil {
			if err = c.bear(ctx, w, err, p); err != nil {
				return nil, err
			}
			continue
		}
		place.sends() // where the server tells of nothing
		place.asked(got.number, got.link)
		if had := grantOf(got); had != nil {
			if lease >= w.lease {
				return had, nil
			}
			if had, err = c.begin(ctx, w, had.token, had.sent.after(sure(lease))); had != nil || err != nil {
				return had, err
			}
		}
		if p.isOver() {
			return nil, nil
		}
		c.tellOfWaiting(w, &times)
		times = min(times+1, 3)
		lease = min(lease, w.firstLease)
		c.sleepInLine(ctx, place, times, p)
	}
	return nil, context.Cause(ctx)
}

// blocked returns how long it may not ask.
func (c *core) blocked(place *place, behind *moment) time.Duration {
	switch place.mayAsk() {
	case notYet:
		return longBlock
	case afterOthers:
		// A waiter that is not called in time asks anyway, because its position may lapse.
		if *behind == 0 {
			*behind = now()
		}
		return behind.after(time.Duration(c.keep.Load()) / asksInKeep).left()
	case mayAsk:
	}
	return 0
}

// sleepInLine sleeps until it is called, or must ask again to keep its position.
func (c *core) sleepInLine(ctx context.Context, place *place, times int, p patience) {
	keep := time.Duration(c.keep.Load())
	isFirst, isWatched := place.isFirst()
	switch {
	case !isFirst:
		// The waiter ahead calls it earlier, so all ask in their order.
		place.sleep(ctx, min(p.next(), 2*keep/asksInKeep))
	case isWatched:
		place.sleep(ctx, min(p.next(), keep/asksInKeep))
	case times > 2:
		place.sleep(ctx, min(p.next(), poll)) // the server does not tell
	}
}

func (c *core) tellOfWaiting(w *wanted, times *int) {
	if *times == 0 {
		*times = 1
		c.hooks.Waiting(w.ctx, w.label())
	}
}

// bear waits after temporary errors, learns the server's limits from others, and returns all other errors.
func (c *core) bear(ctx context.Context, w *wanted, err error, p patience) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Kind == ErrQuarantine && e.Left < p.until.left() {
		c.servers.isRefused(w, err)
		// The address may lead to another server before the quarantine ends.
		sleep(ctx, min(keepTime, e.Left+pause))
		return nil
	}
	if most, told := longestWait(e.Message); told {
		c.keep.Store(min(c.keep.Load(), int64(most))) // another request may have learned it first
		return nil
	}
	return err
}

// begin renews once after a wait, and counts from that. It returns nil if the lock was already lost, or no server
// answers.
func (c *core) begin(ctx context.Context, w *wanted, token int64, until moment) (*grant, error) {
	wasDoubtful := w.doubtful.Swap(true) // it was granted, whatever the reply
	sent, _, err := c.renewed(ctx, w, w.lease, token, until, nil)
	if errors.Is(err, ErrConnectionFailed) && ctx.Err() == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w.doubtful.Store(wasDoubtful)
	if sent == 0 {
		return nil, nil
	}
	return &grant{token, sent}, nil
}

// each does this for each name in parallel, and returns the first error.
func each(names []string, do func(int, string) error) error {
	if len(names) == 1 {
		return do(0, names[0])
	}
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { errs[i] = do(i, name) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// renewed renews the leases. It returns the time they start at (0 if any of the locks is lost) and whether an older
// request may arrive late.
func (c *core) renewed(
	ctx context.Context, w *wanted, lease time.Duration, token int64, until moment, failed func(error),
) (moment, bool, error) {
	got := make([]*answer, len(w.names))
	err := each(w.names, func(i int, name string) (err error) {
		got[i], err = c.servers.request(ctx, &ask{name: name, words: w.renew(name, lease, token), until: until, failed: failed})
		return err
	})
	if err != nil {
		return 0, false, err
	}
	from, isLate := never, false
	for _, one := range got {
		if one.reply != int64(1) {
			return 0, false, nil
		}
		from, isLate = min(from, one.sent), isLate || one.mayComeLate
	}
	return from, isLate, nil
}

// fence returns whether the token is that of a live hold. Only a primary's no counts: a replica may lack its primary's
// holds.
func (c *core) fence(ctx context.Context, name string, token int64) (bool, error) {
	until := now().after(2 * attemptTime)
	words := []string{"LOCK.FENCE", name, strconv.FormatInt(token, 10)}
	got, err := c.servers.request(ctx, &ask{name: name, words: words, until: until})
	if err != nil || got.reply == int64(1) {
		return err == nil, err
	}
	// It releases nothing, and a replica refuses it, after which the address is resolved again.
	write := []string{"LOCK.RELEASE", name, newOwner(c.label), "TOKEN", strconv.Itoa(nobodys)}
	if _, err := c.servers.request(ctx, &ask{name: name, words: write, until: until}); err != nil && !isRefusal(err) {
		return false, err
	}
	got, err = c.servers.request(ctx, &ask{name: name, words: words, until: until})
	return err == nil && got.reply == int64(1), err
}

// logWait logs long waits, until the context ends.
func (c *core) logWait(ctx context.Context, w *wanted) {
	if since := c.keeper.heldSince(w.names); since != never && c.mayLog(w) {
		c.logger.Warn("redislock: waiting for a lock that the same Locks holds: a task that acquires a lock twice waits for itself",
			"lock", w.label(), "held", since.age().Round(time.Millisecond))
	}
	for waited, left := longWait, longWait-ownWait; sleep(ctx, left); waited, left = 2*waited, waited {
		if c.mayLog(w) {
			c.logger.Warn("redislock: waiting for a lock", append([]any{"lock", w.label(), "waited", waited}, c.holder(ctx, w)...)...)
		}
	}
}

// mayLog reports whether a wait for this lock should be logged: one of many waiters is enough.
func (c *core) mayLog(w *wanted) bool {
	at, is := c.logged.Swap(w.name(), now())
	if is && at.(moment).age() < longWait/2 {
		c.logged.Store(w.name(), at)
		return false
	}
	c.logged.Range(func(name, at any) bool {
		if at.(moment).age() > longWait {
			c.logged.Delete(name)
		}
		return true
	})
	return true
}

// holder names the holder of any of these locks, for people. It returns nothing if the server refuses to say.
func (c *core) holder(ctx context.Context, w *wanted) []any {
	for _, name := range w.names {
		info, err := c.info(ctx, name)
		if err == nil && info != nil && len(info.Holders) > 0 {
			return []any{"owner", info.Holders[0].Owner, "held", info.Holders[0].Held}
		}
	}
	return nil
}
