package redislock

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What can go wrong. Compare with [errors.Is]; [Error], [TimeoutError] and [LostError] carry the facts.
var (
	// ErrLockTimeout says that the lock could not be acquired in time.
	ErrLockTimeout = errors.New("redislock: the lock could not be acquired in time")
	// ErrLockLost says that the hold is over, though its holder did not release it.
	ErrLockLost = errors.New("redislock: the lock is lost")
	// ErrReleased says that the hold was released. It is the cause of its context then.
	ErrReleased = errors.New("redislock: the lock is released")
	// ErrDeadlock says that the wait would never end: those that it waits for wait, in turn, for this owner.
	ErrDeadlock = errors.New("redislock: deadlock")
	// ErrAlreadyHeld says that the context is that of a hold of the same lock, or that the named owner holds the lock in
	// another mode. It is an ErrDeadlock, too.
	ErrAlreadyHeld = fmt.Errorf("%w: the lock is held already", ErrDeadlock)
	// ErrFenced says that the fencing token is not that of a live hold of the lock.
	ErrFenced = errors.New("redislock: the token is fenced off")
	// ErrLockKindMismatch says that the lock is of another kind now.
	ErrLockKindMismatch = errors.New("redislock: the lock is of another kind")
	// ErrQueueFull says that too many wait already.
	ErrQueueFull = errors.New("redislock: the queue is full")
	// ErrQuarantine says that the server grants no new lock yet, for it may have lost some.
	ErrQuarantine = errors.New("redislock: the server is in quarantine")
	// ErrNotConfirmed says that too few replicas have confirmed the grant: the owner may or may not hold the lock.
	ErrNotConfirmed = errors.New("redislock: the grant was not confirmed")
	// ErrModuleMissing says that the server does not know the commands.
	ErrModuleMissing = errors.New("redislock: the server lacks the module")
	// ErrConnectionFailed says that no server answered in time, or none that grants locks.
	ErrConnectionFailed = errors.New("redislock: no server answered")
	// ErrServerRefused says that the server refused the request, for a reason that has no error of its own.
	ErrServerRefused = errors.New("redislock: the server refused")
	// ErrInvalid says that an argument is out of its range: nothing was sent.
	ErrInvalid = errors.New("redislock: an argument is out of its range")
	// ErrClosed says that the Locks were closed.
	ErrClosed = errors.New("redislock: the locks were closed")
)

// An Error is what went wrong, of one of the kinds above.
type Error struct {
	// Kind is one of the errors of this package, as ErrDeadlock.
	Kind error
	// Lock is the name of the lock, or the names of all; empty where none is concerned.
	Lock string
	// Message says what the server said, or what is wrong.
	Message string
	// Cycle says who waits for which lock, and there for whom (ErrDeadlock).
	Cycle []WaitStep
	// Left is how long the server grants nothing (ErrQuarantine).
	Left time.Duration
	// Cause is the error of the network, of the context, or of the code of the user; nil if there was none.
	Cause error
}

// A WaitStep is a step of a deadlock's cycle: the owner waits for the lock, and there for the holder.
type WaitStep struct{ Owner, Lock, Holder string }

