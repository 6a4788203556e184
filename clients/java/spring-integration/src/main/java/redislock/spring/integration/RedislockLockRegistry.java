package redislock.spring.integration;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import org.jspecify.annotations.Nullable;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import redislock.LockLostException;
import redislock.Locks;
import redislock.ThreadLock;

/**
 * Provides Spring Integration with locks on a Redis or Valkey server. A lock belongs to the thread that has taken it,
 * and is reentrant: the server has one hold for it. Without a time to live, it is renewed until it is unlocked; with
 * one, only {@link #renewLock} renews it. Waiters are served in the order of their arrival, also within one program. If
 * no server answers, it throws a {@link redislock.LockException}; it never reports the lock as taken. Close the Locks
 * after everything that uses it.
 */
public final class RedislockLockRegistry implements RenewableLockRegistry<DistributedLock> {
    private final Locks locks;
    private final Duration lease;

    /**
     * Creates a registry.
     *
     * @param locks the locks of a server, which stay open
     * @param lease how long the server keeps a lock unless it is renewed, also by {@link #renewLock}
     */
    public RedislockLockRegistry(Locks locks, Duration lease) {
        this.locks = Objects.requireNonNull(locks, "locks must not be null");
        this.lease = lease;
        locks.lock("checked").lease(lease); // an argument is refused here, and not with each lock
    }

    /**
     * Returns the lock of this name, without acquiring it.
     *
     * @param key the name of the lock: a String
     */
    @Override
    public DistributedLock obtain(Object key) {
        if (!(Objects.requireNonNull(key, "key must not be null") instanceof String name)) {
            throw new IllegalArgumentException("the key of a lock must be a String, not " + key.getClass());
        }
        return new OfThread(name);
    }

    @Override
    public void renewLock(Object key) {
        renewLock(key, lease);
    }

    @Override
    public void renewLock(Object key, Duration ttl) {
        Objects.requireNonNull(ttl, "ttl must not be null");
        var hold = lasting(Objects.requireNonNull(key, "key must not be null").toString(), null).hold().orElseThrow(() ->
                new IllegalStateException("this thread does not hold the lock '" + key + "'"));
        try {
            hold.extend(ttl);
        } catch (LockLostException e) {
            throw new IllegalStateException("the lock '" + key + "' was lost", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted before the server renewed the lock '" + key + "'", e);
        }
    }

    private ThreadLock lasting(String name, @Nullable Duration ttl) {
        return (ttl == null ? locks.lock(name).lease(lease) : locks.lock(name).lease(ttl).noRenewal()).asLock();
    }

    private final class OfThread implements DistributedLock {
        private final String name;

        OfThread(String name) {
            this.name = name;
        }

        @Override
        public void lock() {
            lasting(name, null).lock();
        }

        @Override
        public void lock(Duration ttl) {
            lasting(name, ttl).lock();
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            lasting(name, null).lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return lasting(name, null).tryLock();
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return lasting(name, null).tryLock(time, unit);
        }

        @Override
        public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
            return lasting(name, ttl).tryLock(TimeUnit.NANOSECONDS.convert(wait), TimeUnit.NANOSECONDS);
        }

        /**
         * Decrements the count, and releases the lock when it reaches zero.
         *
         * @throws IllegalStateException if this thread does not hold the lock
         * @throws ConcurrentModificationException if the lock was lost
         */
        @Override
        public void unlock() {
            try {
                lasting(name, null).unlock();
            } catch (IllegalMonitorStateException e) {
                throw new IllegalStateException(e.getMessage(), e);
            } catch (LockLostException e) {
                var lost = new ConcurrentModificationException("the lock '" + name + "' was lost before it was unlocked: "
                        + e.getMessage());
                lost.initCause(e);
                throw lost;
            }
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("a lock on a server does not support conditions");
        }
    }
}
