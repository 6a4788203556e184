package redislock;

import java.time.Duration;

/**
 * Hears what becomes of locks, before the caller does. One thread of the library calls all methods but
 * {@link #forAcquire}, one after the other: a method that blocks delays the callers, and renewals not.
 */
public interface LockListener {
    /**
     * Returns who hears of an acquire that begins, and of its hold: this by default. The thread that acquires calls it, so
     * it may remember what belongs to that thread, as the span of a trace.
     *
     * @param lock the name of the lock
     * @return the listener
     */
    default LockListener forAcquire(String lock) {
        return this;
    }

    /**
     * An acquire begins. One of {@link #granted}, {@link #timedOut} and {@link #failed} follows.
     *
     * @param lock the name of the lock
     */
    default void requested(String lock) {}

    /**
     * An acquire waits.
     *
     * @param lock the name of the lock
     */
    default void waiting(String lock) {}

    /**
     * An acquire was granted the lock.
     *
     * @param lock the name of the lock
     * @param waited how long that took
     */
    default void granted(String lock, Duration waited) {}

    /**
     * An acquire ended without the lock, for another owner held it.
     *
     * @param lock the name of the lock
     * @param waited how long that took
     */
    default void timedOut(String lock, Duration waited) {}

    /**
     * An acquire ended for another reason, or its caller cancelled or interrupted it.
     *
     * @param lock the name of the lock
     * @param waited how long that took
     * @param failure why: a {@link LockException}, or a CancellationException
     */
    default void failed(String lock, Duration waited, RuntimeException failure) {}

    /**
     * A hold was released by its holder. Where no server has answered that, the background continues the release.
     *
     * @param lock the name of the lock
     * @param held how long it lasted
     */
    default void released(String lock, Duration held) {}

    /**
     * A hold was lost.
     *
     * @param lock the name of the lock
     * @param held how long it lasted
     * @param lost why
     */
    default void lost(String lock, Duration held, LockLostException lost) {}

    /**
     * An attempt to renew a hold failed.
     *
     * @param lock the name of the lock
     * @param failure why
     */
    default void renewalFailed(String lock, LockException failure) {}

    /**
     * A server serves again over a new connection.
     *
     * @param server its host and port
     */
    default void reconnected(String server) {}
}
