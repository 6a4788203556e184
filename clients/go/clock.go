package redislock

import (
	"math"
	"math/rand/v2"
	"time"

	"redislock.example/go/internal/testclock"
)

// A moment is a time in nanoseconds, of a clock that cannot be set. If possible, the clock keeps counting while the
// machine sleeps.
type moment int64

// never is later than all other moments.
const never moment = math.MaxInt64

// clock reads the time. The tests of the arithmetic replace it with the clock of a bubble.
var clock = bootTime

func now() moment {
	if testclock.IsUsed.Load() {
		return moment(time.Now().UnixNano())
	}
	return clock()
}

// after adds a duration. It does not go beyond never.
func (m moment) after(d time.Duration) moment {
	if m == never || time.Duration(never-m) <= d {
		return never
	}
	return m + moment(d)
}

// left returns the time until then: zero if it is past.
func (m moment) left() time.Duration {
	if m == never {
		return math.MaxInt64
	}
	return max(0, time.Duration(m-now()))
}

// age returns the time since then.
func (m moment) age() time.Duration { return max(0, time.Duration(now()-m)) }

// atRandom returns a random pause.
func atRandom(most time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(most) + 1))
}
