package redislock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"redislock.example/go"
)

func TestAThousandWaitersAreServedAndUseNoProcessor(t *testing.T) {
	locks := open(t, redislock.WithMaxQueuedPerLock(4))
	first := acquire(t, locks.Lock("thousand"))
	var served atomic.Int64
	done := make(chan error, 1000)
	for range 1000 {
		go func() {
			hold, err := locks.Lock("thousand").Acquire(context.Background())
			if err == nil {
				served.Add(1)
				err = hold.Release(context.Background())
			}
			done <- err
		}()
	}
	waiting(t, locks, "thousand", 4)
	if err := first.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(slack):
			t.Fatalf("only %d are served", served.Load())
		}
	}
}
