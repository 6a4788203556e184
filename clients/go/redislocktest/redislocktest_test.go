package redislocktest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"redislock.example/go"
	"redislock.example/go/internal/testserver"
	"redislock.example/go/redislocktest"
)

var (
	background = context.Background()
	quiet      = redislock.WithLogger(slog.New(slog.DiscardHandler))
)

// inBubble runs a test with two processes, where a sleep moves the clock.
func inBubble(t *testing.T, test func(t *testing.T, server *redislocktest.Server, ours, theirs *redislock.Locks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := redislocktest.NewServer()
		defer server.Close()
		test(t, server, server.Open(quiet), server.Open(quiet))
	})
}

func acquire(t *testing.T, lock *redislock.Lock) *redislock.Hold {
	t.Helper()
	hold, err := lock.Acquire(background)
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func release(t *testing.T, hold *redislock.Hold) {
	t.Helper()
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
}

func isHad(t *testing.T, lock *redislock.Lock) bool {
	t.Helper()
	hold, isHad, err := lock.TryAcquire(background)
	if err != nil {
		t.Fatal(err)
	}
	if isHad {
		release(t, hold)
	}
	return isHad
}

func TestAReportIsWrittenOnceAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redislocktest.Server, ours, theirs *redislock.Locks) {
		release(t, acquire(t, ours.Lock("report", redislock.MinHold(50*time.Second))))
		time.Sleep(30 * time.Second)
		if isHad(t, theirs.Lock("report")) {
			t.Error("two wrote it within a minute")
		}
		time.Sleep(25 * time.Second)
		if !isHad(t, theirs.Lock("report")) {
			t.Error("nobody may write it after a minute")
		}
	})
}

func TestWhatIsRenewedLastsAndOtherLeasesEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redislocktest.Server, ours, theirs *redislock.Locks) {
		renewed, short := acquire(t, ours.Lock("renewed")), acquire(t, ours.Lock("short", redislock.NoRenewal()))
		time.Sleep(24 * time.Hour)
		if err := renewed.Check(); err != nil || isHad(t, theirs.Lock("renewed")) {
			t.Errorf("it is not held after a day: %v", err)
		}
		if short.Reason() != redislock.ReasonDeadline || !isHad(t, theirs.Lock("short")) {
			t.Errorf("the one that is not renewed has the reason %q", short.Reason())
		}
		release(t, renewed)
	})
}

func TestALossIsToldWithItsReason(t *testing.T) {
	inBubble(t, func(t *testing.T, server *redislocktest.Server, ours, theirs *redislock.Locks) {
		for _, age := range []time.Duration{0, time.Minute} {
			hold := acquire(t, ours.Lock("invoice:42"))
			time.Sleep(age)
			began := time.Now()
			server.Lose("invoice:42")
			<-hold.Context().Done()
			if hold.Reason() != redislock.ReasonPush || time.Since(began) > 20*time.Millisecond {
				t.Errorf("lost by %q after %v", hold.Reason(), time.Since(began))
			}
			if err := hold.Release(background); !errors.Is(err, redislock.ErrLockLost) || !isHad(t, theirs.Lock("invoice:42")) {
				t.Errorf("the release says %v", err)
			}
		}
	})
}

func TestWaitersAreServedInTheirOrderAndTimeOut(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *redislocktest.Server, ours, theirs *redislock.Locks) {
		for _, names := range [][]string{{"one"}, {"two", "three"}} {
			hold, served := acquire(t, ours.Many(names)), make(chan int, 6)
			for number := range 6 {
				locks := []*redislock.Locks{ours, theirs}[number%2]
				go func() {
					next, err := locks.Many(names).Acquire(background)
					if err != nil {
						t.Error(err)
						return
					}
					served <- number
					time.Sleep(time.Second)
					_ = next.Release(background)
				}()
				synctest.Wait()
			}
			began := time.Now()
			_, err := theirs.Many(names, redislock.Wait(10*time.Second)).Acquire(background)
			if waited := time.Since(began); !errors.Is(err, redislock.ErrLockTimeout) || waited < 10*time.Second || waited > 11*time.Second {
				t.Errorf("after %v: %v", waited, err)
			}
			release(t, hold)
			for number := range 6 {
				if next := <-served; next != number {
					t.Errorf("%v: number %d was served in place of %d", names, next, number)
				}
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestALeaderIsDeposedAndAServerThatIsClosedAnswersNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, server *redislocktest.Server, ours, _ *redislock.Locks) {
		ctx, resign := context.WithCancel(background)
		elected, deposed := make(chan bool, 2), make(chan bool, 2)
		leader := ours.Leader("job")
		leader.OnElected = func(ctx context.Context, _ *redislock.Hold) error {
			elected <- true
			<-ctx.Done()
			return nil
		}
		leader.OnDeposed = func(*redislock.LostError) { deposed <- true }
		ended := make(chan error, 1)
		go func() { ended <- leader.Run(ctx) }()
		<-elected
		time.Sleep(time.Hour)
		server.Lose("job")
		<-deposed
		<-elected
		resign()
		<-ended
		server.Close()
		late, err := redislock.New(server.Servers(), quiet)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := late.Lock("k").TryAcquire(background); !errors.Is(err, redislock.ErrConnectionFailed) {
			t.Errorf("a server that is closed answers %v", err)
		}
		late.Close(background)
	})
}

// kind is the kind of an error, or ok.
func kind(err error) string {
	var e *redislock.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return e.Kind.Error()
	}
	return fmt.Sprintf("%T", err)
}

