// Package redislocktest provides an in-memory server for testing programs that use locks.
//
// All but the server is the library's own code, so a test sees the same waits, renewals, losses and errors. In a bubble of
// testing/synctest a sleep moves the clock, and there are no real waits:
//
//	func TestAReportIsWrittenOnceAMinute(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			server := redislocktest.NewServer()
//			defer server.Close()
//			ours, theirs := server.Open(), server.Open() // as two processes
//			hold, _ := ours.Lock("report", redislock.MinHold(50*time.Second)).Acquire(t.Context())
//			_ = hold.Release(t.Context())
//			time.Sleep(30 * time.Second)
//			_, isHad, _ := theirs.Lock("report").TryAcquire(t.Context()) // false
//			...
//		})
//	}
//
// Once a program has created a [Server], all its locks use time.Now as their clock, so create it before the first
// Locks. The server has no quarantine, no replicas and no queue limits.
package redislocktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"redislock.example/go"
	"redislock.example/go/internal/testclock"
)

// longestWord is the longest word of a request.
const longestWord = 1 << 20

var errClosed = errors.New("this redislocktest.Server is closed")

// A Server is a server in the process. Close ends it.
type Server struct {
	mu    sync.Mutex
	table table
	// changed wakes the goroutine that ends leases in time.
	changed chan struct{}
	closed  chan struct{}
	locks   []*redislock.Locks
	ends    sync.Once
}

// NewServer returns a server that has no locks yet.
func NewServer() *Server {
	testclock.IsUsed.Store(true)
	s := &Server{changed: make(chan struct{}, 1), closed: make(chan struct{})}
	s.table.watched, s.table.connections = map[string]map[*connection]bool{}, map[*connection]bool{}
	go s.keepTime()
	return s
}

// Servers returns settings with which [redislock.New] reaches it.
func (s *Server) Servers() redislock.Servers {
	return redislock.Servers{Addrs: []string{"redislocktest:1"}, Dial: s.dial}
}

// Open returns a client for its locks. Each call acts like another process. Close also closes these clients.
func (s *Server) Open(opts ...redislock.Option) *redislock.Locks {
	locks, err := redislock.New(s.Servers(), opts...)
	if err != nil {
		panic(err) // an option of the test is out of its range
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks = append(s.locks, locks)
	return locks
}

// Lose ends all holds of this lock, as an operator's DEL does. Their contexts are cancelled within 20 ms; a test waits
// for that with <-hold.Context().Done().
func (s *Server) Lose(name string) {
	s.do(func() { s.table.lose(name) })
}

// Close closes the clients that Open returned, and ends all connections.
func (s *Server) Close() {
	s.ends.Do(func() {
		s.mu.Lock()
		locks := s.locks
		s.mu.Unlock()
		for _, each := range locks {
			each.Close(context.Background())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.closed)
		for each := range s.table.connections {
			each.end()
		}
	})
}

// do changes the table, after expired leases and waits have ended.
func (s *Server) do(change func()) {
	s.mu.Lock()
	s.table.tick(time.Now())
	change()
	s.mu.Unlock()
	notify(s.changed)
}

func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// keepTime ends leases and waits when their time is up.
func (s *Server) keepTime() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.table.tick(time.Now())
		timer.Reset(s.table.next(time.Now()))
		s.mu.Unlock()
		select {
		case <-timer.C:
		case <-s.changed:
		case <-s.closed:
			return
		}
	}
}

// A connection holds the replies to send over it.
type connection struct {
	conn     net.Conn
	mu       sync.Mutex
	out      strings.Builder
	wake     chan struct{}
	ended    chan struct{}
	ends     sync.Once
	isWarned bool // of changes
}

func (s *Server) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	c := &connection{conn: theirs, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return nil, errClosed
	default:
	}
	s.table.connections[c] = true
	go c.write()
	go s.read(c)
	return ours, nil
}

func (c *connection) end() {
	c.ends.Do(func() {
		close(c.ended)
		_ = c.conn.Close()
	})
}

func (c *connection) send(reply string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.WriteString(reply)
	notify(c.wake)
}

func (c *connection) write() {
	for {
		select {
		case <-c.ended:
			return
		case <-c.wake:
		}
		c.mu.Lock()
		out := c.out.String()
		c.out.Reset()
		c.mu.Unlock()
		if _, err := io.WriteString(c.conn, out); err != nil {
			c.end()
		}
	}
}

// read executes the requests of the connection, until it ends.
func (s *Server) read(c *connection) {
	from := bufio.NewReader(c.conn)
	for {
		words, err := readRequest(from)
		if err != nil {
			break
		}
		s.do(func() {
			if reply := s.table.command(c, words); reply != "" {
				c.send(reply)
			}
		})
	}
	c.end()
	s.do(func() { s.table.detach(c) })
}

func readRequest(from *bufio.Reader) ([]string, error) {
	count, err := readLength(from, '*')
	if err != nil {
		return nil, err
	}
	words := make([]string, count)
	for i := range words {
		length, err := readLength(from, '$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(from, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:length])
	}
	return words, nil
}

func readLength(from *bufio.Reader, kind byte) (int, error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return 0, err
	}
	length, err := strconv.Atoi(strings.TrimRight(line[1:], "\r\n"))
	if err != nil || line[0] != kind || length < 0 || length > longestWord {
		return 0, fmt.Errorf("%q is no request", line)
	}
	return length, nil
}
