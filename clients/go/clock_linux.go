package redislock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bootTime reads a clock that keeps counting while the machine sleeps. Go's monotonic clock does not.
func bootTime() moment {
	var t unix.Timespec
	// It never blocks, so it bypasses Go's scheduler, which would cost more than the call.
	_, _, failed := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&t)), 0)
	if failed != 0 {
		return monotonic()
	}
	return moment(t.Nano())
}

var began = time.Now()

func monotonic() moment { return moment(time.Since(began)) }
