package redislock.spring.integration;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import org.jspecify.annotations.Nullable;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import redislock.Hold;
import redislock.Lock;
import redislock.LockLostException;
import redislock.LockTimeoutException;
import redislock.Locks;

/**
 * Gives Spring Integration the locks of a Redis or Valkey server. A lock belongs to the thread that has taken it, and is
 * reentrant: the server has one hold for it. Without a time to live it is renewed until it is unlocked; with one it is not,
 * but by {@link #renewLock}. Waiters are served in the order of their arrival, those of one program, too. That no server
 * answers is a {@link redislock.LockException}, and never a lock that another holds. Close the Locks after what uses it.
 */
public final class RedislockLockRegistry implements RenewableLockRegistry<DistributedLock> {
    /**
     * What each thread holds. It goes with the thread, whose locks then end with their leases, and after the last unlock, so
     * that a pool of threads keeps nothing of an application that was undeployed.
     */
    private final ThreadLocal<Map<String, Taken>> taken = new ThreadLocal<>();
    private final Locks locks;
    private final Duration lease;

    private static final class Taken {
        final Hold hold;
        int count = 1;

        Taken(Hold hold) {
            this.hold = hold;
        }
    }

    /**
     * Returns a registry.
     *
     * @param locks the locks of a server, which stay open
     * @param lease how long the server keeps a lock whose holder is silent, and what {@link #renewLock} asks for
     */
    public RedislockLockRegistry(Locks locks, Duration lease) {
        this.locks = locks;
        this.lease = lease;
        locks.lock("checked").lease(lease); // an argument is refused here, and not with each lock
    }

    /**
     * Returns a lock, which holds nothing itself.
     *
     * @param key the name of the lock: a String
     */
    @Override
    public DistributedLock obtain(Object key) {
        if (!(key instanceof String name)) {
            throw new IllegalArgumentException("the key of a lock must be a String, not " + key.getClass());
        }
        return new Reentrant(name);
    }

    @Override
    public void renewLock(Object key) {
        renewLock(key, lease);
    }

    @Override
    public void renewLock(Object key, Duration ttl) {
        var own = own(String.valueOf(key));
        if (own == null) {
            throw notHeld(String.valueOf(key));
        }
        try {
            own.hold.extend(ttl);
        } catch (LockLostException e) {
            throw new IllegalStateException("the lock '" + key + "' was lost", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted before the server had renewed the lock '" + key + "'", e);
        }
    }

    private @Nullable Taken own(String name) {
        var mine = taken.get();
        return mine == null ? null : mine.get(name);
    }

    private void keep(String name, Hold hold) {
        if (taken.get() == null) {
            taken.set(new HashMap<>());
        }
        taken.get().put(name, new Taken(hold));
    }

    private void forget(String name) {
        var mine = taken.get();
        if (mine != null && mine.remove(name) != null && mine.isEmpty()) {
            taken.remove();
        }
    }

    private static IllegalStateException notHeld(String name) {
        return new IllegalStateException("this thread does not hold the lock '" + name + "'");
    }

    private interface Acquire {
        Hold acquire(Lock lock) throws InterruptedException;
    }

    private final class Reentrant implements DistributedLock {
        private final String name;

        Reentrant(String name) {
            this.name = name;
        }

        private Lock lasting(@Nullable Duration ttl) {
            return ttl == null ? locks.lock(name).lease(lease) : locks.lock(name).lease(ttl).noRenewal();
        }

        /** Counts one more, or takes the lock. One that was lost is forgotten: its thread asks for it as others do. */
        private void take(Lock lock, Acquire how) throws InterruptedException {
            var own = own(name);
            if (own != null && own.hold.reason().isEmpty()) {
                own.count++;
                return;
            }
            forget(name);
            keep(name, how.acquire(lock));
        }

        private boolean tryTake(Lock lock, Acquire how) throws InterruptedException {
            try {
                take(lock, how);
                return true;
            } catch (LockTimeoutException e) {
                return false;
            }
        }

        /** Waits for the hold. An interrupt ends no wait, and the thread keeps its flag. */
        private static Hold uninterruptibly(Lock lock) {
            try {
                return lock.acquireAsync().join();
            } catch (CompletionException e) {
                throw e.getCause() instanceof RuntimeException own ? own : e;
            }
        }

        @Override
        public void lock() {
            lockFor(null);
        }

        @Override
        public void lock(Duration ttl) {
            lockFor(ttl);
        }

        private void lockFor(@Nullable Duration ttl) {
            try {
                take(lasting(ttl), Reentrant::uninterruptibly);
            } catch (InterruptedException e) {
                throw new AssertionError(e); // nothing of it is interruptible
            }
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            take(lasting(null), Lock::acquire);
        }

        @Override
        public boolean tryLock() {
            try {
                return tryTake(lasting(null).waitFor(Duration.ZERO), Reentrant::uninterruptibly);
            } catch (InterruptedException e) {
                throw new AssertionError(e); // nothing of it is interruptible
            }
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return tryLockFor(Duration.of(time, unit.toChronoUnit()), null);
        }

        @Override
        public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
            return tryLockFor(wait, ttl);
        }

        private boolean tryLockFor(Duration wait, @Nullable Duration ttl) throws InterruptedException {
            return tryTake(lasting(ttl).waitFor(wait.isNegative() ? Duration.ZERO : wait), Lock::acquire);
        }

        /**
         * Counts one less, and releases the lock with the last one.
         *
         * @throws IllegalStateException if this thread does not hold the lock
         * @throws ConcurrentModificationException if it was lost meanwhile: the thread holds it no more
         */
        @Override
        public void unlock() {
            var own = own(name);
            if (own == null) {
                throw notHeld(name);
            }
            if (--own.count > 0) {
                return;
            }
            forget(name);
            try {
                own.hold.close();
            } catch (LockLostException e) {
                var lost = new ConcurrentModificationException("the lock '" + name + "' was lost before it was unlocked: "
                        + e.getMessage());
                lost.initCause(e);
                throw lost;
            }
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("a lock of a server has no conditions");
        }
    }
}
