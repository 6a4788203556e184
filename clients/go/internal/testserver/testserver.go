// Package testserver starts the servers of tests: that of REDISLOCK_SERVER, with the module of REDISLOCK_MODULE.
package testserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// slack is the time that a server may take, since the machine may be busy.
const slack = 60 * time.Second

// A Server is a process that a test started.
type Server struct {
	Address   string
	Process   *os.Process
	directory string
	ended     chan struct{}
}

// Start starts a server on a reserved port, with these options and its own.
func Start(options ...string) (*Server, error) {
	return start("loadmodule "+os.Getenv("REDISLOCK_MODULE"), options)
}

// StartSentinel starts a sentinel that knows the primary at this address under a name.
func StartSentinel(name, primary string) (*Server, error) {
	host, port, err := net.SplitHostPort(primary)
	if err != nil {
		return nil, err
	}
	return start(fmt.Sprintf("sentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %s 60000", name, host, port, name),
		[]string{"--sentinel"})
}

func start(config string, options []string) (*Server, error) {
	words := strings.Fields(os.Getenv("REDISLOCK_SERVER"))
	if len(words) < 3 || os.Getenv("REDISLOCK_MODULE") == "" {
		return nil, fmt.Errorf("REDISLOCK_SERVER (a line of scripts/servers) and REDISLOCK_MODULE must be set")
	}
	directory, err := os.MkdirTemp("", "redislock-go-")
	if err != nil {
		return nil, err
	}
	number, err := Reserve()
	if err != nil {
		return nil, err
	}
	file, port := filepath.Join(directory, "conf"), strconv.Itoa(number)
	all := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\n%s\n", port, directory, config)
	if err := os.WriteFile(file, []byte(all), 0o600); err != nil {
		return nil, err
	}
	command := exec.Command(words[2], append([]string{file}, options...)...)
	log, err := os.Create(filepath.Join(directory, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the server writes it
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		return nil, err
	}
	server := &Server{net.JoinHostPort("127.0.0.1", port), command.Process, directory, make(chan struct{})}
	go func() {
		_ = command.Wait()
		close(server.ended)
	}()
	if err := server.answers(); err != nil {
		server.Stop()
		return nil, err
	}
	return server, nil
}

// answers waits until the process that was started answers, and not another one.
func (s *Server) answers() error {
	for end := time.Now().Add(slack); time.Now().Before(end) && !s.hasEnded(); time.Sleep(20 * time.Millisecond) {
		process, err := ProcessAt(s.Address)
		if err == nil && process == s.Process.Pid {
			return nil
		}
		if err == nil {
			return fmt.Errorf("process %d answers at %s, and not the server that was started", process, s.Address)
		}
	}
	written, _ := os.ReadFile(filepath.Join(s.directory, "log"))
	return fmt.Errorf("the server did not start at %s: %s", s.Address, written)
}

func (s *Server) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Stop ends the server.
func (s *Server) Stop() {
	_ = s.Process.Kill()
	<-s.ended
	_ = os.RemoveAll(s.directory)
}

// Ask sends a command over a connection of its own, and returns the bytes of the reply.
func (s *Server) Ask(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Address, slack)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // nothing was written that could be lost
	if err := conn.SetDeadline(time.Now().Add(slack)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil { // the server replies, and closes then
		return "", err
	}
	reply, err := io.ReadAll(conn)
	return string(reply), err
}

// Reserve binds a port without listening there, until the tests end. A server that sets SO_REUSEADDR can still listen
// there, and a search for a free port passes it over.
func Reserve() (int, error) {
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

// ProcessAt asks the server at this address which process it is.
func ProcessAt(at string) (int, error) {
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
