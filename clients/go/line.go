package redislock

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// lines are the waiters of this process for each lock, in the order in which the server knows them.
type lines struct {
	mu    sync.Mutex
	lines map[string]*line
	// most is how many waiters of each lock stand in the server's queue.
	most int
}

// A line is the waiters of one lock: those that have asked the server stand first, by the number of their request, and
// behind them the others, by their arrival.
type line struct {
	places []*place
	// standing counts those without a name that may stand in the server's queue: they have asked it, or are about to.
	standing int
	// watched is the connection over which the server was asked to tell of the next change of the lock, if it has told
	// of none since.
	watched uint64
	// link is the connection of the latest request of any of them, and latest the number of that request. The server
	// behind it may have lost its queue. So all that have asked over another connection ask again, one after the other.
	link, latest uint64
}

// A place is that of one waiter.
type place struct {
	lines           *lines
	name            string
	number, arrived uint64
	// isNamed tells that the program names the owner: the server sees its deadlocks, so it is sent at once.
	isNamed bool
	turn    chan struct{}
	// stands tells that it may ask, which nothing takes back, and sent that its first request is on its way: those behind
	// it ask after it.
	stands, sent bool
	// link is over which connection it has asked, and askedAt when.
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

// callNext calls the next waiter that has to ask again behind one that has just asked, or left, and that one the next.
// Behind the last one that had to, waiters are let in that have not asked yet.
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

// join stands in the line for this lock, by its arrival: its number is that of the call, which may be earlier than this.
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

// changed hears that these locks have changed: nil for any.
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

// May a waiter ask the server?
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

// mayStand tells whether the one at this place may stand in the server's queue. One whose call was earlier may join when
// others have asked.
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

// isFirst tells whether it is the first of this process, and isWatched whether the server tells of the next change.
func (p *place) isFirst() (isFirst, isWatched bool) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	l := p.lines.lines[p.name]
	return l.places[0] == p, l.watched != 0 && l.watched == l.link
}

// sends notes that its first request is on its way, and calls the one behind it.
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

// watch is what has to be asked before over this connection, so that the server behind it tells of the next change.
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

// asked notes that the server has it in its queue since the request of this number, over this connection.
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
	// What was meant for the first may have called another one.
	if wasFirst != (at == 0) {
		l.callFirst()
	}
	l.callNext(at+1, wasStale)
}

// clear forgets that it was called.
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
