package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"redislock.example/go"
)

var background = context.Background()

// admin sends one command over a connection of its own, and returns the first line of the reply.
func admin(t *testing.T, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 1<<16)
	if err := conn.SetReadDeadline(time.Now().Add(slack)); err != nil {
		t.Fatal(err)
	}
	size, err := conn.Read(reply)
	if err != nil {
		t.Fatal(err)
	}
	return string(reply[:size])
}

func TestALossIsToldOnceWithItsReason(t *testing.T) {
	var losses atomic.Int64
	log := &journal{}
	locks := open(t, redislock.WithLogger(slog.New(slog.NewTextHandler(log, nil))), redislock.WithHooks(redislock.Hooks{
		Lost: func(context.Context, string, time.Duration, *redislock.LostError) { losses.Add(1) },
	}))
	hold := acquire(t, locks.Lock("loss"))
	time.Sleep(100 * time.Millisecond) // it asks to be told of the end
	admin(t, "DEL loss")
	select {
	case <-hold.Context().Done():
	case <-time.After(slack):
		t.Fatal("the context goes on")
	}
	var lost *redislock.LostError
	if cause := context.Cause(hold.Context()); !errors.As(cause, &lost) || lost.Reason != redislock.ReasonPush {
		t.Fatalf("the cause is %v", cause)
	}
	if err := hold.Check(); !errors.Is(err, redislock.ErrLockLost) || hold.Reason() != redislock.ReasonPush {
		t.Fatalf("check says %v, %s", err, hold.Reason())
	}
	if hold.Remaining() != 0 {
		t.Fatalf("%v remain", hold.Remaining())
	}
	// The local state ends first, then the error is reported: nothing of the hold is left, and the loss is reported
	// once.
	if err := hold.Release(background); !errors.Is(err, redislock.ErrLockLost) {
		t.Fatalf("the release says %v", err)
	}
	eventually(t, "it is told", func() bool { return losses.Load() > 0 && log.count("lost a lock") > 0 })
	time.Sleep(50 * time.Millisecond)
	if losses.Load() != 1 || log.count("lost a lock") != 1 {
		t.Fatalf("told %d times, logged %d times", losses.Load(), log.count("lost a lock"))
	}
	if err := acquire(t, locks.Lock("loss")).Release(background); err != nil {
		t.Fatal(err)
	}
}

func TestAReleaseOfALockThatWasLostSaysSo(t *testing.T) {
	locks := open(t)
	hold := acquire(t, locks.Lock("expired"))
	admin(t, "DEL expired")
	if err := hold.Release(background); !errors.Is(err, redislock.ErrLockLost) {
		t.Fatalf("the release says %v", err)
	}
	if hold.Context().Err() == nil {
		t.Fatal("the context goes on")
	}
}

func TestAHoldIsReleasedByAnyGoroutineAndEachAcquireHasItsOwnOwner(t *testing.T) {
	locks := open(t)
	lock := locks.Lock("any") // one object for two tasks
	one := acquire(t, lock)
	if two, isHeld, err := lock.TryAcquire(background); isHeld || err != nil || two != nil {
		t.Fatalf("both hold it: %v, %v", two, err)
	}
	released := make(chan error)
	go func() { released <- one.Release(background) }()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	two := acquire(t, lock)
	if one.Owner() == two.Owner() || two.Token() <= one.Token() {
		t.Fatalf("%s %d, %s %d", one.Owner(), one.Token(), two.Owner(), two.Token())
	}
	if err := one.Release(background); err != nil { // again: it does nothing
		t.Fatal(err)
	}
	if err := locks.CheckToken(background, "any", two.Token()); err != nil {
		t.Fatal(err)
	}
	if err := two.Release(background); err != nil {
		t.Fatal(err)
	}
}

