package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	goredispool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"redislock.example/go"
	"redislock.example/go/goredis"
	"redislock.example/go/internal/testserver"
)

// The functions whose names begin with before or after have the code of docs/how-to/migrate.md, to the letter.

type payment func(ctx context.Context, token uint64) error

//nolint:errcheck // as the page has it
func beforeBsm(ctx context.Context, client *redis.Client, _ *redislock.Locks, pay payment) error {
	locker := bsm.New(client)
	lock, err := locker.Obtain(ctx, "invoice:42", 30*time.Second, &bsm.Options{
		RetryStrategy: bsm.LimitRetry(bsm.LinearBackoff(100*time.Millisecond), 50),
	})
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return pay(ctx, 0)
}

func afterBsm(ctx context.Context, _ *redis.Client, locks *redislock.Locks, pay payment) error {
	lock := locks.Lock("invoice:42", redislock.Wait(5*time.Second))
	return lock.Run(ctx, func(ctx context.Context, hold *redislock.Hold) error {
		return pay(ctx, hold.Token())
	})
}

//nolint:errcheck // as the page has it
func beforeRedsync(ctx context.Context, client *redis.Client, _ *redislock.Locks, pay payment) error {
	mutex := redsync.New(goredispool.NewPool(client)).NewMutex("invoice:42", redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(ctx)
	return pay(ctx, 0)
}

//nolint:errcheck // as the page has it
func afterRedsync(ctx context.Context, _ *redis.Client, locks *redislock.Locks, pay payment) error {
	hold, err := locks.Lock("invoice:42").Acquire(ctx)
	if err != nil {
		return err
	}
	defer hold.Release(ctx) // though ctx is cancelled
	return pay(hold.Context(), hold.Token())
}

func TestTheCodeOfThePageOnMigratingIsThatOfTheTests(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("migrating_test.go")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)<!-- (before|after): (bsm|redsync) -->\n```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(shown) != 4 {
		t.Fatalf("%d examples", len(shown))
	}
	for _, example := range shown {
		name := example[1] + strings.ToUpper(example[2][:1]) + example[2][1:]
		_, body, found := strings.Cut(string(source), "\nfunc "+name+"(")
		_, body, _ = strings.Cut(body, "{\n")
		body, _, _ = strings.Cut(body, "\n}\n")
		if ran := strings.ReplaceAll("\n"+body, "\n\t", "\n")[1:] + "\n"; !found || ran != example[3] {
			t.Errorf("%s is another one:\n%s\nthan that of the page:\n%s", name, ran, example[3])
		}
	}
}

func TestTheOldAndTheNewLockExcludeEachOther(t *testing.T) {
	server, err := testserver.Start("--save", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	if _, err := server.Ask("CONFIG SET redislock.legacy-strings yes"); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Address})
	t.Cleanup(func() { _ = client.Close() })
	locks, err := goredis.Open(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(context.Background()) })
	if _, err := locks.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	type example func(context.Context, *redis.Client, *redislock.Locks, payment) error
	for name, both := range map[string][2]example{"bsm": {beforeBsm, afterBsm}, "redsync": {beforeRedsync, afterRedsync}} {
		for at, one := range both {
			other := both[1-at]
			inside, paid := 0, 0
			err := one(t.Context(), client, locks, func(ctx context.Context, token uint64) error {
				paid++
				if isNew := at == 1; isNew != (token > 0) {
					t.Errorf("%s: it pays with token %d", name, token)
				}
				brief, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				busy := other(brief, client, locks, func(context.Context, uint64) error {
					inside++
					return nil
				})
				if busy == nil || at == 0 && !errors.Is(busy, redislock.ErrLockTimeout) {
					t.Errorf("%s: the other one ends in %v", name, busy)
				}
				return nil
			})
			if err != nil || paid != 1 || inside != 0 {
				t.Errorf("%s: %v, paid %d times, both inside %d times", name, err, paid, inside)
			}
		}
	}
	if info, err := locks.Info(context.Background(), "invoice:42"); err != nil || info != nil {
		t.Errorf("it is not free: %v, %v", info, err)
	}
}
