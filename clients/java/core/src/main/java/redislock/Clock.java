package redislock;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;

/** Moments in nanoseconds, of a clock that is never set and that continues while the machine sleeps, where it can. */
final class Clock {
    /** Later than all other moments. */
    static final long NEVER = Long.MAX_VALUE;
    /** A wall clock that has moved this much more than the monotonic one was set, or the machine has slept. */
    private static final long LEAP = 10_000_000;
    /** The interval at which the boot clock is read though the wall clock shows no sleep: it may have been set back. */
    private static final long LOOK = 100_000_000;
    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final Clock CLOCK = new Clock(System::nanoTime, () -> System.currentTimeMillis() * 1_000_000, Clock::boot);

    private final LongSupplier monotonic;
    private final LongSupplier wall;
    private final LongSupplier boot;
    /** The resolution of the boot clock, with a millisecond for rounding. */
    private static final long TICK = 11_000_000;
    private final long began;
    private final ReentrantLock looking = new ReentrantLock();
    private long least;
    private long most;
    private volatile long slept;
    private volatile long lookedAt = Long.MIN_VALUE;
    private volatile long wallAhead;

    Clock(LongSupplier monotonic, LongSupplier wall, LongSupplier boot) {
        this.monotonic = monotonic;
        this.wall = wall;
        this.boot = boot;
        began = monotonic.getAsLong() - 1_000_000_000;
        measure();
        least = measuredLeast;
        most = measuredMost;
    }

    static long now() {
        return CLOCK.read();
    }

    long read() {
        long time = monotonic.getAsLong() - began;
        long ahead = wall.getAsLong() - time;
        boolean leapt = Math.abs(ahead - wallAhead) > LEAP;
        if (leapt || lookedAt == Long.MIN_VALUE || time - lookedAt > LOOK) {
            // A thread that finds another one reading the clocks waits only if the machine may have slept.
            if (leapt) {
                looking.lock();
            } else if (!looking.tryLock()) {
                return time + slept;
            }
            try {
                lookedAt = time;
                wallAhead = ahead;
                look();
            } finally {
                looking.unlock();
            }
        }
        return time + slept;
    }

    private long measuredLeast;
    private long measuredMost;

    /** Counts a sleep only if one is certain, and then at its longest: no hold is trusted for too long. */
    private void look() {
        measure();
        if (measuredLeast > most) {
            slept += measuredMost - least;
            least = measuredLeast;
            most = measuredMost;
        } else {
            least = Math.max(least, measuredLeast);
            most = Math.min(most, measuredMost);
        }
    }

    /** Measures the boot clock's lead over the monotonic one. */
    private void measure() {
        long before = monotonic.getAsLong();
        long booted = boot.getAsLong();
        if (booted < 0) {
            return; // this system has no such clock
        }
        measuredLeast = booted - monotonic.getAsLong();
        measuredMost = booted + TICK - before;
    }

    /** Reads the time since the machine booted, sleeps included; -1 if that cannot be read. */
    private static long boot() {
        try {
            String text = new String(Files.readAllBytes(UPTIME), StandardCharsets.US_ASCII);
            return (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * 1e9);
        } catch (IOException | RuntimeException e) {
            return -1;
        }
    }

    /** Adds a duration. It does not go beyond {@link #NEVER}. */
    static long after(long moment, long duration) {
        return NEVER - duration <= moment ? NEVER : moment + duration;
    }

    /** Returns the time until then: zero if it is past. */
    static long left(long moment) {
        return moment == NEVER ? NEVER : Math.max(0, moment - now());
    }

    /** Returns the time since then. */
    static long age(long moment) {
        return Math.max(0, now() - moment);
    }
}
