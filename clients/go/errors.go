package redislock

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The errors of this package. Compare with [errors.Is]; [Error], [TimeoutError] and [LostError] carry the details.
var (
	// ErrLockTimeout means that the lock was not granted in time.
	ErrLockTimeout = errors.New("redislock: the lock could not be acquired in time")
	// ErrLockLost means that the hold ended before its release.
	ErrLockLost = errors.New("redislock: the lock was lost")
	// ErrReleased means that the hold was released. It is then the cause of the hold's context.
	ErrReleased = errors.New("redislock: the lock was released")
	// ErrDeadlock means that the wait would never end: the owners that it waits for are themselves waiting for this owner.
	ErrDeadlock = errors.New("redislock: deadlock")
	// ErrAlreadyHeld means that the context is that of a hold of the same lock, or that the Owner already holds the lock
	// in another mode. It is also an ErrDeadlock.
	ErrAlreadyHeld = fmt.Errorf("%w: the lock is already held", ErrDeadlock)
	// ErrFenced means that the token does not belong to a live hold of the lock.
	ErrFenced = errors.New("redislock: the token does not belong to a live hold")
	// ErrLockKindMismatch means that the lock is of another kind now, or a semaphore with another limit.
	ErrLockKindMismatch = errors.New("redislock: the lock is of another kind")
	// ErrQueueFull means that the queue of the lock, or of the server, is full.
	ErrQueueFull = errors.New("redislock: the queue is full")
	// ErrQuarantine means that the server grants no new locks yet, because it may have lost some.
	ErrQuarantine = errors.New("redislock: the server is in quarantine")
	// ErrNotConfirmed means that too few replicas confirmed the grant: the owner may or may not hold the lock.
	ErrNotConfirmed = errors.New("redislock: the grant was not confirmed")
	// ErrModuleMissing means that the server does not know the commands.
	ErrModuleMissing = errors.New("redislock: the server does not have the module")
	// ErrConnectionFailed means that no server that grants locks answered in time.
	ErrConnectionFailed = errors.New("redislock: no server answered in time")
	// ErrServerRefused means any other error of the server.
	ErrServerRefused = errors.New("redislock: the server refused the request")
	// ErrInvalid means that an argument is invalid, and that nothing was sent.
	ErrInvalid = errors.New("redislock: an argument is invalid")
	// ErrClosed means that the Locks are closed.
	ErrClosed = errors.New("redislock: the Locks are closed")
)

// An Error has one of the errors above as its Kind, and the details.
type Error struct {
	// Kind is one of the errors of this package, for example ErrDeadlock.
	Kind error
	// Lock is the name of the lock, or of all locks that were asked for; empty if the error concerns none.
	Lock string
	// Message is the server's reply, or a description of the problem.
	Message string
	// Cycle lists which owner waits for which lock and which holder (ErrDeadlock).
	Cycle []WaitStep
	// Left is how much longer the server grants no new locks (ErrQuarantine).
	Left time.Duration
	// Cause is the error of the network, of the context, or of your own code; nil if there is none.
	Cause error
}

// A WaitStep is a step of a deadlock's cycle: Owner waits for the lock Name, which Holder has.
type WaitStep struct{ Owner, Lock, Holder string }

func (e *Error) Error() string {
	if e.Lock == "" {
		return "redislock: " + e.Message
	}
	return fmt.Sprintf("redislock: lock %q: %s", e.Lock, e.Message)
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error { return and(e.Kind, e.Cause) }

// A TimeoutError is an ErrLockTimeout: another owner held the lock during the whole wait.
type TimeoutError struct {
	// Lock is the name of the lock, or the names of all.
	Lock string
	// Waited is how long the caller has waited.
	Waited time.Duration
	// Cause is context.DeadlineExceeded if the deadline of the context ended the wait; otherwise nil.
	Cause error
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("redislock: could not acquire lock %q within %v: another owner holds it", e.Lock, e.Waited.Round(time.Millisecond))
}

// Unwrap returns ErrLockTimeout, and the error of the context.
func (e *TimeoutError) Unwrap() []error { return and(ErrLockTimeout, e.Cause) }

// A Reason is the reason for a loss.
type Reason string

// The reasons of a loss.
const (
	// ReasonRenewal means that the server rejected a renewal, because the hold had ended.
	ReasonRenewal Reason = "renewal"
	// ReasonDeadline means that the lease ended before it could be renewed.
	ReasonDeadline Reason = "deadline"
	// ReasonPush means that a message from the server reported the end of the hold.
	ReasonPush Reason = "push"
	// ReasonRelease means that the hold had already ended when it was released.
	ReasonRelease Reason = "release"
	// ReasonMaxHold means that the hold reached its MaxHold.
	ReasonMaxHold Reason = "max_hold"
	// ReasonForgotten means that the program dropped all references to the Hold without releasing it.
	ReasonForgotten Reason = "forgotten"
	// ReasonClose means that the Locks were closed.
	ReasonClose Reason = "close"
)

var reasons = map[Reason]string{
	ReasonRenewal:   "the server rejected a renewal, because the hold had ended",
	ReasonDeadline:  "its lease ended before it could be renewed",
	ReasonPush:      "the server reported the end of the hold",
	ReasonRelease:   "it had already ended when it was released",
	ReasonMaxHold:   "it reached its MaxHold",
	ReasonForgotten: "the program dropped the Hold without releasing it, so it was not renewed",
	ReasonClose:     "the Locks were closed",
}

// A LostError is an ErrLockLost. It is also the cause of the hold's context.
type LostError struct {
	// Lock is the name of the lock, or the names of all.
	Lock string
	// Token is the fencing token of the hold.
	Token uint64
	// Reason is the reason for the loss.
	Reason Reason
	// Cause is the error of the last failed renewal; nil if none failed.
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

// and returns the kind of an error and, if it has one, its cause.
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

// errorOf returns the error for this reply of a server.
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
		text = "NOAUTH this server requires a password: redis://:password@host:port, or Servers.Password"
	case "WRONGTYPE":
		text = "WRONGTYPE the key of this name holds another value, which is no lock: choose another name, or WithPrefix"
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

// isOverwritten reports whether another value was written over the lock, so that no owner holds it.
func isOverwritten(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == ErrServerRefused && strings.HasPrefix(e.Message, "WRONGTYPE")
}

// isRefusal reports whether a server refused the request, and would refuse another one likewise.
func isRefusal(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind != ErrConnectionFailed && e.Kind != ErrClosed && e.Kind != ErrInvalid
}

// grantedNothing reports whether a server has refused a request, and has granted nothing for it.
func grantedNothing(err error) bool { return isRefusal(err) && !errors.Is(err, ErrNotConfirmed) }

// named adds the name of the lock to a refusal, and the range of leases that the server accepts.
func named(err error, lock string, lease time.Duration) error {
	var e *Error
	if !errors.As(err, &e) || e.Lock != "" {
		return err
	}
	if most, told := mostOf("PX", e.Message); told {
		return invalid("lease (or MinHold) must be from %v to %v (the server's redislock.max-lease, or its redislock.quarantine "+
			"if that is set and shorter), not %v", shortestLease, most, lease)
	}
	with := *e
	with.Lock = lock
	return &with
}
