package redislock;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;

/**
 * A {@link Lock} for code that takes a lock of java.util.concurrent. It belongs to the thread that has taken it, and is
 * reentrant: the thread counts, and the server has one hold. All of them with the same name, kind and Locks are one
 * lock, whatever their other options. Waiters are served in the order of their arrival, also within one program. If no
 * server answers, it throws a {@link LockException}; it never reports the lock as taken. If a thread ends without
 * unlocking, the lock stays taken until its lease expires.
 */
public final class ThreadLock implements java.util.concurrent.locks.Lock {
    private final Lock lock;
    /**
     * The identity of the lock. It is not a record, because the JDK retains the class of a record that it has compared.
     */
    private final List<Object> key;

    static final class Taken {
        private final Hold hold;
        private int count = 1;

        Taken(Hold hold) {
            this.hold = hold;
        }
    }

    ThreadLock(Lock lock, List<Object> key) {
        this.lock = lock;
        this.key = key;
    }

    private Optional<Taken> own() {
        return Optional.ofNullable(lock.core().takenByThread.get(Thread.currentThread())).map(mine -> mine.get(key));
    }

    private void forget() {
        lock.core().takenByThread.computeIfPresent(Thread.currentThread(), (thread, mine) -> {
            mine.remove(key);
            return mine.isEmpty() ? null : mine;
        });
    }

    /**
     * Returns the hold of this thread, with its token.
     *
     * @return empty if this thread has not taken the lock, or has unlocked it
     */
    public Optional<Hold> hold() {
        return own().map(taken -> taken.hold);
    }

    private interface Acquire {
        Hold acquire(Lock lock) throws InterruptedException;
    }

    /**
     * Increments the count, or acquires the lock. A lost lock is forgotten, and its thread acquires it like any other.
     */
    private void take(Lock how, Acquire acquire) throws InterruptedException {
        var own = own();
        if (own.isPresent() && own.get().hold.isHeld()) {
            own.get().count++;
            return;
        }
        forget();
        var hold = acquire.acquire(how);
        lock.core().takenByThread.computeIfAbsent(Thread.currentThread(), thread -> new HashMap<>()).put(key, new Taken(hold));
    }

    private boolean tryTake(Duration wait, Acquire acquire) throws InterruptedException {
        try {
            take(lock.waitFor(wait), acquire);
            return true;
        } catch (LockTimeoutException e) {
            return false;
        }
    }

    /**
     * Waits for the lock. An interrupt does not end the wait, and the thread keeps its interrupt flag.
     *
     * @throws LockTimeoutException if {@link Lock#waitFor} was set, and another owner held the lock during the whole wait
     * @throws LockException if the lock could not be acquired for another reason
     */
    @Override
    public void lock() {
        try {
            take(lock, Lock::acquireUninterruptibly);
        } catch (InterruptedException e) {
            throw new AssertionError(e); // nothing of it is interruptible
        }
    }

    /**
     * Waits for the lock, as {@link Lock#acquire} does.
     *
     * @throws InterruptedException if the thread is interrupted before the grant: nothing is held then
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(lock, Lock::acquire);
    }

    /**
     * Takes the lock if it is free. If this thread has lost the lock, it asks the server again.
     *
     * @return false only if the server replied that another owner holds the lock
     */
    @Override
    public boolean tryLock() {
        try {
            return tryTake(Duration.ZERO, Lock::acquireUninterruptibly);
        } catch (InterruptedException e) {
            throw new AssertionError(e); // nothing of it is interruptible
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return tryTake(Duration.of(Math.max(time, 0), Rules.given(unit, "unit").toChronoUnit()), Lock::acquire);
    }

    /**
     * Decrements the count, and releases the lock when it reaches zero. If the lock was lost, this thread no longer
     * holds it, even though the method throws.
     *
     * @throws IllegalMonitorStateException if this thread does not hold the lock
     * @throws LockLostException if the lock was lost
     */
    @Override
    public void unlock() {
        var own = own().orElseThrow(() -> new IllegalMonitorStateException("this thread does not hold the lock '"
                + lock.label() + "'"));
        if (--own.count == 0) {
            forget();
            own.hold.close();
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock on a server does not support conditions");
    }
}
