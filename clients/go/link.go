package redislock

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A failure is the reason why there is no reply.
type failure struct {
	// refused is true if the server replied the text as an error.
	refused bool
	text    string
	cause   error
	// tooLate is true if there was no time left to connect: an earlier error says more.
	tooLate bool
}

func broken(cause error, format string, args ...any) *failure {
	return &failure{text: fmt.Sprintf(format, args...), cause: cause}
}

// told returns the error for the caller. A temporary refusal keeps its kind, with the server that it is from.
func (f *failure) told(address string) error {
	next, _, _ := judge(f.text)
	switch {
	case !f.refused && next == fail:
		return unreachable(f.cause, "no server answered in time: %s: %s", address, f.text)
	case f.refused && next == fail:
		return errorOf(f.text)
	case strings.HasPrefix(f.text, "READONLY"):
		return unreachable(f.cause, "%s (%s is a replica: use the address of the primary)", f.text, address)
	}
	return unreachable(f.cause, "%s (%s said so)", f.text, address)
}

// numbers are those of requests and connections, each higher than all earlier ones.
var numbers atomic.Uint64

// A call is a request that was sent.
type call struct {
	done   chan struct{}
	reply  any
	failed *failure
	number uint64
	link   *link
}

// A link is a connection that pipelines the requests of many goroutines.
type link struct {
	number  uint64
	address string
	// module is the version of the server's module: 0 without one.
	module int64
	conn   net.Conn
	born   moment
	// onChange receives the locks that have changed: nil for any, for example when the connection ended and pushes may
	// have been missed.
	onChange func(names []any)
	// givenUp is set when a reply did not arrive in time, served when the server did what only a primary does, and told
	// when it reports changes of keys.
	givenUp, served, told atomic.Bool

	wake   chan struct{}
	closed chan struct{}

	mu      sync.Mutex
	out     []byte
	pending []*call
	why     *failure
}

// dial opens a connection and logs in. With onChange, the server reports changes, if it may.
func (s *servers) dial(ctx context.Context, address string, as *Servers, onChange func([]any)) (*link, *failure) {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTime)
	defer cancel()
	user, password, failed := as.login(ctx, address)
	if failed != nil {
		return nil, failed
	}
	conn, failed := s.connect(ctx, address)
	if failed != nil {
		return nil, failed
	}
	l := &link{
		number: numbers.Add(1), address: address, conn: conn, born: now(), onChange: onChange,
		wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	s.running.run(l.read)
	s.running.run(l.write)
	if failed := l.greet(ctx, user, password, as.DB); failed != nil {
		l.end(failed)
		return nil, s.suspectTLS(failed)
	}
	return l, nil
}

// login returns the user and the password. The user's own code may provide them.
func (c *Servers) login(ctx context.Context, server string) (user, password string, failed *failure) {
	if c.Credentials == nil {
		return c.Username, c.Password, nil
	}
	user, password, err := c.Credentials(ctx, server)
	if err != nil {
		return "", "", broken(err, "could not get the credentials: %v", err)
	}
	return user, password, nil
}

func (s *servers) connect(ctx context.Context, address string) (net.Conn, *failure) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	conn, err := s.dialer(ctx, network, address)
	if err != nil {
		why, isSlow := err.Error(), ctx.Err() != nil
		if isSlow {
			why = fmt.Sprintf("could not connect within %v", attemptTime)
		}
		if s.config.TLS != nil && (isSlow || errors.Is(err, io.EOF)) {
			why += ": is this a port that speaks TLS?"
		}
		return nil, broken(err, "%s", why)
	}
	return conn, nil
}

// suspectTLS names the likely cause of a plain connection that ends in its greeting: TLS servers close it, or send an
// alert.
func (s *servers) suspectTLS(failed *failure) *failure {
	isLikely := false
	for _, sign := range []error{io.EOF, errNoRESP, syscall.ECONNRESET, syscall.EPIPE} {
		isLikely = isLikely || errors.Is(failed.cause, sign)
	}
	if failed.refused || !isLikely || s.config.TLS != nil || s.config.Dial != nil {
		return failed
	}
	return broken(failed.cause, "%s: is this a port for TLS? Set TLS, or use a URL that begins with rediss://", failed.text)
}

const noHello = "NOPROTO this peer does not know HELLO 3, so it does not speak RESP3, like some proxies: " +
	"use the address of the server itself"

