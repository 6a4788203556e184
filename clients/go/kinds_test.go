package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redislock.example/go"
)

func TestReadersAndPermitsAreHeldTogether(t *testing.T) {
	locks := open(t)
	one, two := acquire(t, locks.Read("book")), acquire(t, locks.Read("book"))
	if _, isHeld, err := locks.Write("book").TryAcquire(background); isHeld || err != nil {
		t.Fatalf("a writer beside readers: %v", err)
	}
	info, err := locks.Info(background, "book")
	if err != nil || info.Kind != "shared" || info.Holds != 2 || info.Holders[0].Owner != one.Owner() || info.Holders[1].Token != two.Token() {
		t.Fatalf("%+v, %v", info, err)
	}
	if _, _, err = locks.Semaphore("book", 2).TryAcquire(background); !errors.Is(err, redislock.ErrLockKindMismatch) {
		t.Fatalf("another kind: %v", err)
	}
	permits := []*redislock.Hold{acquire(t, locks.Semaphore("pool", 2)), acquire(t, locks.Semaphore("pool", 2))}
	if _, isHeld, err := locks.Semaphore("pool", 2).TryAcquire(background); isHeld || err != nil {
		t.Fatalf("a third of two permits: %v", err)
	}
	for _, hold := range append(permits, one, two) {
		if err := hold.Release(background); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyAreTakenTogetherUnderAPrefix(t *testing.T) {
	locks, plain := open(t, redislock.WithPrefix("app:"), redislock.WithLabel("worker-7")), open(t)
	hold := acquire(t, locks.Many([]string{"left", "right"}))
	if hold.Name() != "left, right" || !strings.HasPrefix(hold.Owner(), "worker-7:") {
		t.Fatalf("%s, %s", hold.Name(), hold.Owner())
	}
	for _, name := range []string{"app:left", "app:right"} {
		if err := plain.CheckToken(background, name, hold.Token()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(background, slack)
	defer cancel()
	next := make(chan error, 1)
	go func() {
		other, err := locks.Many([]string{"right", "middle"}).Acquire(ctx)
		if err == nil {
			err = other.Release(ctx)
		}
		next <- err
	}()
	waiting(t, plain, "app:right", 1)
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	reader := acquire(t, locks.ReadMany([]string{"left", "right"}))
	if again, isHeld, err := locks.Read("left").TryAcquire(background); !isHeld || err != nil || again.Release(background) != nil {
		t.Fatalf("a reader beside readers: %v", err)
	}
	if err := reader.Release(background); err != nil {
		t.Fatal(err)
	}
	if version, err := plain.Ping(background); err != nil || strings.Count(version, ".") != 2 {
		t.Fatalf("%q: %v", version, err)
	}
}

func TestAnExtendThatTheServerRefusesLeavesTheLease(t *testing.T) {
	locks := open(t)
	hold := acquire(t, locks.Lock("refused", redislock.Lease(500*time.Millisecond)))
	if err := hold.Extend(background, 48*time.Hour); !errors.Is(err, redislock.ErrInvalid) {
		t.Fatalf("extended for two days: %v", err)
	}
	time.Sleep(time.Second) // two leases
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

func TestALockStaysTakenForMinHold(t *testing.T) {
	locks, closing := open(t), open(t)
	least := redislock.MinHold(1500 * time.Millisecond)
	began := time.Now()
	hold := acquire(t, locks.Lock("parked", redislock.Lease(time.Second), least))
	if err := hold.Release(background); err != nil || hold.Reason() != "" {
		t.Fatalf("the release says %v, %s", err, hold.Reason())
	}
	parked := acquire(t, closing.Many([]string{"parked-1", "parked-2"}, least))
	closing.Close(background)
	if parked.Reason() != redislock.ReasonClose {
		t.Fatalf("the reason is %s", parked.Reason())
	}
	names := []string{"parked", "parked-1", "parked-2"}
	for _, name := range names {
		if info, err := locks.Info(background, name); err != nil || info == nil && time.Since(began) < time.Second {
			t.Fatalf("%s is free after %v: %v", name, time.Since(began), err)
		}
	}
	for _, name := range names {
		eventually(t, name+" is free", func() bool { return isFree(locks, name) })
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Fatalf("free after %v", took)
	}
	// A waiter has it as long, too, and from its grant.
	sent := &journal{}
	recorded, err := redislock.New(redislock.Servers{Addrs: []string{address}, Dial: func(ctx context.Context, network, at string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
		return &recordedConn{conn, sent}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer recorded.Close(background)
	hold = acquire(t, locks.Lock("parked"))
	next := make(chan *redislock.Hold)
	go func() {
		hold, _ := recorded.Lock("parked", redislock.MinHold(time.Minute)).Acquire(background)
		next <- hold
	}()
	waiting(t, locks, "parked", 1)
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := (<-next).Release(background); err != nil {
		t.Fatal(err)
	}
	if info, err := locks.Info(background, "parked"); err != nil || info == nil || info.Holders[0].Left < 30*time.Second {
		t.Fatalf("%+v, %v", info, err)
	}
	if sent.count("LOCK.ACQUIRE", "60000") < 2 || sent.count("PX\r\n$4\r\n5000") != 0 {
		t.Fatalf("it asked for less than a minute: %q", sent.lines)
	}
	admin(t, "DEL parked")
}

// A recordedConn notes what is written.
type recordedConn struct {
	net.Conn
	sent *journal
}

func (c *recordedConn) Write(data []byte) (int, error) {
	_, _ = c.sent.Write(data)
	return c.Conn.Write(data)
}

func TestADeadlockNamesItsCycle(t *testing.T) {
	locks := open(t)
	ann, ben := redislock.Owner("ann"), redislock.Owner("ben")
	left, right := acquire(t, locks.Lock("left", ann)), acquire(t, locks.Lock("right", ben))
	ended := make(chan error, 1)
	go func() {
		hold, err := locks.Lock("right", ann).Acquire(background)
		if err == nil {
			err = hold.Release(background)
		}
		ended <- err
	}()
	waiting(t, locks, "right", 1)
	_, err := locks.Lock("left", ben).Acquire(background)
	var e *redislock.Error
	if !errors.Is(err, redislock.ErrDeadlock) || !errors.As(err, &e) || len(e.Cycle) != 2 || e.Cycle[0] != (redislock.WaitStep{Owner: "ben", Lock: "left", Holder: "ann"}) {
		t.Fatalf("%v: %+v", err, e)
	}
	if err := right.Release(background); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := left.Release(background); err != nil {
		t.Fatal(err)
	}
}

func TestTheServerSeesTheDeadlockOfAnOwnerThoughTheProcessQueuesAllItMay(t *testing.T) {
	for _, names := range [][]string{{"theirs"}, {"theirs", "free"}} {
		locks, others := open(t, redislock.WithMaxQueuedPerLock(1)), open(t)
		ann, ben := redislock.Owner("ann"), redislock.Owner("ben")
		mine, theirs := acquire(t, locks.Lock("mine", ann)), acquire(t, others.Lock("theirs", ben))
		ctx, cancel := context.WithCancel(background)
		ended := make(chan error, 4)
		wait := func(lock *redislock.Lock) {
			go func() {
				_, err := lock.Acquire(ctx)
				ended <- err
			}()
		}
		wait(others.Lock("mine", ben))
		waiting(t, others, "mine", 1)
		for range 3 {
			wait(locks.Many(names))
		}
		waiting(t, others, "theirs", 1)
		if _, err := locks.Many(names, ann, redislock.Wait(slack)).Acquire(background); !errors.Is(err, redislock.ErrDeadlock) {
			t.Fatalf("%v: %v", names, err)
		}
		cancel()
		for range 4 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if err := errors.Join(mine.Release(background), theirs.Release(background)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheServerSeesTheDeadlockOfAnOwnerWhoseHoldBeginsWhileItWaitsForAConnection(t *testing.T) {
	var waits atomic.Int64
	hooks := redislock.Hooks{Waiting: func(context.Context, string) { waits.Add(1) }}
	locks, others := open(t, redislock.WithMaxQueuedPerLock(1), redislock.WithHooks(hooks)), open(t)
	ann, ben, both := redislock.Owner("ann"), redislock.Owner("ben"), []string{"theirs", "free"}
	theirs := acquire(t, others.Lock("theirs", ben))
	ctx, cancel := context.WithCancel(background)
	ended := make(chan error, 2)
	for number, lock := range []*redislock.Lock{locks.Many(both), locks.Many(both, ann)} {
		go func() {
			_, err := lock.Acquire(ctx)
			ended <- err
		}()
		eventually(t, "it waits", func() bool { return waits.Load() == int64(number+1) })
		waiting(t, others, "theirs", 1)
	}
	time.Sleep(20 * time.Millisecond) // it has no connection
	waiting(t, others, "theirs", 1)
	mine := acquire(t, locks.Lock("mine", ann))
	waiting(t, others, "theirs", 2)
	if _, err := others.Lock("mine", ben, redislock.Wait(slack)).Acquire(background); !errors.Is(err, redislock.ErrDeadlock) {
		t.Fatal(err)
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if err := errors.Join(mine.Release(background), theirs.Release(background)); err != nil {
		t.Fatal(err)
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	locks := open(t)
	for what, lock := range map[string]*redislock.Lock{
		"must not be empty":           locks.Lock(""),
		"1 to 64 names, not 0":        locks.Many(nil),
		"given twice":                 locks.Many([]string{"a", "b", "a"}),
		"from 1 to 1000000":           locks.Semaphore("a", 0),
		"not 99ms":                    locks.Lock("a", redislock.Lease(99*time.Millisecond)),
		"Wait must be 0":              locks.Lock("a", redislock.Wait(-1)),
		"MaxHold must be":             locks.Lock("a", redislock.MaxHold(time.Millisecond)),
		"MinHold must be 100":         locks.Lock("a", redislock.MinHold(time.Millisecond)),
		"MaxHold (1s) or less":        locks.Lock("a", redislock.MaxHold(time.Second), redislock.MinHold(2*time.Second)),
		"lease (or MinHold) m":        locks.Lock("a", redislock.MinHold(48*time.Hour)),
		"must not be set for readers": locks.Read("a", redislock.MinHold(time.Second)),
		"not be *":                    locks.Lock("a", redislock.Owner("*")),
		"from 1 to 256 bytes":         locks.Lock("a", redislock.Owner(strings.Repeat("x", 257))),
	} {
		if _, _, err := lock.TryAcquire(background); !errors.Is(err, redislock.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v", what, err)
		}
	}
	if err := locks.Leader("a", redislock.MinHold(time.Second)).Run(background); !errors.Is(err, redislock.ErrInvalid) {
		t.Error(err)
	}
	for what, address := range map[string]string{
		"must begin with":                 "http://localhost",
		"the scheme \"\"":                 "my-redis",
		"not empty: \"\"":                 "",
		"host:port/db, not empty: \"  \"": "  ",
		"must be a number":                "redis://localhost/nine",
		"parameter \"timeou":              "redis://localhost?timeout=3",
		"port from 1":                     "redis://localhost:0",
		"must be a URL":                   "redis://:secret@%zz",
		"DB must be 0 or mo":              "redis://localhost/-1",
		"%25 for % and %23 for #":         "redis://ann:12#secret@localhost",
		"percent-encode":                  "redis://:1%secret@localhost",
	} {
		if _, err := redislock.Open(address); !errors.Is(err, redislock.ErrInvalid) || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", what, err)
		}
	}
	for what, option := range map[string]redislock.Option{
		"WithLease must":         redislock.WithLease(time.Millisecond),
		"WithServerTimeout must": redislock.WithServerTimeout(time.Second),
		"WithMaxQueuedPerLock":   redislock.WithMaxQueuedPerLock(0),
		"WithLogger must":        redislock.WithLogger(nil),
	} {
		if _, err := redislock.Open("redis://127.0.0.1", option); !errors.Is(err, redislock.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v", what, err)
		}
	}
	if _, err := redislock.New(redislock.Servers{Addrs: []string{"a:1", "b:1"}}); !errors.Is(err, redislock.ErrInvalid) {
		t.Error(err)
	}
}

// An oldConn is a connection to a server whose module says version 209, which is 0.2.9, where it says 300.
type oldConn struct {
	net.Conn
	from *bufio.Reader
}

func (c *oldConn) Read(to []byte) (int, error) {
	line, err := c.from.ReadString('\n')
	return copy(to, strings.Replace(line, ":300\r\n", ":209\r\n", 1)), err
}

func TestAModuleThatIsTooOldIsLoggedOnceForAServer(t *testing.T) {
	log := &journal{}
	logged := redislock.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
	if version, err := open(t, logged).Ping(background); err != nil || version != "0.3.0" || log.count("is version") != 0 {
		t.Fatalf("%q, %v, %q", version, err, log.lines)
	}
	var made []net.Conn
	dial := func(ctx context.Context, network, at string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
		made = append(made, conn)
		return &oldConn{conn, bufio.NewReader(conn)}, err
	}
	locks, err := redislock.New(redislock.Servers{Addrs: []string{address}, Dial: dial}, logged)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(background)
	for range 2 {
		if version, err := locks.Ping(background); err != nil || version != "0.2.9" {
			t.Fatalf("%q, %v", version, err)
		}
		made[len(made)-1].Close() //nolint:errcheck // the library closes it, too
	}
	sentence := "the module redislock on " + address + " is version 0.2.9, and this client needs 0.3.0 or later: upgrade the module"
	if len(made) < 2 || log.count("is version") != 1 || log.count("level=WARN", sentence) != 1 {
		t.Fatalf("%d connections, %q", len(made), log.lines)
	}
}

func BenchmarkUncontended(b *testing.B) {
	locks, err := redislock.Open("redis://" + address)
	if err != nil {
		b.Fatal(err)
	}
	defer locks.Close(background)
	lock := locks.Lock("bench")
	for b.Loop() {
		hold, err := lock.Acquire(background)
		if err != nil {
			b.Fatal(err)
		}
		if err := hold.Release(background); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParallel(b *testing.B) {
	locks, err := redislock.Open("redis://" + address)
	if err != nil {
		b.Fatal(err)
	}
	defer locks.Close(background)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			hold, err := locks.Lock("bench").Acquire(background)
			if err != nil {
				b.Fatal(err)
			}
			if err := hold.Release(background); err != nil {
				b.Fatal(err)
			}
		}
	})
}