func (e *Error) Error() string {
	if e.Lock == "" {
		return "redislock: " + e.Message
	}
	return fmt.Sprintf("redislock: lock %q: %s", e.Lock, e.Message)
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error { return and(e.Kind, e.Cause) }

// A TimeoutError is an ErrLockTimeout: another had the lock for all of the wait.
type TimeoutError struct {
	// Lock is the name of the lock, or the names of all.
	Lock string
	// Waited is how long the caller has waited.
	Waited time.Duration
	// Cause is context.DeadlineExceeded where the deadline of the context ended the wait; else nil.
	Cause error
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("redislock: could not acquire lock %q within %v: another holds it", e.Lock, e.Waited.Round(time.Millisecond))
}

// Unwrap returns ErrLockTimeout, and the error of the context.
func (e *TimeoutError) Unwrap() []error { return and(ErrLockTimeout, e.Cause) }

// A Reason tells how a loss was noticed.
type Reason string

// The reasons of a loss.
const (
	// ReasonRenewal says that the server has answered a renewal that the hold is over.
	ReasonRenewal Reason = "renewal"
	// ReasonDeadline says that no renewal succeeded before the end of the lease.
	ReasonDeadline Reason = "deadline"
	// ReasonPush says that the server has told of the end of the hold.
	ReasonPush Reason = "push"
	// ReasonRelease says that the server has answered the release that the hold was over.
	ReasonRelease Reason = "release"
	// ReasonMaxHold says that the hold has lasted as long as MaxHold lets it.
	ReasonMaxHold Reason = "max_hold"
	// ReasonForgotten says that the program has dropped the Hold without a release.
	ReasonForgotten Reason = "forgotten"
	// ReasonClose says that the Locks were closed.
	ReasonClose Reason = "close"
)

var reasons = map[Reason]string{
	ReasonRenewal:   "the server answered a renewal that the hold is over",
	ReasonDeadline:  "no renewal succeeded before the end of the lease",
	ReasonPush:      "the server told that the hold is over",
	ReasonRelease:   "it was over when it was released",
	ReasonMaxHold:   "it has lasted as long as MaxHold lets it",
	ReasonForgotten: "the program dropped the Hold without a release, so it was not renewed",
	ReasonClose:     "the Locks were closed",
}

// A LostError is an ErrLockLost. It is the cause of the context of the hold, too.
type LostError struct {
	// Lock is the name of the lock, or the names of all.
	Lock string
	// Token is the fencing token of the hold.
	Token uint64
	// Reason tells how the loss was noticed.
	Reason Reason
	// Cause is the last failure of a renewal; nil if none failed.
	Cause error
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("redislock: lost lock %q: %s", e.Lock, reasons[e.Reason])
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns ErrLockLost and the cause.
func (e *LostError) Unwrap() []error { return and(ErrLockLost, e.Cause) }

// and is the kind of an error, and its cause, if it has one.
func and(kind, cause error) []error {
	if cause == nil {
		return []error{kind}
	}
	return []error{kind, cause}
}

func invalid(format string, args ...any) error {
	return &Error{Kind: ErrInvalid, Message: fmt.Sprintf(format, args...)}
}

func unreachable(cause error, format string, args ...any) *Error {
	return &Error{Kind: ErrConnectionFailed, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// errorOf is the error that this reply of a server is.
func errorOf(text string) *Error {
	code, rest, _ := strings.Cut(text, " ")
	switch code {
	case "DEADLOCK":
		return &Error{Kind: ErrDeadlock, Message: text, Cycle: cycle(rest)}
	case "LOCKHELD":
		return &Error{Kind: ErrAlreadyHeld, Message: text}
	case "LOCKKIND":
		return &Error{Kind: ErrLockKindMismatch, Message: text}
	case "LOCKQUEUE":
		return &Error{Kind: ErrQueueFull, Message: text}
	case "NOREPLICAS":
		return &Error{Kind: ErrNotConfirmed, Message: text}
	case "QUARANTINE":
		left, _ := strconv.ParseInt(strings.Split(rest, " ")[0], 10, 32)
		return &Error{Kind: ErrQuarantine, Message: text, Left: time.Duration(left) * time.Millisecond}
	case "MOVED":
		text += ": this server is a node of a cluster: set Servers.Cluster"
	case "NOAUTH":
		text = "NOAUTH this server wants a password: redis://:password@host:port, or Servers.Password"
	case "WRONGTYPE":
		text = "WRONGTYPE another client's value stands under this name: choose another name, or WithPrefix"
	case "ERR":
		if strings.HasPrefix(strings.ToLower(rest), "unknown command") {
			text, _, _ = strings.Cut(text, ", with args")
			return &Error{Kind: ErrModuleMissing, Message: text + ". The module redislock is not loaded on this server: start it " +
				"with `loadmodule /path/to/libredislock.so` in its configuration, or MODULE LOAD it once"}
		}
	}
	return &Error{Kind: ErrServerRefused, Message: text}
}

// cycle reads `'ben' waits for 'left' and there for 'ann', 'ann' waits for ...`.
func cycle(text string) (steps []WaitStep) {
	words := strings.Split(text, "'")
	for i := 1; i+4 < len(words); i += 6 {
		steps = append(steps, WaitStep{Owner: words[i], Lock: words[i+2], Holder: words[i+4]})
	}
	return steps
}

// isOverwritten tells whether another value was written over the lock, and so nobody holds it.
func isOverwritten(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == ErrServerRefused && strings.HasPrefix(e.Message, "WRONGTYPE")
}

// isRefusal tells whether a server refused it: another request would be answered likewise.
func isRefusal(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind != ErrConnectionFailed && e.Kind != ErrClosed && e.Kind != ErrInvalid
}

// grantedNothing tells whether a server has refused a request, and has granted nothing for it.
func grantedNothing(err error) bool { return isRefusal(err) && !errors.Is(err, ErrNotConfirmed) }

// named adds the name of the lock to a refusal, and says which leases the server takes.
func named(err error, lock string, lease time.Duration) error {
	var e *Error
	if !errors.As(err, &e) || e.Lock != "" {
		return err
	}
	if most, told := mostOf("PX", e.Message); told {
		return invalid("lease (or MinHold) must be from %v to %v (redislock.max-lease of the server, or its redislock.quarantine "+
			"if that is set and shorter), not %v", shortestLease, most, lease)
	}
	with := *e
	with.Lock = lock
	return &with
}