// A teller does what differs from server to server, if anything does, and notes the answers.
type teller struct {
	t            *testing.T
	ours, theirs *redislock.Locks
	told         []any
}

func (s *teller) tell(answer ...any) { s.told = append(s.told, answer...) }

func (s *teller) tries(lock *redislock.Lock) {
	hold, isHad, err := lock.TryAcquire(background)
	s.tell(isHad, kind(err))
	if isHad {
		release(s.t, hold)
	}
}

func (s *teller) info(name string) {
	info, err := s.ours.Info(background, name)
	if err != nil || info == nil {
		s.tell(err, info == nil)
		return
	}
	s.tell(info.Kind, info.Limit, info.Holds, len(info.Holders), info.Holders[0].Owner, info.Waiters, len(info.Queue))
}

func (s *teller) kinds() {
	_, err := s.ours.Ping(background)
	s.tell(kind(err))
	one, other := acquire(s.t, s.ours.Read("r", redislock.Owner("ann"))), acquire(s.t, s.theirs.Read("r"))
	s.tries(s.theirs.Write("r"))
	s.tries(s.ours.ReadMany([]string{"q", "r"}))
	s.info("r")
	s.tries(s.theirs.Semaphore("r", 2))
	release(s.t, one)
	release(s.t, other)
	one, other = acquire(s.t, s.ours.Semaphore("s", 2, redislock.Owner("ann"))), acquire(s.t, s.theirs.Semaphore("s", 2))
	for _, lock := range []*redislock.Lock{s.ours.Semaphore("s", 2), s.ours.Semaphore("s", 3), s.ours.Lock("s"), s.theirs.Read("s")} {
		s.tries(lock)
	}
	s.info("s")
	s.info("nobody's")
	release(s.t, one)
	release(s.t, other)
}

func (s *teller) owners() {
	mine := acquire(s.t, s.ours.Lock("k", redislock.Owner("ann")))
	again := acquire(s.t, s.theirs.Lock("k", redislock.Owner("ann")))
	s.tell(mine.Token() == again.Token())
	s.tries(s.ours.Semaphore("k", 1, redislock.Owner("ann")))
	s.tries(s.ours.Many([]string{"k", "l"}, redislock.Owner("ann")))
	s.tell(kind(s.ours.CheckToken(background, "k", mine.Token()-1)), kind(s.ours.CheckToken(background, "k", mine.Token())))
	s.tell(kind(mine.Extend(background, time.Hour)), kind(mine.Extend(background, 2*time.Hour)))
	left, ended := acquire(s.t, s.ours.Lock("left", redislock.Owner("ben"))), make(chan error, 1)
	go func() {
		hold, err := s.theirs.Lock("left", redislock.Owner("ann")).Acquire(background)
		if err == nil {
			err = hold.Release(background)
		}
		ended <- err
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if info, err := s.ours.Info(background, "left"); err == nil && info.Waiters == 1 {
			break
		}
		if time.Now().After(end) {
			s.t.Fatal("nobody waits")
		}
	}
	s.info("left")
	_, err := s.ours.Lock("k", redislock.Owner("ben")).Acquire(background)
	var e *redislock.Error
	if !errors.As(err, &e) {
		s.t.Fatal(err)
	}
	s.tell(kind(err), e.Cycle)
	release(s.t, left)
	s.tell(kind(<-ended))
	release(s.t, mine)
	writer := acquire(s.t, s.ours.Write("w", redislock.Owner("ann")))
	s.tries(s.ours.Read("w", redislock.Owner("ann")))
	s.tell(kind(writer.Release(background)))
}

func TestARequestWhosePlaceANewerOneOfItsOwnerTakesIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redislocktest.NewServer()
		defer server.Close()
		ask := func(words ...string) *bufio.Reader {
			conn, err := server.Servers().Dial(background, "", "")
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			request := fmt.Sprintf("*%d\r\n", len(words))
			for _, word := range words {
				request += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
			}
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return bufio.NewReader(conn)
		}
		blocks := []string{"LOCK.ACQUIRE", "k", "ann", "PX", "60000", "BLOCK", "60000"}
		ask("LOCK.ACQUIRE", "k", "ben", "PX", "60000")
		older, newer := ask(blocks...), ask(blocks...)
		if line, err := older.ReadString('\n'); !strings.HasPrefix(line, "-UNBLOCKED ") {
			t.Fatalf("one whose place is taken: %q, %v", line, err)
		}
		server.Lose("k")
		if line, err := newer.ReadString('\n'); !strings.HasPrefix(line, ":") {
			t.Fatalf("the newer one: %q, %v", line, err)
		}
	})
}

func TestItAnswersAsARealServerDoes(t *testing.T) {
	real, err := testserver.Start("--save", "")
	if err != nil {
		t.Fatal(err)
	}
	defer real.Stop()
	server := redislocktest.NewServer()
	defer server.Close()
	var told [2][]any
	for number, servers := range []redislock.Servers{{Addrs: []string{real.Address}}, server.Servers()} {
		story := &teller{t: t}
		for _, locks := range []**redislock.Locks{&story.ours, &story.theirs} {
			if *locks, err = redislock.New(servers, quiet); err != nil {
				t.Fatal(err)
			}
			defer (*locks).Close(background)
		}
		story.kinds()
		story.owners()
		told[number] = story.told
	}
	if !reflect.DeepEqual(told[0], told[1]) {
		t.Errorf("a real server:  %v\nthis server: %v", told[0], told[1])
	}
	if len(told[0]) < 40 {
		t.Errorf("only %d answers are compared", len(told[0]))
	}
}