func (l *link) greet(ctx context.Context, user, password string, db int) *failure {
	hello := []string{"HELLO", "3"}
	if password != "" || user != "" {
		hello = append(hello, "AUTH", cmp.Or(user, "default"), password)
	}
	requests := [][]string{hello}
	if db != 0 {
		requests = append(requests, []string{"SELECT", fmt.Sprint(db)})
	}
	if l.onChange != nil {
		requests = append(requests, []string{"CLIENT", "TRACKING", "ON"})
	}
	for _, words := range requests {
		reply, failed := l.ask(ctx, attemptTime, words)
		switch {
		case failed == nil && words[0] == "HELLO":
			l.module = moduleVersion(reply)
		case failed == nil && words[0] == "CLIENT":
			l.told.Store(true)
		case failed == nil || failed.refused && words[0] == "CLIENT": // it may not be told
		case failed.refused && words[0] == "HELLO" && (strings.HasPrefix(failed.text, "NOPROTO") ||
			strings.HasPrefix(strings.ToLower(failed.text), "err unknown command")):
			return &failure{refused: true, text: noHello}
		case failed.refused:
			failed.text += " (" + l.address + ")"
			return failed
		default:
			return failed
		}
	}
	return nil
}

// send sends this after all earlier requests. The result of before, if any, is sent first.
func (l *link) send(words []string, before func(*link) [][]string) *call {
	sent := &call{done: make(chan struct{}), link: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	sent.number = numbers.Add(1)
	if l.why != nil {
		sent.failed = l.why
		close(sent.done)
		return sent
	}
	if before != nil {
		for _, each := range before(l) {
			l.out = appendCommand(l.out, each)
			l.pending = append(l.pending, &call{done: make(chan struct{})})
		}
	}
	l.out = appendCommand(l.out, words)
	l.pending = append(l.pending, sent)
	notify(l.wake)
	return sent
}

// notify wakes the goroutine that waits for this, now or next.
func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// wait returns the reply. If none arrives in time, the connection is closed, because other replies may be missing, too.
// If the context ends first, the request is still in flight.
func (c *call) wait(ctx context.Context, most time.Duration) (any, *failure) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, broken(ctx.Err(), "no reply in time")
		}
		return nil, broken(context.Cause(ctx), "%v", context.Cause(ctx))
	case <-timer.C:
		c.link.givenUp.Store(true)
		c.link.end(broken(nil, "no reply for %v", most))
		<-c.done
	}
	return c.reply, c.failed
}

func (l *link) ask(ctx context.Context, most time.Duration, words []string) (any, *failure) {
	return l.send(words, nil).wait(ctx, most)
}

func (l *link) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why != nil
}

// end ends the connection. All who wait for a reply get the reason.
func (l *link) end(why *failure) {
	l.mu.Lock()
	if l.why != nil {
		l.mu.Unlock()
		return
	}
	why = broken(why.cause, "%s", why.text) // they were not refused themselves
	l.why = why
	pending := l.pending
	l.pending, l.out = nil, nil
	l.mu.Unlock()
	close(l.closed)
	l.conn.Close() //nolint:errcheck // nothing is left to be said
	for _, each := range pending {
		each.failed = why
		close(each.done)
	}
	if l.onChange != nil {
		l.onChange(nil)
	}
}

func (l *link) write() {
	for {
		select {
		case <-l.closed:
			return
		case <-l.wake:
		}
		l.mu.Lock()
		out := l.out
		l.out = nil
		l.mu.Unlock()
		err := l.conn.SetWriteDeadline(time.Now().Add(attemptTime))
		if err == nil {
			_, err = l.conn.Write(out)
		}
		if err != nil {
			l.end(broken(err, "the connection ended: %v", err))
			return
		}
	}
}

func (l *link) read() {
	from := bufio.NewReader(l.conn)
	for {
		reply, err := readReply(from, 0)
		if err == nil {
			err = l.take(reply)
		}
		if err != nil {
			l.end(broken(err, "the connection ended: %v", err))
			return
		}
	}
}

var errUnasked = errors.New("the server sent a reply without a request")

func (l *link) take(reply any) error {
	if push, is := reply.(pushed); is {
		if len(push) > 1 && push[0] == "invalidate" && l.onChange != nil {
			names, _ := push[1].([]any)
			l.onChange(names)
		}
		return nil
	}
	l.mu.Lock()
	if len(l.pending) == 0 {
		l.mu.Unlock()
		return errUnasked
	}
	answered := l.pending[0]
	l.pending = l.pending[1:]
	l.mu.Unlock()
	if text, is := reply.(refusal); is {
		answered.failed = &failure{refused: true, text: string(text)}
	}
	answered.reply = reply
	close(answered.done)
	return nil
}
