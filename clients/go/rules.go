package redislock

import (
	"net"
	"strconv"
	"strings"
	"time"
)

// The decisions, without input or output: constants, deadlines, and what follows from a reply.

const (
	// nobodys is a token that no hold ever has: a release with it ends a wait, and no hold.
	nobodys = 1
	// defaultLease is how long a hold lasts unless it is renewed.
	defaultLease  = 30 * time.Second
	shortestLease = 100 * time.Millisecond
	// driftPart of a lease is not counted on, for clocks that run at different speeds, and margin neither.
	driftPart = 100
	margin    = 2 * time.Millisecond
	// renewPart of a lease may be over before a hold is renewed; up to a tenth less at random.
	renewPart = 3
	// maxQueued is how many waiters of this process stand in the server's queue of one lock. It is also how many
	// connections wait for several locks.
	maxQueued = 16
	// waitMargin is how long beyond its wait a request may go unanswered, less than the 2 s that users are told.
	waitMargin = 1800 * time.Millisecond
	// defaultServerTimeout is for how long no server may answer, where a wait has no end.
	defaultServerTimeout = 10 * time.Second
	// releaseTime is how long a release may take; what is not answered then goes on in the background.
	releaseTime = 5 * time.Second
	// attemptTime is after what time a request that is not answered is sent again, over a new connection.
	attemptTime = 2 * time.Second
	// strayTime is how late a request may reach the server that was not answered.
	strayTime = 30 * time.Second
	// keepTime is for how long the server keeps a place in the queue; the client asks asksInKeep times in it.
	keepTime   = 5 * time.Second
	asksInKeep = 3
	// firstLease is the lease of a client that has waited: one that dies before it renews holds up others no longer.
	firstLease = 5 * time.Second
	// watchAfter is the time from a grant until the server is asked to tell of its end: most holds are over before.
	watchAfter = 20 * time.Millisecond
	// pause is the time between two attempts; it doubles up to longestPause.
	pause        = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond
	// reconnect is the longest pause before the second attempt to connect, at random; it doubles up to longestReconnect.
	reconnect        = 50 * time.Millisecond
	longestReconnect = time.Second
	// probeTime is how often a blocked request is asked about over the shared connection.
	probeTime = 1500 * time.Millisecond
	// longWait is after what time a wait is logged, and whenever it has doubled; ownWait for a lock of this client.
	longWait = 30 * time.Second
	ownWait  = time.Second
	// longBlock is how long a wait without an end is asked for in one request.
	longBlock = time.Minute
	// poll is how often a waiter asks whether it is its turn, where the server does not tell.
	poll = 100 * time.Millisecond
	// farewell is how long closing may take where its context has no end.
	farewell = 5 * time.Second
	// nap is how long the scheduler sleeps at most while something is held: timers stand still while the machine sleeps.
	nap = time.Second

	slots = 16384

	// moduleVersionMin is the oldest module that has all that this library asks for, as HELLO tells it: 300 is 0.3.0.
	moduleVersionMin = 300
)

// sure is for how long a hold of this lease may count on it, from before its request was sent.
func sure(lease time.Duration) time.Duration { return max(0, lease-lease/driftPart-margin) }

// renewal is when a hold of this lease is renewed, from before its last request was sent.
func renewal(lease time.Duration) time.Duration {
	third := lease / renewPart
	return third - atRandom(third/10)
}

// milliseconds is a duration as the server wants it: at least one.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

// backOff is the pause before another attempt to connect, which grows with each that failed.
func backOff(tries int) time.Duration {
	if tries == 0 {
		return 0
	}
	return atRandom(min(longestReconnect, reconnect<<min(tries-1, 8)))
}

// slot is the slot of a name in a cluster.
func slot(name string) int {
	if open := strings.IndexByte(name, '{'); open >= 0 {
		if length := strings.IndexByte(name[open+1:], '}'); length > 0 {
			name = name[open+1 : open+1+length]
		}
	}
	var crc uint16
	for i := range len(name) {
		crc ^= uint16(name[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

// A step is what a client does next when the server replied an error.
type step int

const (
	// fail tells the caller.
	fail step = iota
	// again asks again after a pause, at the server that is the primary then.
	again
	// elsewhere does the same over a new connection: the address may lead to another server now.
	elsewhere
	// moved asks the node that has the slot now.
	moved
	// asking asks this node, once.
	asking
)

// judge tells what follows from an error of the server. Slot and address are of a redirection.
func judge(text string) (next step, at int, address string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return fail, 0, ""
	}
	switch words[0] {
	case "READONLY", "UNBLOCKED", "MASTERDOWN":
		return elsewhere, 0, ""
	case "LOADING", "TRYAGAIN", "CLUSTERDOWN":
		return again, 0, ""
	case "MOVED", "ASK":
		if len(words) < 3 {
			return fail, 0, ""
		}
		at, err := strconv.Atoi(words[1])
		colon := strings.LastIndexByte(words[2], ':')
		if err != nil || at < 0 || at >= slots || colon < 0 {
			return fail, 0, ""
		}
		address = net.JoinHostPort(words[2][:colon], words[2][colon+1:])
		if words[0] == "MOVED" {
			return moved, at, address
		}
		return asking, at, address
	}
	return fail, 0, ""
}

// mostOf is the longest time that this server allows for an option, if this error tells it.
func mostOf(option, text string) (time.Duration, bool) {
	rest, found := strings.CutPrefix(text, "ERR "+option+" must be an integer from ")
	if !found {
		return 0, false
	}
	_, rest, _ = strings.Cut(rest, " to ")
	most, err := strconv.ParseInt(strings.Split(rest, " ")[0], 10, 64)
	if err != nil || most < 0 || most > int64(time.Hour)*24 {
		return 0, false
	}
	return time.Duration(most) * time.Millisecond, true
}

// longestWait is the longest wait that this server allows (redislock.max-wait), if this error tells it.
func longestWait(text string) (time.Duration, bool) {
	if most, told := mostOf("QUEUE", text); told {
		return most, true
	}
	return mostOf("BLOCK", text)
}
