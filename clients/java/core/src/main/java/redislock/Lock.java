package redislock;

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/**
 * Describes one or several locks. It holds nothing itself, is immutable, and can be acquired any number of times, from
 * any thread. Each method that sets an option returns another Lock.
 */
public final class Lock {
    static final String NO_MIN_HOLD = "minHold must not be set for readers: it is for exclusive locks and semaphores";

    /** The options of one lock; 0 for a duration that is not set, and -1 for an unlimited wait. */
    record Options(long lease, long most, long minHold, long maxHold, boolean renews, @Nullable String owner) {}

    private final Core core;
    private final List<String> names;
    private final Wanted.Kind kind;
    private final int limit;
    private final Options options;

    Lock(Core core, Wanted.Kind kind, int limit, List<String> names, String prefix) {
        Rules.check(!names.isEmpty() && names.size() <= Rules.MOST_NAMES, "many takes 1 to %d names, not %d",
                Rules.MOST_NAMES, names.size());
        var seen = new HashSet<String>();
        for (String name : names) {
            Rules.check(!name.isEmpty(), "the name of a lock must not be empty");
            Rules.check(seen.add(name), "many takes each name only once, but '%s' is given twice", name);
        }
        Rules.check(kind != Wanted.Kind.LIMITED || limit >= 1 && limit <= Rules.HIGHEST_LIMIT,
                "the limit of a semaphore must be from 1 to %d, not %d", Rules.HIGHEST_LIMIT, limit);
        this.core = core;
        this.kind = kind;
        this.limit = limit;
        this.names = names.stream().map(name -> prefix + name).toList();
        options = new Options(core.options.lease, -1, 0, 0, true, null);
    }

    private Lock(Lock like, Options options) {
        core = like.core;
        kind = like.kind;
        limit = like.limit;
        names = like.names;
        this.options = options;
    }

    /**
     * Sets how long to wait for the lock. Without it, an acquire waits without a limit.
     *
     * @param most the longest wait: 0 or more
     * @return another Lock
     */
    public Lock waitFor(Duration most) {
        Rules.check(!Rules.given(most, "waitFor").isNegative(), "waitFor must be 0 or more, not %s", most);
        return with(options.lease, Rules.nanos(most), options.minHold, options.maxHold, options.renews, options.owner);
    }

    /**
     * Sets how long the server keeps the lock unless it is renewed. It overrides the lease of the Locks.
     *
     * @param lease 100 ms or more
     * @return another Lock
     */
    public Lock lease(Duration lease) {
        return with(Rules.checkLease("lease", lease), options.most, options.minHold, options.maxHold, options.renews,
                options.owner);
    }

    /**
     * Turns renewals off: the hold ends with its first lease.
     *
     * @return another Lock
     */
    public Lock noRenewal() {
        return with(options.lease, options.most, options.minHold, options.maxHold, false, options.owner);
    }

    /**
     * Sets how long the lock stays taken at least, counted from its grant, whatever happens to the holder. An earlier
     * release ends the hold, but the server keeps the lock for the rest of that time. For a job that must run once a
     * minute, on any one of many machines, use {@code minHold(Duration.ofSeconds(50)).tryAcquire()}. Not for readers
     * and leaders.
     *
     * @param least from 100 ms to maxHold
     * @return another Lock
     */
    public Lock minHold(Duration least) {
        Rules.check(kind != Wanted.Kind.SHARED, NO_MIN_HOLD);
        return with(options.lease, options.most, Rules.checkLease("minHold", least), options.maxHold, options.renews,
                options.owner);
    }

    /**
     * Sets how long the hold lasts at most. The last lease is shortened to fit.
     *
     * @param most 100 ms or more, and minHold or more
     * @return another Lock
     */
    public Lock maxHold(Duration most) {
        return with(options.lease, options.most, options.minHold, Rules.checkLease("maxHold", most), options.renews,
                options.owner);
    }

    /**
     * Sets one owner for the several locks of a task, so that the server detects its deadlocks. The server treats
     * requests of the same owner as one, and two holds of one owner and lock are one hold.
     *
     * @param owner 1 to 256 bytes, and not *
     * @return another Lock
     */
    public Lock owner(String owner) {
        int bytes = Rules.given(owner, "owner").getBytes(java.nio.charset.StandardCharsets.UTF_8).length;
        Rules.check(bytes >= 1 && bytes <= Rules.LONGEST_OWNER && !owner.equals("*"),
                "owner must have from 1 to %d bytes, and must not be *, which makes a new owner for each request",
                Rules.LONGEST_OWNER);
        return with(options.lease, options.most, options.minHold, options.maxHold, options.renews, owner);
    }

    private Lock with(long lease, long wait, long minHold, long maxHold, boolean renews, String owner) {
        Rules.check(maxHold == 0 || minHold <= maxHold, "minHold must be maxHold (%s) or less, not %s",
                Rules.text(maxHold), Rules.text(minHold));
        return new Lock(this, new Options(lease, wait, minHold, maxHold, renews, owner));
    }

    boolean isExclusive() {
        return kind == Wanted.Kind.EXCLUSIVE;
    }

    boolean hasMinHold() {
        return options.minHold > 0;
    }

    String label() {
        return Rules.label(names, core.options.prefix.length());
    }

    Core core() {
        return core;
    }

