package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"redislock.example/go"
	"redislock.example/go/internal/testserver"
)

// hello is the reply to HELLO of a server of this role, which has the module.
func hello(role string) string {
	return "%2\r\n+role\r\n+" + role + "\r\n+modules\r\n*1\r\n%2\r\n+name\r\n+redislock\r\n+ver\r\n:300\r\n"
}

// played are servers that reply to the first word of each command what the test says, and OK where it says nothing.
func played(servers redislock.Servers, reply func(address, command string) string) redislock.Servers {
	servers.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close() //nolint:errcheck // the other side has ended it
			for from := bufio.NewReader(theirs); ; {
				var count, length int
				if _, err := fmt.Fscanf(from, "*%d\r\n", &count); err != nil {
					return
				}
				words := make([]string, count)
				for i := range words {
					if _, err := fmt.Fscanf(from, "$%d\r\n", &length); err != nil {
						return
					}
					word := make([]byte, length+2)
					if _, err := io.ReadFull(from, word); err != nil {
						return
					}
					words[i] = string(word[:length])
				}
				answer := reply(address, words[0])
				if answer == "" {
					answer = "+OK\r\n"
				}
				if _, err := io.WriteString(theirs, answer); err != nil {
					return
				}
			}
		}()
		return ours, nil
	}
	return servers
}

func TestPingSaysWhetherLocksCanBeAskedForHere(t *testing.T) {
	for fence, kind := range map[string]error{
		":0":                                 nil,
		"-MOVED 77 10.0.0.1:6379":            nil, // this node has other slots
		"-LOADING Redis is loading":          redislock.ErrConnectionFailed,
		"-CLUSTERDOWN Hash slot not served":  redislock.ErrConnectionFailed,
		"-NOPERM no permissions to access":   redislock.ErrServerRefused,
		"-ERR unknown command 'LOCK.FENCE'.": redislock.ErrModuleMissing,
	} {
		t.Run(fence, func(t *testing.T) {
			t.Parallel()
			locks, err := redislock.New(played(redislock.Servers{Addrs: []string{"one:1"}}, func(_, command string) string {
				return map[string]string{"HELLO": hello("master"), "LOCK.FENCE": fence + "\r\n"}[command]
			}))
			if err != nil {
				t.Fatal(err)
			}
			version, err := locks.Ping(background)
			locks.Close(background)
			if kind == nil && (err != nil || version != "0.3.0") || kind != nil && !errors.Is(err, kind) {
				t.Errorf("%q, %v", version, err)
			}
			if kind != nil && err != nil && !strings.Contains(err.Error(), strings.Split(fence[1:], "'")[0]) {
				t.Error(err)
			}
		})
	}
}

func TestPingOfAReplicaFails(t *testing.T) {
	port, err := testserver.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	replica, err := testserver.Start("--replicaof", fmt.Sprintf("127.0.0.1 %d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Stop()
	_, err = openAt(t, replica.Address).Ping(background)
	if !errors.Is(err, redislock.ErrConnectionFailed) || !strings.Contains(err.Error(), "READONLY") || !strings.Contains(err.Error(), "is a replica") {
		t.Fatal(err)
	}
}

func TestPingFindsThePrimaryAsAnAcquireDoes(t *testing.T) {
	var asked atomic.Int64
	locks, err := redislock.New(played(redislock.Servers{Addrs: []string{"sentinel:1"}, Primary: "main"}, func(address, command string) string {
		switch {
		case command == "SENTINEL" && asked.Add(1) == 1:
			return "*2\r\n+old\r\n+1\r\n"
		case command == "SENTINEL":
			return "*2\r\n+new\r\n+1\r\n"
		case command == "HELLO":
			return hello(map[string]string{"old:1": "replica"}[address] + map[string]string{"new:1": "master"}[address])
		case command == "LOCK.FENCE":
			return ":0\r\n"
		}
		return ""
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(background)
	if version, err := locks.Ping(background); err != nil || version != "0.3.0" || asked.Load() != 2 {
		t.Fatalf("%q, %v, the sentinel was asked %d times", version, err, asked.Load())
	}
}

func TestPingNeedsTheRightToAskForLocks(t *testing.T) {
	for rules, wrong := range map[string]string{
		"~lock:* +lock.acquire": "ping asks LOCK.FENCE lock:redislock:ping",
		"~other:* +lock.fence":  "ping asks LOCK.FENCE lock:redislock:ping",
		"~lock:* +lock.fence":   "",
	} {
		admin(t, "ACL SETUSER pinger reset on >secret "+rules)
		locks := openAt(t, "pinger:secret@"+address, redislock.WithPrefix("lock:"))
		version, err := locks.Ping(background)
		if wrong == "" && (err != nil || version != "0.3.0") {
			t.Errorf("%s: %q, %v", rules, version, err)
		}
		if wrong != "" && (!errors.Is(err, redislock.ErrServerRefused) || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v", rules, err)
		}
	}
	admin(t, "ACL DELUSER pinger")
}
