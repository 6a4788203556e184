package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"redislock.example/go"
	"redislock.example/go/internal/testserver"
)

// slack is what a timed assertion allows: the machine may be busy.
const slack = 20 * time.Second

var (
	address string
	serving *os.Process
)

func TestMain(m *testing.M) {
	server, err := testserver.Start("--save", "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	address, serving = server.Address, server.Process
	code := m.Run()
	server.Stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func TestReservePortRefusesOtherListeners(t *testing.T) {
	port, err := testserver.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	exclusive := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		controlErr := raw.Control(func(socket uintptr) {
			err = syscall.SetsockoptInt(int(socket), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		})
		return errors.Join(err, controlErr)
	}}
	other, err := exclusive.Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		_ = other.Close()
		t.Fatalf("port %d was reserved, and another could listen there", port)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatal(err)
	}
}

func TestServerOfTheTestsIsTheProcessThatWasStarted(t *testing.T) {
	process, err := testserver.ProcessAt(address)
	if err != nil || process != serving.Pid {
		t.Fatalf("process %d answers, and %d was started: %v", process, serving.Pid, err)
	}
}

// A journal keeps what the library logs.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(line))
	return len(line), nil
}

func (j *journal) count(words ...string) (count int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		has := true
		for _, word := range words {
			has = has && strings.Contains(line, word)
		}
		if has {
			count++
		}
	}
	return count
}

// open opens the server of the tests, and closes it at the end.
func open(t *testing.T, opts ...redislock.Option) *redislock.Locks {
	t.Helper()
	return openAt(t, address, opts...)
}

func openAt(t *testing.T, at string, opts ...redislock.Option) *redislock.Locks {
	t.Helper()
	quiet := []redislock.Option{redislock.WithLogger(slog.New(slog.NewTextHandler(&journal{}, nil)))}
	locks, err := redislock.Open("redis://"+at, append(quiet, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(context.Background()) })
	return locks
}

// eventually polls until it is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(slack); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", slack, what)
		}
	}
}

func acquire(t *testing.T, lock *redislock.Lock) *redislock.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	hold, err := lock.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func waiting(t *testing.T, locks *redislock.Locks, name string, number int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d wait for %s", number, name), func() bool {
		info, err := locks.Info(context.Background(), name)
		return err == nil && info != nil && info.Waiters == number
	})
}

func isFree(locks *redislock.Locks, name string) bool {
	info, err := locks.Info(context.Background(), name)
	return err == nil && info == nil
}
