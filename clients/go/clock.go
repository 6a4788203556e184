package redislock

import (
	"math"
	"math/rand/v2"
	"time"

	"redislock.example/go/internal/testclock"
)

// A moment is a time of a clock that nobody sets, in nanoseconds. It goes on while the machine sleeps, where it can.
type moment int64

// never is later than all other moments.
const never moment = math.MaxInt64

// clock tells the time. The tests of the arithmetic put the clock of a bubble in its place.
var clock = bootTime

func now() moment {
	if testclock.IsUsed.Load() {
		return moment(time.Now().UnixNano())
	}
	return clock()
}

// after adds a duration, and stays at never.
func (m moment) after(d time.Duration) moment {
	if m == never || time.Duration(never-m) <= d {
		return never
	}
	return m + moment(d)
}

// left is how long it is until then: nothing if it is past.
func (m moment) left() time.Duration {
	if m == never {
		return math.MaxInt64
	}
	return max(0, time.Duration(m-now()))
}

// age is how long it is since then.
func (m moment) age() time.Duration { return max(0, time.Duration(now()-m)) }

// atRandom is a pause that differs each time.
func atRandom(most time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(most) + 1))
}
