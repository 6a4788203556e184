package redislock.shedlock;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import redislock.Hold;
import redislock.LockLostException;
import redislock.Locks;

/**
 * Provides ShedLock with locks on a Redis or Valkey server. {@code lockAtMostFor} is the lease, which is not renewed.
 * {@code lockAtLeastFor} is {@code minHold}: the server keeps the lock taken even if this program ends. Both are raised
 * to 100 ms, the server's shortest lease. Close the Locks after the scheduler.
 *
 * <p>The result is empty only if another program holds the lock. If no server answers, the provider throws an exception.
 */
public final class RedislockLockProvider implements ExtensibleLockProvider {
    private static final Duration SHORTEST = Duration.ofMillis(100);
    private final Locks locks;

    /**
     * Returns a provider.
     *
     * @param locks the locks of a server, which stay open
     */
    public RedislockLockProvider(Locks locks) {
        this.locks = Objects.requireNonNull(locks, "locks must not be null");
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration asked) {
        Objects.requireNonNull(asked, "asked must not be null");
        var lock = locks.lock(asked.getName()).lease(raised(asked.getLockAtMostFor())).noRenewal();
        var least = raised(asked.getLockAtLeastFor());
        try {
            return (least.isZero() ? lock : lock.minHold(least)).tryAcquire().map(hold -> new Taken(asked, hold));
        } catch (InterruptedException e) {
            throw interrupted(e);
        }
    }

    /** Returns what the server takes: nothing, or 100 ms and more. */
    private static Duration raised(Duration asked) {
        return asked.isZero() || asked.compareTo(SHORTEST) > 0 ? asked : SHORTEST;
    }

    private static LockException interrupted(InterruptedException e) {
        Thread.currentThread().interrupt();
        return new LockException("interrupted before the server replied", e);
    }

    private static final class Taken extends AbstractSimpleLock {
        private final Hold hold;

        Taken(LockConfiguration asked, Hold hold) {
            super(asked);
            this.hold = hold;
        }

        @Override
        protected void doUnlock() {
            try {
                hold.close();
            } catch (LockLostException e) {
                return; // the job took longer than lockAtMostFor, which the library has logged
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration asked) {
            try {
                hold.extend(raised(asked.getLockAtMostFor()), raised(asked.getLockAtLeastFor()));
                return Optional.of(new Taken(asked, hold));
            } catch (LockLostException e) {
                return Optional.empty();
            } catch (InterruptedException e) {
                throw interrupted(e);
            }
        }
    }
}
