package redislock

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// lines are the waiters of this process for each lock, in the order of the server's queue.
type lines struct {
	mu    sync.Mutex
	lines map[string]*line
	// most is the number of waiters of each lock that may stand in the server's queue.
	most int
}

// A line is the waiters of one lock. Waiters that have asked the server come first, by the number of their request; the
// others follow by their arrival.
type line struct {
	places []*place
	// standing counts the waiters without a name that stand in the server's queue: they have asked it, or are about to.
	standing int
	// watched is the connection over which the server was asked to report the next change of the lock, if it has
	// reported none since.
	watched uint64
	// link is the connection of the latest request of any waiter, and latest the number of that request. Its server may
	// have lost the queue. So all that have asked over another connection ask again, one after the other.
	link, latest uint64
}

// A place belongs to one waiter.
type place struct {
	lines           *lines
	name            string
	number, arrived uint64
	// isNamed is true if the program names the owner. The server must see its deadlocks, so its request is sent at
	// once.
	isNamed bool
	turn    chan struct{}
	// stands is true once it may ask, which is final. sent is true once its first request is in flight: waiters behind
	// it ask after it.
	stands, sent bool
	// link is the connection over which it has asked, and askedAt the time.
	link    uint64
	askedAt moment
}

const unasked = math.MaxUint64

func (p *place) compare(other *place) int {
	return cmp.Or(cmp.Compare(p.number, other.number), cmp.Compare(p.arrived, other.arrived))
}

func (l *line) index(p *place) int {
	at, _ := slices.BinarySearchFunc(l.places, p, (*place).compare)
	return at
}

func (l *line) callFirst() {
	if len(l.places) > 0 {
		notify(l.places[0].turn)
	}
}

func (l *line) isStale(p *place) bool { return p.number != unasked && p.link != l.link }

// callNext calls the next waiter that must ask again, after one that has just asked or left. Each then calls the next
// one. After the last of them, waiters that have not asked yet are admitted.
func (l *line) callNext(behind int, wasStale bool) {
	due := now() - moment(keepTime/asksInKeep/2)
	for _, p := range l.places[behind:] {
		if p.number == unasked {
			break
		}
		if l.isStale(p) || p.askedAt < due {
			notify(p.turn)
			return
		}
	}
	if wasStale {
		for at, p := range l.places {
			if p.number == unasked && l.mayStand(at) {
				notify(p.turn)
			}
		}
	}
}

// join joins the queue for this lock in order of arrival. The number is that of the call, which may be earlier than
// this moment.
func (ls *lines) join(name string, arrived uint64, isNamed bool) *place {
	p := &place{
		lines: ls, name: name, number: unasked, arrived: arrived, isNamed: isNamed, turn: make(chan struct{}, 1), askedAt: now(),
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[name]
	if l == nil {
		l = &line{}
		ls.lines[name] = l
	}
	l.places = slices.Insert(l.places, l.index(p), p)
	return p
}

// changed handles that these locks have changed: nil for any lock.
func (ls *lines) changed(names []any) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if names == nil {
		for name := range ls.lines {
			names = append(names, name)
		}
	}
	for _, name := range names {
		text, _ := name.(string)
		if l := ls.lines[text]; l != nil {
			l.watched = 0
			l.callFirst()
		}
	}
}

// The answer to whether a waiter may ask the server.
type may int

const (
	mayAsk may = iota
	// afterOthers: not before the waiters ahead of it have asked again.
	afterOthers
	// notYet: not before fewer waiters stand ahead of it.
	notYet
)

func (p *place) mayAsk() may {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	l := p.lines.lines[p.name]
	at := l.index(p)
	if !l.mayStand(at) {
		return notYet
	}
	for i, p := range l.places[:at] {
		if l.mayStand(i) && (l.isStale(p) || !p.sent) {
			return afterOthers
		}
	}
	l.stand(p)
	return mayAsk
}

// mayStand reports whether the waiter at this place may stand in the server's queue. A waiter that called earlier may
// join after others have asked.
func (l *line) mayStand(at int) bool {
	p := l.places[at]
	if p.stands || p.isNamed || l.standing >= p.lines.most {
		return p.stands || p.isNamed
	}
	room := p.lines.most
	for _, before := range l.places[:at] {
		if !before.isNamed {
			room--
		}
		if room == 0 {
			return false
		}
	}
	return true
}

func (l *line) stand(p *place) {
	if !p.stands && !p.isNamed {
		p.stands = true
		l.standing++
	}
}

// isFirst reports whether it is the first waiter of this process, and whether the server reports the next change.
func (p *place) isFirst() (isFirst, isWatched bool) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	l := p.lines.lines[p.name]
	return l.places[0] == p, l.watched != 0 && l.watched == l.link
}

// sends records that its first request is in flight, and calls the waiter behind it.
func (p *place) sends() {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if l := p.lines.lines[p.name]; !p.sent {
		p.sent = true
		l.stand(p)
		l.callUnsent(l.index(p) + 1)
	}
}

func (l *line) callUnsent(from int) {
	for i, p := range l.places[from:] {
		if !p.sent && l.mayStand(from+i) {
			notify(p.turn)
			return
		}
	}
}

// watch returns the requests that must first be sent over this connection, so that its server reports the next change.
func (p *place) watch(over *link) [][]string {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	l := p.lines.lines[p.name]
	if l == nil || l.watched == over.number {
		return nil
	}
	l.watched = over.number
	return [][]string{{"LOCK.FENCE", p.name}}
}

// asked records that the server has it in its queue since the request of this number, over this connection.
func (p *place) asked(number, over uint64) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	l := p.lines.lines[p.name]
	at := l.index(p)
	wasFirst, wasStale := at == 0, l.isStale(p)
	l.places = slices.Delete(l.places, at, at+1)
	p.link, p.askedAt = over, now()
	if p.number == unasked {
		p.number = number
	}
	at = l.index(p)
	l.places = slices.Insert(l.places, at, p)
	if number > l.latest {
		l.link, l.latest = over, number
	}
	// A call for the first waiter may have reached another one.
	if wasFirst != (at == 0) {
		l.callFirst()
	}
	l.callNext(at+1, wasStale)
}

// clear resets the call.
func (p *place) clear() {
	select {
	case <-p.turn:
	default:
	}
}

// sleep sleeps for this time, or until it is called.
func (p *place) sleep(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-p.turn:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *place) leave() {
	ls := p.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[p.name]
	at := l.index(p)
	wasStale := l.isStale(p)
	l.places = slices.Delete(l.places, at, at+1)
	if p.stands {
		l.standing--
	}
	l.callUnsent(0) // it may stand in the server's queue now, or it asks after this one
	if len(l.places) == 0 {
		delete(ls.lines, p.name)
		return
	}
	if at == 0 {
		l.callFirst()
	}
	if wasStale {
		l.callNext(at, true)
	}
}