    /**
     * Waits for the lock until it is granted, or until the time of {@link #waitFor} has passed. A wait without a limit
     * fails with a {@link ConnectionFailedException} when no server has replied for
     * {@link Locks.Builder#serverTimeout}. After an exception nothing is held.
     *
     * @return the hold; close it
     * @throws InterruptedException if the thread is interrupted before the grant: nothing is held then
     * @throws LockTimeoutException if another owner held the lock during the whole wait
     * @throws LockException if the lock could not be acquired for another reason
     */
    public Hold acquire() throws InterruptedException {
        var waiting = startNow(options.most, false);
        var hold = waiting.get();
        if (hold == null) {
            throw waiting.timedOut().exception();
        }
        return hold;
    }

    /** Waits as {@link #acquire} does. An interrupt does not end the wait, and the thread keeps its flag. */
    Hold acquireUninterruptibly() {
        var waiting = start(options.most, options.most == 0);
        var hold = waiting.join();
        if (hold == null) {
            throw waiting.timedOut().exception();
        }
        return hold;
    }

    /**
     * Takes the lock if it is free. It does not wait, and leaves no position in the queue. Every failure is an
     * exception.
     *
     * @return the hold; empty only if the server replied that another owner holds the lock
     * @throws InterruptedException if the thread is interrupted before the answer: nothing is held then
     */
    public Optional<Hold> tryAcquire() throws InterruptedException {
        return Optional.ofNullable(startNow(0, true).get());
    }

    /**
     * Acquires the lock without blocking a thread. The future fails with the exception that {@link #acquire} would
     * throw. To end the wait, cancel this future itself, not a stage that depends on it; a late grant is then released.
     *
     * @return the hold
     */
    public CompletableFuture<Hold> acquireAsync() {
        var given = new Waiting.Given();
        Waiting waiting;
        try {
            waiting = start(options.most, options.most == 0);
        } catch (LockException e) {
            given.completeExceptionally(e);
            return given;
        }
        given.follow(waiting);
        return given;
    }

    /** Sends nothing if the thread is already interrupted. */
    private Waiting startNow(long wait, boolean once) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        return start(wait, once);
    }

    private Waiting start(long wait, boolean once) {
        boolean isSemaphore = kind == Wanted.Kind.LIMITED;
        var listener = core.listener(label());
        return core.engine.get(() -> {
            if (core.isClosing) {
                throw Problem.closed().named(label(), 0).exception();
            }
            int nested = core.heldByBodies(names, options.owner);
            if (nested > 0 && nested >= (isSemaphore ? limit : 1)) {
                throw new Problem(Problem.Kind.ALREADY_HELD, label(),
                        "the body of this thread already holds the lock, so the thread would wait for itself: pass the hold along",
                        null).exception();
            }
            var waiting = new Waiting(core, options, label(), listener);
            waiting.acquire = new Acquire(core, wanted(listener), wait < 0 ? Clock.NEVER : Clock.after(Clock.now(), wait),
                    once || wait == 0, waiting::done);
            waiting.acquire.start();
            return waiting;
        });
    }

    private Wanted wanted(LockListener listener) {
        long lease = options.maxHold > 0 ? Math.min(options.lease, options.maxHold) : options.lease;
        return new Wanted(names, core.options.prefix.length(), kind, limit, Math.max(lease, options.minHold),
                Math.max(Rules.FIRST_LEASE, options.minHold), options.owner == null ? core.newOwner() : options.owner,
                options.owner != null, listener);
    }

    /**
     * Returns a {@link java.util.concurrent.locks.Lock}, which belongs to the thread that takes it, and is reentrant.
     *
     * @return the lock; all of them with the same name and kind are one lock
     */
    public ThreadLock asLock() {
        return new ThreadLock(this, List.of(kind, limit, names));
    }

    /**
     * A body that returns something.
     *
     * @param <T> what it returns
     * @param <X> what it may throw
     */
    @FunctionalInterface
    public interface Body<T extends @Nullable Object, X extends Exception> {
        /**
         * Works under the lock.
         *
         * @param hold the hold, which is released afterwards
         * @return the result
         * @throws X as it likes
         */
        T apply(Hold hold) throws X;
    }

    /**
     * A body that returns nothing.
     *
     * @param <X> what it may throw
     */
    @FunctionalInterface
    public interface Work<X extends Exception> {
        /**
         * Works under the lock.
         *
         * @param hold the hold, which is released afterwards
         * @throws X as it likes
         */
        void accept(Hold hold) throws X;
    }

    /**
     * Acquires the lock, runs the body, and releases the lock however the body ends.
     *
     * @param <X> what the body may throw
     * @param body the work
     * @throws X what the body throws, with a {@link LockLostException} suppressed if the lock was lost
     * @throws InterruptedException as {@link #acquire} does
     * @throws LockLostException if the lock was lost but the body threw nothing
     * @throws AlreadyHeldException if the thread is in the body of a run or a call under the same lock
     */
    public <X extends Exception> void run(Work<X> body) throws X, InterruptedException {
        Rules.given(body, "body");
        this.<@Nullable Object, X>call(hold -> {
            body.accept(hold);
            return null;
        });
    }

    /**
     * Acquires the lock, calls the body, releases the lock however the body ends, and returns the result.
     *
     * @param <T> what the body returns
     * @param <X> what the body may throw
     * @param body the work
     * @return what the body returns
     * @throws X what the body throws
     * @throws InterruptedException as {@link #acquire} does
     */
    public <T extends @Nullable Object, X extends Exception> T call(Body<T, X> body) throws X, InterruptedException {
        Rules.given(body, "body");
        var hold = acquire();
        core.engine.run(() -> core.enterBody(hold.held(), Thread.currentThread()));
        // A close that waits for the body also waits for its release.
        try (hold) {
            return body.apply(hold);
        } finally {
            core.engine.run(() -> core.leaveBody(hold.held(), Thread.currentThread()));
        }
    }
}
