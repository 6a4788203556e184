package redislock

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	longestOwner = 256
	mostNames    = 64
	highestLimit = 1_000_000
)

// A kind is the mode in which a lock is held.
type kind int

const (
	exclusive kind = iota
	shared
	limited
)

// A wanted is the request of one acquire, with an owner of its own.
type wanted struct {
	names  []string
	prefix int // the length of each name's prefix in bytes
	kind   kind
	limit  int
	lease  time.Duration
	// firstLease is the longest lease that a request asks for after a wait.
	firstLease time.Duration
	owner      string
	// ctx is the context for the hooks.
	ctx     context.Context
	isNamed bool // true if the program names the owner, which may then hold other locks
	// doubtful is true if a request went unanswered, and may reach the server late; grantable if the latest request is
	// in flight or was granted; sent if any was sent.
	doubtful, grantable, sent atomic.Bool
	// answered is true if a server has replied to any request. last is the error of the latest attempt, and quarantine
	// that of a request that did not wait.
	answered         atomic.Bool
	last, quarantine atomic.Pointer[error]
}

// newOwner returns a new, unique owner that identifies the process for operators.
func newOwner(label string) string {
	owner := label + ":" + newID()
	return owner[max(0, len(owner)-longestOwner):]
}

func newID() string {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:], rand.Uint64())
	binary.NativeEndian.PutUint64(b[8:], rand.Uint64())
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func defaultLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
}

func (w *wanted) name() string { return w.names[0] }

// label returns the names without their prefix, for people.
func (w *wanted) label() string {
	names := make([]string, len(w.names))
	for i, name := range w.names {
		names[i] = name[w.prefix:]
	}
	return strings.Join(names, ", ")
}

func (w *wanted) mayBeGranted() bool { return w.doubtful.Load() || w.grantable.Load() }

func (w *wanted) sends() {
	w.sent.Store(true)
	w.grantable.Store(true)
}

func (w *wanted) gotNothing() { w.grantable.Store(false) }

func (w *wanted) doubt() { w.doubtful.Store(true) }

// acquire acquires the lock or all of the locks. The mode of waiting is BLOCK or QUEUE with its time, or empty.
func (w *wanted) acquire(lease time.Duration, how string, most time.Duration) []string {
	words := []string{"LOCK.ACQUIRE", w.name(), w.owner, "PX", milliseconds(lease)}
	if len(w.names) > 1 {
		words = append([]string{"LOCK.MACQUIRE", strconv.Itoa(len(w.names))}, w.names...)
		words = append(words, w.owner, "PX", milliseconds(lease))
	}
	if how != "" {
		words = append(words, how, milliseconds(most))
	}
	switch w.kind {
	case shared:
		words = append(words, "SHARED")
	case limited:
		words = append(words, "LIMIT", strconv.Itoa(w.limit))
	case exclusive:
	}
	return words
}

func (w *wanted) renew(name string, lease time.Duration, token int64) []string {
	return []string{"LOCK.RENEW", name, w.owner, "PX", milliseconds(lease), "TOKEN", strconv.FormatInt(token, 10)}
}

// release releases the hold; without a token (0), it also ends the wait.
func (w *wanted) release(name string, token int64) []string {
	words := []string{"LOCK.RELEASE", name, w.owner}
	if token != 0 {
		words = append(words, "TOKEN", strconv.FormatInt(token, 10))
	}
	return words
}
