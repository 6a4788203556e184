package redislock

import (
	"net"
	"strconv"
	"strings"
	"time"
)

// The decisions, without I/O: constants, deadlines, and the consequences of a reply.

const (
	// nobodys is a token that no hold ever has. A release with it ends a wait but no hold.
	nobodys = 1
	// defaultLease is the time that a hold lasts unless it is renewed.
	defaultLease  = 30 * time.Second
	shortestLease = 100 * time.Millisecond
	// A holder does not rely on this part of a lease, because clocks run at different speeds, nor on margin.
	driftPart = 100
	margin    = 2 * time.Millisecond
	// A hold is renewed after this part of its lease, less up to a tenth at random.
	renewPart = 3
	// maxQueued is the number of waiters of this process in the server's queue of one lock. It is also the number of
	// connections that wait for several locks.
	maxQueued = 16
	// waitMargin is the time beyond its wait for which a request may go unanswered, less than the 2 s in the docs.
	waitMargin = 1800 * time.Millisecond
	// defaultServerTimeout is the time for which no server may answer during an unlimited wait.
	defaultServerTimeout = 10 * time.Second
	// releaseTime is the time limit of a release; an unanswered one continues in the background.
	releaseTime = 5 * time.Second
	// attemptTime is the time after which an unanswered request is sent again, over a new connection.
	attemptTime = 2 * time.Second
	// strayTime is the delay with which an unanswered request may still reach the server.
	strayTime = 30 * time.Second
	// keepTime is the time for which the server keeps a queue position. The client asks asksInKeep times in it.
	keepTime   = 5 * time.Second
	asksInKeep = 3
	// firstLease is the lease of a client that has waited: if it dies before it renews, others wait no longer.
	firstLease = 5 * time.Second
	// watchAfter is the time from a grant until the client subscribes to its end: most holds end earlier.
	watchAfter = 20 * time.Millisecond
	// pause is the time between two attempts; it doubles up to longestPause.
	pause        = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond
	// reconnect is the longest pause before the second attempt to connect, at random; it doubles up to longestReconnect.
	reconnect        = 50 * time.Millisecond
	longestReconnect = time.Second
	// probeTime is the interval at which the shared connection asks about a blocked request.
	probeTime = 1500 * time.Millisecond
	// longWait is the time after which a wait is logged, and again whenever it has doubled; ownWait that for a lock of
	// this client.
	longWait = 30 * time.Second
	ownWait  = time.Second
	// longBlock is the time for which an unlimited wait is requested at once.
	longBlock = time.Minute
	// poll is the polling interval of a waiter, if the server does not report changes.
	poll = 100 * time.Millisecond
	// farewell is the time limit of closing if its context has none.
	farewell = 5 * time.Second
	// nap is the longest sleep of the scheduler while something is held: timers stop while the machine sleeps.
	nap = time.Second

	slots = 16384

	// moduleVersionMin is the oldest module that has everything this library needs, in the form of HELLO: 300 is 0.3.0.
	moduleVersionMin = 300
)

// sure returns the time for which a hold of this lease is certain, counted from before its request was sent.
func sure(lease time.Duration) time.Duration { return max(0, lease-lease/driftPart-margin) }

// renewal returns the time of the renewal of a hold of this lease, counted from before its last request was sent.
func renewal(lease time.Duration) time.Duration {
	third := lease / renewPart
	return third - atRandom(third/10)
}

// milliseconds formats a duration for the server, at least one.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

// backOff returns the pause before another attempt to connect, which grows with each failure.
func backOff(tries int) time.Duration {
	if tries == 0 {
		return 0
	}
	return atRandom(min(longestReconnect, reconnect<<min(tries-1, 8)))
}

// slot returns the slot of a name in a cluster.
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

// A step is the client's next action after an error reply.
type step int

const (
	// fail returns the error to the caller.
	fail step = iota
	// again asks again after a pause, at the server that is then the primary.
	again
	// elsewhere does the same over a new connection: the address may now lead to another server.
	elsewhere
	// moved asks the node that has the slot now.
	moved
	// asking asks this node, once.
	asking
)

// judge decides the next step after an error of the server. Slot and address are those of a redirection.
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

// mostOf returns the longest time that this server allows for an option, if the error names it.
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

// longestWait returns the longest wait that this server allows (redislock.max-wait), if the error names it.
func longestWait(text string) (time.Duration, bool) {
	if most, told := mostOf("QUEUE", text); told {
		return most, true
	}
	return mostOf("BLOCK", text)
}
