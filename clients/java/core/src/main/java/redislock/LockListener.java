package redislock;

import java.time.Duration;

/**
 * Is notified of lock events, before the caller is. One thread of the library calls all methods except
 * {@link #forAcquire}, one after the other. A method that blocks delays the callers, but not renewals.
 */
public interface LockListener {
    /**
     * Returns the listener for an acquire that begins, and for its hold: by default this one. The thread that acquires
     * calls it, so it may capture state of that thread, such as the span of a trace.
     *
     * @param lock the name of the lock
     * @return the listener
     */
    default LockListener forAcquire(String lock) {
        return this;
    }

    /**
     * Called when an acquire begins. One of {@link #granted}, {@link #timedOut} and {@link #failed} follows.
     *
     * @param lock the name of the lock
     */
    default void requested(String lock) {}

    /**
     * Called when an acquire has to wait.
     *
     * @param lock the name of the lock
     */
    default void waiting(String lock) {}

    /**
     * Called when an acquire gets the lock.
     *
     * @param lock the name of the lock
     * @param waited how long that took
     */
    default void granted(String lock, Duration waited) {}

    /**
     * Called when an acquire ends without the lock, because another owner held it.
     *
     * @param lock the name of the lock
     * @param waited how long that took
     */
    default void timedOut(String lock, Duration waited) {}

    /**
     * Called when an acquire ends for another reason, or its caller cancels or interrupts it.
     *
     * @param lock the name of the lock
     * @param waited how long that took
     * @param failure why: a {@link LockException}, or a CancellationException
     */
    default void failed(String lock, Duration waited, RuntimeException failure) {}

    /**
     * Called when a holder releases its hold. If no server has answered the release yet, it is repeated in the
     * background.
     *
     * @param lock the name of the lock
     * @param held how long it lasted
     */
    default void released(String lock, Duration held) {}

    /**
     * Called when a hold is lost.
     *
     * @param lock the name of the lock
     * @param held how long it lasted
     * @param lost why
     */
    default void lost(String lock, Duration held, LockLostException lost) {}

    /**
     * Called for each failed renewal.
     *
     * @param lock the name of the lock
     * @param failure why
     */
    default void renewalFailed(String lock, LockException failure) {}

    /**
     * Called when a server answers again over a new connection.
     *
     * @param server its host and port
     */
    default void reconnected(String server) {}
}
