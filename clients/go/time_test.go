package redislock

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeServer is a server in the process, which grants all until it is silenced. It notes what it was asked and when.
type fakeServer struct {
	mu     sync.Mutex
	silent bool
	asked  []string
	at     []time.Time
}

func (f *fakeServer) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go f.serve(server)
	return client, nil
}

func (f *fakeServer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	from := bufio.NewReader(conn)
	for {
		request, err := readReply(from, 0)
		if err != nil {
			return
		}
		items, _ := request.([]any)
		words := make([]string, len(items))
		for i, item := range items {
			words[i], _ = item.(string)
		}
		f.mu.Lock()
		f.asked, f.at = append(f.asked, strings.Join(words, " ")), append(f.at, time.Now())
		silent := f.silent
		f.mu.Unlock()
		reply := map[string]string{"LOCK.ACQUIRE": ":7\r\n", "LOCK.RENEW": ":1\r\n", "LOCK.FENCE": ":1\r\n", "LOCK.RELEASE": ":1\r\n"}[words[0]]
		if reply == "" {
			reply = "+OK\r\n"
		}
		if silent {
			continue
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}

// of are the times at which it was asked this, from a moment on, and the leases in milliseconds.
func (f *fakeServer) of(command string, since time.Time) (times []time.Duration, leases []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, asked := range f.asked {
		if strings.HasPrefix(asked, command) {
			times = append(times, f.at[i].Sub(since))
			words := strings.Fields(asked)
			lease, _ := strconv.Atoi(words[4])
			leases = append(leases, lease)
		}
	}
	return times, leases
}

// inBubble runs a test in a bubble, whose clock advances when all goroutines wait.
func inBubble(t *testing.T, test func(t *testing.T, server *fakeServer, locks *Locks)) {
	synctest.Test(t, func(t *testing.T) {
		clock = func() moment { return moment(time.Now().UnixNano()) }
		defer func() { clock = bootTime }()
		server := &fakeServer{}
		locks, err := New(Servers{Addrs: []string{"fake:1"}, Dial: server.dial}, WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close(context.Background())
		test(t, server, locks)
	})
}

func TestAHoldIsRenewedAtAThirdOfItsLeaseLessATenth(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		began := time.Now()
		hold, err := locks.Lock("k").Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if remaining := hold.Remaining(); remaining != 29698*time.Millisecond {
			t.Fatalf("%v remain of 30 s", remaining)
		}
		time.Sleep(time.Minute)
		times, leases := server.of("LOCK.RENEW", began)
		if len(times) < 6 || len(times) > 7 {
			t.Fatalf("renewed at %v", times)
		}
		for i, at := range times {
			if i > 0 {
				at -= times[i-1]
			}
			if at < 9*time.Second-pause || at > 10*time.Second || leases[i] != 30000 {
				t.Fatalf("renewed at %v, with %v", times, leases)
			}
		}
		if err := hold.Check(); err != nil {
			t.Fatal(err)
		}
		if err := hold.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestASilentServerEndsAHoldBeforeItsLeaseWithACause(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		var failures atomic.Int32
		locks.core.hooks.RenewalFailed = func(context.Context, string, error) { failures.Add(1) }
		began := time.Now()
		hold, err := locks.Lock("k").Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		server.mu.Lock()
		server.silent = true
		server.mu.Unlock()
		<-hold.Context().Done()
		if after := time.Since(began); after < 29*time.Second || after >= 30*time.Second {
			t.Fatalf("it ended after %v", after)
		}
		var lost *LostError
		if !errors.As(context.Cause(hold.Context()), &lost) || lost.Reason != ReasonDeadline || !errors.Is(lost.Cause, ErrConnectionFailed) {
			t.Fatalf("it ended by %v", context.Cause(hold.Context()))
		}
		if !strings.Contains(lost.Cause.Error(), "fake:1: no reply") || failures.Load() < 3 {
			t.Fatalf("%d failures, the last one %v", failures.Load(), lost.Cause)
		}
		if err := hold.Release(context.Background()); !errors.Is(err, ErrLockLost) {
			t.Fatalf("the release says %v", err)
		}
	})
}

func TestAWaitWithoutAnEndEndsWhenNoServerAnswersFor10Seconds(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		server.mu.Lock()
		server.silent = true
		server.mu.Unlock()
		began := time.Now()
		_, err := locks.Lock("k").Acquire(context.Background())
		if after := time.Since(began); !errors.Is(err, ErrConnectionFailed) || after < 9*time.Second || after > 12*time.Second {
			t.Fatalf("it ended after %v in %v", after, err)
		}
		began = time.Now()
		_, _, err = locks.Lock("k").TryAcquire(context.Background())
		if after := time.Since(began); !errors.Is(err, ErrConnectionFailed) || after > 2*time.Second {
			t.Fatalf("it ended after %v in %v", after, err)
		}
	})
}

func TestAServerThatIsSilentIsNoOtherHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		hold, err := locks.Lock("k").Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		server.mu.Lock()
		server.silent = true
		server.mu.Unlock()
		time.Sleep(time.Second)
		for _, wait := range []time.Duration{200 * time.Millisecond, time.Second} {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			_, err = locks.Lock("k").Acquire(ctx)
			cancel()
			if !errors.Is(err, ErrConnectionFailed) || errors.Is(err, ErrLockTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v: %v", wait, err)
			}
		}
	})
}

func TestAHoldThatIsNotRenewedEndsBeforeItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		began := time.Now()
		hold, err := locks.Lock("k", NoRenewal()).Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		<-hold.Context().Done()
		if after := time.Since(began); after < 29698*time.Millisecond || after >= 30*time.Second {
			t.Fatalf("it ended after %v", after)
		}
		var lost *LostError
		if !errors.As(context.Cause(hold.Context()), &lost) || lost.Reason != ReasonDeadline {
			t.Fatalf("it ended by %v", context.Cause(hold.Context()))
		}
		if times, _ := server.of("LOCK.RENEW", began); len(times) != 0 {
			t.Fatalf("renewed at %v", times)
		}
		if times, _ := server.of("LOCK.RELEASE", began); len(times) != 0 {
			t.Fatalf("the library gave it up at %v", times)
		}
		_ = hold.Release(context.Background())
	})
}

func TestMaxHoldCutsTheLastLease(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		began := time.Now()
		hold, err := locks.Lock("k", MaxHold(45*time.Second)).Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Extend(context.Background(), 46*time.Second); !errors.Is(err, ErrInvalid) {
			t.Fatalf("extended beyond MaxHold: %v", err)
		}
		<-hold.Context().Done()
		if after := time.Since(began); after < 44*time.Second || after > 45*time.Second {
			t.Fatalf("it ended after %v", after)
		}
		if hold.Reason() != ReasonMaxHold {
			t.Fatalf("it ended by %s", hold.Reason())
		}
		times, leases := server.of("LOCK.RENEW", began)
		for i, at := range times {
			if end := at + time.Duration(leases[i])*time.Millisecond; end > 45*time.Second {
				t.Fatalf("renewed at %v with %v", times, leases)
			}
		}
		_ = hold.Release(context.Background())
	})
}

func TestAStoppedClockOfTimersIsNoticedByCheck(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		hold, err := locks.Lock("k", NoRenewal()).Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		// The machine sleeps: its clock advances, but no timer fires.
		clock = func() moment { return moment(time.Now().Add(time.Minute).UnixNano()) }
		if err := hold.Check(); !errors.Is(err, ErrLockLost) || hold.Context().Err() == nil {
			t.Fatalf("check says %v", err)
		}
		_ = hold.Release(context.Background())
	})
}

func TestExtendCountsOnTheShorterLeaseUntilItIsAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		hold, err := locks.Lock("k").Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Extend(context.Background(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if remaining := hold.Remaining(); remaining != 59398*time.Millisecond {
			t.Fatalf("%v remain of a minute", remaining)
		}
		hold.held.mayCountFrom(now(), time.Second)
		if remaining := hold.Remaining(); remaining != 988*time.Millisecond {
			t.Fatalf("%v remain of a second that was asked for", remaining)
		}
		hold.held.mayComeLate(time.Second)
		hold.held.countFrom(now(), time.Minute)
		if remaining := hold.Remaining(); remaining != 988*time.Millisecond {
			t.Fatalf("%v remain, though a renewal for a second may come late", remaining)
		}
		if err := hold.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMinHoldIsKeptByTheServer(t *testing.T) {
	inBubble(t, func(t *testing.T, server *fakeServer, locks *Locks) {
		began := time.Now()
		lock := locks.Lock("k", Lease(9*time.Second), MinHold(time.Minute))
		hold, err := lock.Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, leases := server.of("LOCK.ACQUIRE", began); leases[0] != 60000 {
			t.Fatalf("the first lease is %v", leases)
		}
		time.Sleep(40 * time.Second)
		if err := hold.Extend(context.Background(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := hold.Release(context.Background()); err != nil || hold.Check() != ErrReleased {
			t.Fatalf("the release says %v, and check %v", err, hold.Check())
		}
		times, leases := server.of("LOCK.RENEW", began)
		for i, at := range times {
			if end := at + time.Duration(leases[i])*time.Millisecond; end < time.Minute {
				t.Fatalf("asked at %v for %v", times, leases)
			}
		}
		if last := len(leases) - 1; times[last] != 45*time.Second || leases[last] != 15000 {
			t.Fatalf("the last lease is %d, asked for at %v", leases[last], times[last])
		}
		if times, _ := server.of("LOCK.RELEASE", began); len(times) != 0 {
			t.Fatalf("released at %v", times)
		}
		began = time.Now()
		if hold, err = lock.Acquire(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(70 * time.Second)
		if err := hold.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		if times, leases := server.of("LOCK.RENEW", began); leases[len(leases)-1] != 9000 {
			t.Fatalf("after it: %v, %v", times, leases)
		}
		if times, _ := server.of("LOCK.RELEASE", began); len(times) != 1 {
			t.Fatalf("released at %v", times)
		}
	})
}
