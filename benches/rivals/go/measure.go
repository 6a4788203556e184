package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// Takers line up for this long before a hand-over counts.
	lineUp = 200 * time.Millisecond
	// A loss that is not told within this time fails the measurement.
	lossMost = 20 * time.Second
	// How old a hold is that is taken away: a client of redislock asks to be told 20 ms after a grant.
	settled = 100 * time.Millisecond
	// After a leader was killed, a taker more asks each time, and those that failed ask again.
	between    = 100 * time.Millisecond
	pauseAfter = 10 * time.Millisecond
)

// all runs a function for each taker at once, and returns the first error.
func (b *bench) all(do func(who int, each taker) error) error {
	failed := make(chan error, len(b.takers))
	for who, each := range b.takers {
		go func() { failed <- do(who, each) }()
	}
	var found error
	for range b.takers {
		found = errors.Join(found, <-failed)
	}
	return found
}

func pair(ctx context.Context, each taker) error {
	if err := each.take(ctx); err != nil {
		return err
	}
	return each.free(ctx)
}

func (b *bench) pairs(ctx context.Context, window time.Duration) (figures, error) {
	var lock sync.Mutex
	var times []time.Duration
	start := time.Now()
	err := b.all(func(_ int, each taker) error {
		var own []time.Duration
		for begin := start; begin.Sub(start) < window; {
			if err := pair(ctx, each); err != nil {
				return err
			}
			end := time.Now()
			own, begin = append(own, end.Sub(begin)), end
		}
		lock.Lock()
		defer lock.Unlock()
		times = append(times, own...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	slices.Sort(times)
	return figures{
		"pairs":            float64(len(times)),
		"pairs_per_second": float64(len(times)) / took.Seconds(),
		"p50_us":           float64(times[len(times)/2].Microseconds()),
	}, nil
}

// A turn is of one taker: when it asked for the lock and when it got it.
type turn struct {
	who        int
	asked, got time.Time
}

func (b *bench) handOver(ctx context.Context, window time.Duration) (figures, error) {
	var lock sync.Mutex
	var turns []turn
	start := time.Now().Add(lineUp)
	end := start.Add(window)
	err := b.all(func(who int, each taker) error {
		// After the end each waits for its turn once more, so that the queue empties.
		for asked := time.Now(); asked.Before(end); asked = time.Now() {
			if err := each.take(ctx); err != nil {
				return err
			}
			lock.Lock()
			turns = append(turns, turn{who, asked, time.Now()})
			lock.Unlock()
			if err := each.free(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return handedOver(turns, start, end), nil
}

// handedOver counts the grants to another taker than the one before, and the waits within the window.
func handedOver(turns []turn, start, end time.Time) figures {
	within, all := 0, 0
	served := map[int]bool{}
	var waits []time.Duration
	for number, one := range turns {
		isWithin := !one.got.Before(start) && one.got.Before(end)
		if isWithin {
			served[one.who] = true
		}
		if number > 0 && turns[number-1].who != one.who {
			all++
			if isWithin {
				within++
			}
		}
		from, until := one.asked, one.got
		if from.Before(start) {
			from = start
		}
		if until.After(end) {
			until = end
		}
		if until.After(from) {
			waits = append(waits, until.Sub(from))
		}
	}
	found := figures{
		"hand_overs":            float64(all),
		"hand_overs_per_second": float64(within) / end.Sub(start).Seconds(),
		"served":                float64(len(served)),
	}
	if len(waits) > 0 {
		slices.Sort(waits)
		found["median_wait_ms"] = waits[len(waits)/2].Seconds() * 1e3
		found["longest_wait_ms"] = waits[len(waits)-1].Seconds() * 1e3
	}
	return found
}

// loss returns no figure for a library that does not tell.
func (b *bench) loss(ctx context.Context) (figures, error) {
	holder, tells := b.takers[0].(teller)
	if !tells {
		return figures{}, nil
	}
	if err := holder.take(ctx); err != nil {
		return nil, err
	}
	time.Sleep(settled)
	start := time.Now()
	if err := holder.takeAway(ctx); err != nil {
		return nil, err
	}
	select {
	case <-holder.lost():
		return figures{"loss_ms": time.Since(start).Seconds() * 1e3}, nil
	case <-time.After(lossMost):
		return nil, errors.New("the loss was not told")
	}
}

// probe kills the process, and then each taker asks for its own lock, one after the other, until one has it.
func (b *bench) probe(pid int) (figures, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.all(func(_ int, each taker) error { return pair(ctx, each) }); err != nil {
		return nil, err
	}
	leader, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	if err := leader.Kill(); err != nil {
		return nil, err
	}
	start := time.Now()
	time.Sleep(between) // until it serves nobody any more
	var lock sync.Mutex
	gaps := make([]time.Duration, 0, len(b.takers))
	var first time.Duration
	err = b.all(func(who int, each taker) error {
		time.Sleep(time.Duration(who) * between)
		lock.Lock()
		isOver := len(gaps) > 0 && who > 0
		lock.Unlock()
		if isOver {
			return nil
		}
		if err := granted(ctx, each); err != nil {
			return err
		}
		gap := time.Since(start)
		lock.Lock()
		defer lock.Unlock()
		gaps = append(gaps, gap)
		if who == 0 {
			first = gap
		}
		return each.free(ctx)
	})
	if err != nil {
		return nil, err
	}
	return figures{"gap_ms": slices.Min(gaps).Seconds() * 1e3, "first_ms": first.Seconds() * 1e3}, nil
}

// granted asks again after each error.
func granted(ctx context.Context, each taker) error {
	err := each.take(ctx)
	for err != nil && ctx.Err() == nil {
		time.Sleep(pauseAfter)
		err = each.take(ctx)
	}
	return err
}