func TestAnAcquireThatIsCancelledAtAnyPointHoldsNothing(t *testing.T) {
	locks := open(t)
	var cancelled atomic.Int64
	for range 1000 {
		ctx, cancel := context.WithCancel(background)
		done := make(chan struct{})
		go func() {
			defer close(done)
			hold, err := locks.Lock("cancelled").Acquire(ctx)
			if err == nil {
				err = hold.Release(ctx)
			}
			if errors.Is(err, context.Canceled) {
				cancelled.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		}()
		for began, most := time.Now(), time.Duration(rand.Int64N(int64(300*time.Microsecond))); time.Since(began) < most; {
			runtime.Gosched() // a sleep would be longer
		}
		cancel()
		<-done
	}
	if cancelled.Load() < 50 {
		t.Fatalf("only %d of 1000 were cancelled while they acquired", cancelled.Load())
	}
	eventually(t, "it is free", func() bool { return isFree(locks, "cancelled") })
}

func TestCancelledWaitersLeaveTheConnectionAlive(t *testing.T) {
	var connections atomic.Int64
	dial := func(ctx context.Context, network, at string) (net.Conn, error) {
		connections.Add(1)
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, at)
	}
	locks, err := redislock.New(redislock.Servers{Addrs: []string{address}, Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(background)
	hold := acquire(t, locks.Lock("alive", redislock.Lease(time.Second)))
	ctx, cancel := context.WithCancel(background)
	var waiters sync.WaitGroup
	for range 100 {
		waiters.Go(func() {
			if _, err := locks.Lock("alive").Acquire(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended in %v", err)
			}
		})
	}
	waiting(t, locks, "alive", 16)
	cancel()
	waiters.Wait()
	waiting(t, locks, "alive", 0)
	time.Sleep(2 * time.Second) // two leases
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	if connections.Load() != 1 {
		t.Fatalf("%d connections were made", connections.Load())
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

func TestAReleaseWorksThoughItsContextIsCancelled(t *testing.T) {
	locks := open(t)
	hold := acquire(t, locks.Lock("cancelled-release"))
	ctx, cancel := context.WithCancel(background)
	cancel()
	if err := hold.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if !isFree(locks, "cancelled-release") {
		t.Fatal("it is held")
	}
	if cause := context.Cause(hold.Context()); !errors.Is(cause, redislock.ErrReleased) {
		t.Fatalf("the cause is %v", cause)
	}
}

func TestAnAcquireWithACancelledContextSendsNothing(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		t.Error("it connects")
		return nil, errors.New("no")
	}
	locks, err := redislock.New(redislock.Servers{Addrs: []string{address}, Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(background)
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := locks.Lock("nothing").Acquire(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended in %v", err)
	}
	if _, _, err := locks.Lock("nothing").TryAcquire(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended in %v", err)
	}
}

func TestTheErrorOfACancelledWaitIsThatOfTheContextAndItsCause(t *testing.T) {
	locks, own := open(t), errors.New("the program's own")
	hold := acquire(t, locks.Lock("cause"))
	ctx, cancel := context.WithCancelCause(background)
	ended := make(chan error, 1)
	go func() {
		_, err := locks.Lock("cause").Acquire(ctx)
		ended <- err
	}()
	waiting(t, locks, "cause", 1)
	cancel(own)
	if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, own) {
		t.Fatalf("it ended in %v", err)
	}
	if err := locks.Leader("cause").Run(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, own) {
		t.Fatalf("the candidacy ended in %v", err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

func TestNoServerIsNoOtherHolder(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	_ = listener.Close()
	locks := openAt(t, nobody)
	hold, isHeld, err := locks.Lock("nobody").TryAcquire(background)
	if hold != nil || isHeld || !errors.Is(err, redislock.ErrConnectionFailed) || !strings.Contains(err.Error(), nobody) {
		t.Fatalf("%v, %v, %v", hold, isHeld, err)
	}
	sentinels, err := redislock.New(redislock.Servers{Addrs: []string{nobody}, Primary: "main"})
	if err != nil {
		t.Fatal(err)
	}
	defer sentinels.Close(background)
	if _, err = sentinels.Ping(background); !errors.Is(err, redislock.ErrConnectionFailed) || !strings.Contains(err.Error(), "in time: "+nobody) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
	defer cancel()
	if _, err = locks.Lock("nobody").Acquire(ctx); !errors.Is(err, redislock.ErrConnectionFailed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it ended in %v", err)
	}
}

func TestADeadlineIsALockTimeout(t *testing.T) {
	locks := open(t)
	hold := acquire(t, locks.Lock("timeout"))
	ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, err := locks.Lock("timeout").Acquire(ctx)
	if !errors.Is(err, redislock.ErrLockTimeout) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "timeout") {
		t.Fatalf("it ended in %v", err)
	}
	_, err = locks.Lock("timeout", redislock.Wait(50*time.Millisecond)).Acquire(background)
	if !errors.Is(err, redislock.ErrLockTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it ended in %v", err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	if !isFree(locks, "timeout") {
		t.Fatal("a position in the queue is left")
	}
}

func TestAForgottenHoldIsNotRenewed(t *testing.T) {
	log := &journal{}
	locks := open(t, redislock.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	func() { acquire(t, locks.Lock("forgotten", redislock.Lease(time.Second))) }()
	eventually(t, "its lease runs out", func() bool {
		runtime.GC()
		return isFree(locks, "forgotten")
	})
	if log.count("level=WARN", "dropped without a release", "forgotten") != 1 {
		t.Fatalf("it logs %q", log.lines)
	}
	// A watcher of the loss, or work under the hold, keeps a hold alive.
	ctx, cancel := func() (context.Context, context.CancelFunc) {
		return context.WithCancel(acquire(t, locks.Lock("kept", redislock.Lease(300*time.Millisecond))).Context())
	}()
	defer cancel()
	for range 20 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond)
	}
	if err := ctx.Err(); err != nil || log.count("dropped without a release", "kept") != 0 {
		t.Fatalf("a hold is forgotten whose context is in use: %v", context.Cause(ctx))
	}
	admin(t, "DEL kept")
	<-ctx.Done()
}

func TestCloseReleasesThoughItsContextHasEnded(t *testing.T) {
	other := open(t)
	ctx, cancel := context.WithCancel(background)
	cancel()
	for range 10 {
		locks := open(t)
		hold := acquire(t, locks.Lock("close-late"))
		locks.Close(ctx)
		if !isFree(other, "close-late") {
			t.Fatal("the hold is not released")
		}
		if hold.Reason() != redislock.ReasonClose {
			t.Fatalf("the reason is %s", hold.Reason())
		}
	}
}

func TestCloseWaitsForAReleaseInFlight(t *testing.T) {
	other := open(t)
	for range 200 {
		locks := open(t)
		hold := acquire(t, locks.Lock("close-release"))
		released := make(chan error, 1)
		go func() { released <- hold.Release(background) }()
		<-hold.Context().Done() // it has begun
		locks.Close(background)
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if !isFree(other, "close-release") {
			t.Fatal("it is held")
		}
	}
}

func TestCloseReleasesAndWaitsForBodies(t *testing.T) {
	locks, other := open(t), open(t)
	hold := acquire(t, locks.Lock("close-hold"))
	running, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- locks.Lock("close-body").Run(background, func(ctx context.Context, _ *redislock.Hold) error {
			close(running)
			<-ctx.Done() // it is told
			<-finish
			return nil
		})
	}()
	<-running
	waiter := make(chan error, 1)
	go func() {
		_, err := locks.Lock("close-hold").Acquire(background)
		waiter <- err
	}()
	waiting(t, other, "close-hold", 1)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		locks.Close(background)
	}()
	if err := <-waiter; !errors.Is(err, redislock.ErrClosed) {
		t.Fatalf("a waiter ended in %v", err)
	}
	<-hold.Context().Done()
	if hold.Reason() != redislock.ReasonClose {
		t.Fatalf("the reason is %s", hold.Reason())
	}
	eventually(t, "the hold is released", func() bool { return isFree(other, "close-hold") })
	if isFree(other, "close-body") {
		t.Fatal("a lock is given away under which a body works")
	}
	close(finish)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	<-closed
	if !isFree(other, "close-body") {
		t.Fatal("what has ended is not released")
	}
	locks.Close(background)
	if _, err := locks.Lock("close-hold").Acquire(background); !errors.Is(err, redislock.ErrClosed) {
		t.Fatalf("it ended in %v", err)
	}
}

func TestCloseIsBoundedAndKeepsTheLeaseOfABodyThatWorksOn(t *testing.T) {
	log := &journal{}
	locks, other := open(t, redislock.WithLogger(slog.New(slog.NewTextHandler(log, nil)))), open(t)
	running, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- locks.Lock("works-on").Run(background, func(context.Context, *redislock.Hold) error {
			close(running)
			<-finish
			return nil
		})
	}()
	<-running
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	locks.Close(ctx)
	if took := time.Since(began); took > slack {
		t.Fatalf("it took %v", took)
	}
	if isFree(other, "works-on") {
		t.Fatal("a lock is given away under which a body works")
	}
	if log.count("level=WARN", "still works", "works-on") != 1 {
		t.Fatalf("it logs %q", log.lines)
	}
	close(finish)
	if err := <-ended; !errors.Is(err, redislock.ErrLockLost) {
		t.Fatalf("it ended in %v", err)
	}
	admin(t, "DEL works-on")
}

func TestAStaleReleaseEndsNoNewerHold(t *testing.T) {
	locks := open(t)
	owner := redislock.Owner("one-task")
	stale := acquire(t, locks.Lock("stale", owner))
	admin(t, "DEL stale")
	newer := acquire(t, locks.Lock("stale", owner))
	if err := stale.Release(background); !errors.Is(err, redislock.ErrLockLost) {
		t.Fatalf("the release says %v", err)
	}
	time.Sleep(200 * time.Millisecond) // for background work
	if err := locks.CheckToken(background, "stale", newer.Token()); err != nil {
		t.Fatal(err)
	}
	if err := newer.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := locks.CheckToken(background, "stale", newer.Token()); !errors.Is(err, redislock.ErrFenced) {
		t.Fatalf("the token of a released hold: %v", err)
	}
}

func TestRenewalsEndWithTheHold(t *testing.T) {
	locks := open(t)
	hold := acquire(t, locks.Lock("renewed", redislock.Lease(300*time.Millisecond)))
	calls := func() string {
		_, rest, _ := strings.Cut(admin(t, "INFO commandstats"), "cmdstat_lock.renew:")
		count, _, _ := strings.Cut(rest, ",")
		return count
	}
	time.Sleep(time.Second)
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	before := calls()
	time.Sleep(500 * time.Millisecond)
	if after := calls(); before == "" || after != before {
		t.Fatalf("renewals after the release: %s, then %s", before, after)
	}
}

func TestATaskThatAcquiresTwiceIsRefused(t *testing.T) {
	locks := open(t)
	err := locks.Lock("twice").Run(background, func(ctx context.Context, _ *redislock.Hold) error {
		_, err := locks.Read("twice").Acquire(ctx)
		if !errors.Is(err, redislock.ErrAlreadyHeld) || !errors.Is(err, redislock.ErrDeadlock) {
			t.Errorf("it ended in %v", err)
		}
		if _, isHeld, err := locks.Lock("twice").TryAcquire(background); isHeld || err != nil {
			t.Errorf("another context is no proof: %v", err)
		}
		hold, err := locks.Lock("another").Acquire(ctx)
		if err != nil {
			return err
		}
		if _, err := locks.Lock("twice").Acquire(hold.Context()); !errors.Is(err, redislock.ErrAlreadyHeld) {
			t.Errorf("it ended in %v", err)
		}
		return hold.Release(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	// Of a semaphore a task may hold several permits, and not more than there are.
	one := acquire(t, locks.Semaphore("permits", 2))
	two, err := locks.Semaphore("permits", 2).Acquire(one.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Semaphore("permits", 2).Acquire(two.Context()); !errors.Is(err, redislock.ErrAlreadyHeld) {
		t.Fatalf("it ended in %v", err)
	}
	_, _ = one.Release(background), two.Release(background)
}

func TestARunReleasesHoweverItEnds(t *testing.T) {
	locks, own := open(t), errors.New("the body's own")
	lock := locks.Lock("run")
	if err := lock.Run(background, func(context.Context, *redislock.Hold) error { return own }); !errors.Is(err, own) {
		t.Fatalf("it ended in %v", err)
	}
	func() {
		defer func() {
			if recover() != "thrown" {
				t.Error("the panic is gone")
			}
		}()
		_ = lock.Run(background, func(context.Context, *redislock.Hold) error { panic("thrown") })
	}()
	if !isFree(locks, "run") {
		t.Fatal("it is held")
	}
	ctx, cancel := context.WithCancel(background)
	err := lock.Run(ctx, func(body context.Context, _ *redislock.Hold) error {
		cancel()
		<-body.Done()
		return body.Err()
	})
	if !errors.Is(err, context.Canceled) || !isFree(locks, "run") {
		t.Fatalf("it ended in %v", err)
	}
	err = lock.Run(background, func(body context.Context, _ *redislock.Hold) error {
		time.Sleep(100 * time.Millisecond)
		admin(t, "DEL run")
		<-body.Done()
		return own
	})
	if !errors.Is(err, redislock.ErrLockLost) || !errors.Is(err, own) {
		t.Fatalf("it ended in %v", err)
	}
}

func TestALeaderThatLosesItsLockLeadsNoMore(t *testing.T) {
	locks := open(t)
	leader := locks.Leader("leader")
	elected, deposed := make(chan uint64, 10), make(chan *redislock.LostError, 10)
	leader.OnElected = func(ctx context.Context, hold *redislock.Hold) error {
		elected <- hold.Token()
		<-ctx.Done()
		return ctx.Err()
	}
	leader.OnDeposed = func(lost *redislock.LostError) {
		if leader.IsLeading() {
			t.Error("it leads though it is deposed")
		}
		deposed <- lost
	}
	ctx, resign := context.WithCancel(background)
	ended := make(chan error, 1)
	go func() { ended <- leader.Run(ctx) }()
	first := <-elected
	if !leader.IsLeading() || leader.Hold().Token() != first {
		t.Fatal("it does not lead")
	}
	time.Sleep(100 * time.Millisecond)
	admin(t, "DEL leader")
	if lost := <-deposed; lost.Token != first {
		t.Fatalf("deposed by %v", lost)
	}
	if second := <-elected; second <= first {
		t.Fatalf("elected again with %d after %d", second, first)
	}
	resign()
	if err := <-ended; !errors.Is(err, context.Canceled) || leader.IsLeading() || !isFree(locks, "leader") {
		t.Fatalf("it ended in %v", err)
	}
	failing, own := locks.Leader("leader"), errors.New("the work's own")
	failing.OnElected = func(context.Context, *redislock.Hold) error { return own }
	if err := failing.Run(background); !errors.Is(err, own) || !isFree(locks, "leader") {
		t.Fatalf("it ended in %v", err)
	}
}

func TestALeaderThatResignsKeepsTheLockUntilItsWorkHasEnded(t *testing.T) {
	locks := open(t)
	leader := locks.Leader("resigns")
	elected, mayEnd := make(chan struct{}), make(chan struct{})
	leader.OnElected = func(_ context.Context, hold *redislock.Hold) error {
		close(elected)
		for hold.Check() == nil {
			time.Sleep(time.Millisecond)
		}
		<-mayEnd // it finishes what it has begun
		return hold.Check()
	}
	ctx, resign := context.WithCancel(background)
	ended := make(chan error, 1)
	go func() { ended <- leader.Run(ctx) }()
	<-elected
	resign()
	time.Sleep(100 * time.Millisecond)
	if isFree(locks, "resigns") {
		t.Error("another may lead while the work goes on")
	}
	close(mayEnd)
	if err := <-ended; !errors.Is(err, context.Canceled) || !isFree(locks, "resigns") {
		t.Fatalf("it ended in %v", err)
	}
}

func TestACloseWaitsForTheWorkOfALeaderAndThenReleasesItsLock(t *testing.T) {
	locks, others := open(t), open(t)
	leader := locks.Leader("closes")
	elected, mayEnd := make(chan struct{}), make(chan struct{})
	leader.OnElected = func(ctx context.Context, _ *redislock.Hold) error {
		close(elected)
		<-ctx.Done()
		<-mayEnd // it finishes what it has begun
		return context.Cause(ctx)
	}
	ended, closed := make(chan error, 1), make(chan struct{})
	go func() { ended <- leader.Run(background) }()
	<-elected
	go func() {
		locks.Close(background)
		close(closed)
	}()
	time.Sleep(100 * time.Millisecond)
	if isFree(others, "closes") {
		t.Error("another may lead while the work goes on")
	}
	close(mayEnd)
	<-closed
	if err := <-ended; !errors.Is(err, redislock.ErrClosed) || !isFree(others, "closes") {
		t.Fatalf("it ended in %v", err)
	}
}

// The work of a leader reports the loss by the error that it finds in its context, or by that of Check.
func TestALeaderWhoseWorkReturnsTheLossStandsAgain(t *testing.T) {
	for name, until := range map[string]func(context.Context, *redislock.Hold) error{
		"cause": func(ctx context.Context, _ *redislock.Hold) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
		"check": func(_ context.Context, hold *redislock.Hold) error {
			for {
				if err := hold.Check(); err != nil {
					return fmt.Errorf("no leader: %w", err)
				}
				time.Sleep(time.Microsecond)
			}
		},
	} {
		locks := open(t)
		leader := locks.Leader("leader-" + name)
		elected, deposed := make(chan uint64, 10), make(chan *redislock.LostError, 10)
		leader.OnElected = func(ctx context.Context, hold *redislock.Hold) error {
			elected <- hold.Token()
			return until(ctx, hold)
		}
		leader.OnDeposed = func(lost *redislock.LostError) { deposed <- lost }
		ctx, resign := context.WithCancel(background)
		ended := make(chan error, 1)
		go func() { ended <- leader.Run(ctx) }()
		for range 3 {
			select {
			case token := <-elected:
				time.Sleep(20 * time.Millisecond) // it is tracked
				admin(t, "DEL leader-"+name)
				if lost := <-deposed; lost.Token != token {
					t.Fatalf("%s: deposed by %v", name, lost)
				}
			case err := <-ended:
				t.Fatalf("%s: the candidacy ended in %v", name, err)
			}
		}
		resign()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: it ended in %v", name, err)
		}
	}
}

func TestIdleWaitersUseNoProcessor(t *testing.T) {
	locks := open(t)
	hold := acquire(t, locks.Lock("idle"))
	ctx, cancel := context.WithCancel(background)
	var waiters sync.WaitGroup
	for range 1000 {
		waiters.Go(func() { _, _ = locks.Lock("idle").Acquire(ctx) })
	}
	waiting(t, locks, "idle", 16)
	time.Sleep(1500 * time.Millisecond) // each has begun to log its wait
	used := processor()
	time.Sleep(2 * time.Second)
	if used = processor() - used; used > 200*time.Millisecond {
		t.Errorf("they used %v in 2 s", used)
	}
	cancel()
	waiters.Wait()
	_ = hold.Release(background)
}

func processor() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
