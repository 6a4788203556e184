package redislock_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"redislock.example/go"
)

// slack is what a timed assertion allows: the machine may be busy.
const slack = 20 * time.Second

var (
	address string
	serving *exec.Cmd
)

func TestMain(m *testing.M) {
	directory, err := os.MkdirTemp("", "redislock-go-")
	if err == nil {
		address, serving, err = serve(directory)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = serving.Process.Kill()
	_ = serving.Wait()
	_ = os.RemoveAll(directory)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// serve starts a server on a free port: that of REDISLOCK_SERVER, with the module of REDISLOCK_MODULE.
func serve(directory string, more ...string) (string, *exec.Cmd, error) {
	words := strings.Fields(os.Getenv("REDISLOCK_SERVER"))
	module := os.Getenv("REDISLOCK_MODULE")
	if len(words) < 3 || module == "" {
		return "", nil, fmt.Errorf("REDISLOCK_SERVER (a line of scripts/servers) and REDISLOCK_MODULE must be set")
	}
	for range 5 { // another process may take the port
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		at := listener.Addr().String()
		_ = listener.Close()
		_, port, _ := net.SplitHostPort(at)
		server := exec.Command(words[2], append([]string{
			"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", directory,
			"--logfile", filepath.Join(directory, "log-"+port), "--loadmodule", module,
		}, more...)...)
		if err := server.Start(); err != nil {
			return "", nil, err
		}
		for range 200 {
			if conn, err := net.Dial("tcp", at); err == nil {
				_ = conn.Close()
				return at, server, nil
			}
			time.Sleep(50 * time.Millisecond)
		}
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	return "", nil, fmt.Errorf("the server did not start: see %s", directory)
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
