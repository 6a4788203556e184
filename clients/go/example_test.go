package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"redislock.example/go"
)

func openExample() *redislock.Locks {
	locks, err := redislock.Open("redis://" + address)
	if err != nil {
		panic(err)
	}
	return locks
}

// Workers take payments from a queue, and never work for the same customer at the same time. Each payment is a read, some
// work and a write: without the lock some would be lost.
func Example_worker() {
	locks := openExample()
	defer locks.Close(context.Background())
	payments := make(chan string, 40)
	for range 20 {
		payments <- "ann"
		payments <- "ben"
	}
	close(payments)
	var accounts sync.Map
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for customer := range payments {
				lock := locks.Lock("customer:"+customer, redislock.Lease(10*time.Second), redislock.Wait(time.Minute))
				err := lock.Run(context.Background(), func(ctx context.Context, hold *redislock.Hold) error {
					before, _ := accounts.LoadOrStore(customer, 0)
					select {
					case <-time.After(time.Millisecond): // the work
					case <-ctx.Done(): // the lock is lost
						return context.Cause(ctx)
					}
					accounts.Store(customer, before.(int)+1)
					return nil
				})
				if err != nil {
					fmt.Println(err)
				}
			}
		})
	}
	workers.Wait()
	ann, _ := accounts.Load("ann")
	ben, _ := accounts.Load("ben")
	fmt.Println(ann, ben)
	// Output: 20 20
}

// Of all instances of a program one leads. When it resigns, dies or is cut off, the next one does.
func ExampleLeader() {
	locks := openExample()
	defer locks.Close(context.Background())
	leads := make(chan string)
	stand := func(instance string) (resign func()) {
		ctx, cancel := context.WithCancel(context.Background())
		leader := locks.Leader("scheduler", redislock.Lease(10*time.Second))
		leader.OnElected = func(ctx context.Context, _ *redislock.Hold) error {
			leads <- instance
			<-ctx.Done() // the work ends when it leads no more
			return nil
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := leader.Run(ctx); !errors.Is(err, context.Canceled) {
				fmt.Println(err)
			}
		}()
		return func() { cancel(); <-done }
	}
	resignOne := stand("one")
	fmt.Println(<-leads, "leads")
	resignTwo := stand("two")
	resignOne()
	fmt.Println(<-leads, "leads")
	resignTwo()
	// Output:
	// one leads
	// two leads
}

// At most two of all processes work at once.
func ExampleLocks_Semaphore() {
	locks := openExample()
	defer locks.Close(context.Background())
	var at, most atomic.Int64
	var workers sync.WaitGroup
	for range 6 {
		workers.Go(func() {
			err := locks.Semaphore("exports", 2).Run(context.Background(), func(context.Context, *redislock.Hold) error {
				if now := at.Add(1); now > most.Load() {
					most.Store(now)
				}
				time.Sleep(20 * time.Millisecond)
				at.Add(-1)
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	workers.Wait()
	fmt.Println(most.Load())
	// Output: 2
}

// A server acquires the lock for a request, waits no longer than the request may, and tells the client why it failed.
func Example_httpServer() {
	locks := openExample()
	defer locks.Close(context.Background())
	pay := func(w http.ResponseWriter, r *http.Request) {
		lock := locks.Lock("invoice:"+r.PathValue("id"), redislock.Wait(100*time.Millisecond))
		err := lock.Run(r.Context(), func(ctx context.Context, hold *redislock.Hold) error {
			// UPDATE invoice SET paid = true, fence = $1 WHERE id = $2 AND fence <= $1, with hold.Token() and this ctx
			fmt.Println("paid")
			return ctx.Err()
		})
		switch {
		case errors.Is(err, redislock.ErrLockTimeout):
			http.Error(w, "somebody else is paying this invoice", http.StatusConflict)
		case err != nil: // no server, or the lock was lost: nobody knows whether it is paid
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /invoices/{id}/pay", pay)
	ask := func() {
		reply := httptest.NewRecorder()
		mux.ServeHTTP(reply, httptest.NewRequest(http.MethodPost, "/invoices/42/pay", nil))
		fmt.Println(reply.Code)
	}
	ask()
	other, err := locks.Lock("invoice:42").Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	ask()
	if err := other.Release(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// paid
	// 200
	// 409
}
