package redislock;

import java.time.Duration;

/**
 * Hears what becomes of locks, before the caller does. One thread of the library calls all methods, one after the other: a
 * method that blocks delays the callers, and renewals not.
 */
public interface LockListener {
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
     * A hold was released by its holder.
     *
     * @param lock the name of the lock
     * @param held how long it lasted
     */
    default void released(String lock, Duration held) {}

    /**
     * A hold was lost.
     *
     * @param lock the name of the lock
     * @param lost why
     */
    default void lost(String lock, LockLostException lost) {}

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
