package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// reserve binds a port without listening there, until the tests end: a server that asks for SO_REUSEADDR may listen there
// all the same, and a search for a free port passes it over.
func reserve() (int, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	syscall.CloseOnExec(socket)
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	bound, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	return bound.(*syscall.SockaddrInet4).Port, nil
}

// processAt asks the server at this address which process it is.
func processAt(at string) (int, error) {
	conn, err := net.DialTimeout("tcp", at, slack)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written that could be lost
	if err := conn.SetDeadline(time.Now().Add(slack)); err != nil {
		return 0, err
	}
	if _, err := conn.Write([]byte("INFO server\r\n")); err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if process, found := strings.CutPrefix(lines.Text(), "process_id:"); found {
			return strconv.Atoi(process)
		}
	}
	return 0, fmt.Errorf("the peer at %s does not say which process it is", at)
}

// serve starts a server on a reserved port: that of REDISLOCK_SERVER, with the module of REDISLOCK_MODULE.
func serve(directory string) (string, *exec.Cmd, error) {
	words := strings.Fields(os.Getenv("REDISLOCK_SERVER"))
	module := os.Getenv("REDISLOCK_MODULE")
	if len(words) < 3 || module == "" {
		return "", nil, fmt.Errorf("REDISLOCK_SERVER (a line of scripts/servers) and REDISLOCK_MODULE must be set")
	}
	number, err := reserve()
	if err != nil {
		return "", nil, err
	}
	port := strconv.Itoa(number)
	server := exec.Command(words[2],
		"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", directory,
		"--logfile", filepath.Join(directory, "log"), "--loadmodule", module,
	)
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	at := net.JoinHostPort("127.0.0.1", port)
	for end := time.Now().Add(3 * slack); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		process, err := processAt(at)
		if err == nil && process == server.Process.Pid {
			return at, server, nil
		}
		if err == nil {
			_ = server.Process.Kill()
			_ = server.Wait()
			return "", nil, fmt.Errorf("process %d answers at %s, and not the server that was started", process, at)
		}
	}
	_ = server.Process.Kill()
	_ = server.Wait()
	written, _ := os.ReadFile(filepath.Join(directory, "log"))
	return "", nil, fmt.Errorf("the server did not start at %s: %s", at, written)
}

func TestReservePortRefusesOtherListeners(t *testing.T) {
	port, err := reserve()
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
	process, err := processAt(address)
	if err != nil || process != serving.Process.Pid {
		t.Fatalf("process %d answers, and %d was started: %v", process, serving.Process.Pid, err)
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
