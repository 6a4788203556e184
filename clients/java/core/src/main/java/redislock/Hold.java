package redislock;

import java.lang.ref.Reference;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/**
 * One lock that is held, or several that were taken together. Any thread may check, extend and release it. Keep it until it
 * is released: one that the program drops is not renewed, and ends with its lease.
 */
public final class Hold implements AutoCloseable {
    private final Core core;
    private final Held held;

    Hold(Core core, Held held) {
        this.core = core;
        this.held = held;
    }

    Held held() {
        return held;
    }

    /**
     * Returns the fencing token: higher than those of all earlier holders. Hand it to what you write to, so that it refuses a
     * late writer: {@code UPDATE ... SET fence = ? WHERE id = ? AND fence <= ?}.
     *
     * @return the token
     */
    public long token() {
        return held.token;
    }

    /**
     * Returns who holds, as LOCK.INFO shows it to an operator.
     *
     * @return the owner
     */
    public String owner() {
        return held.wanted.owner;
    }

    /**
     * Returns the names of the locks, without the prefix.
     *
     * @return one name, or several
     */
    public List<String> names() {
        int prefix = core.options.prefix.length();
        return held.wanted.names.stream().map(name -> name.substring(prefix)).toList();
    }

    /**
     * Returns for how long the hold is sure to last, by this machine's own clock. It is renewed before that ends.
     *
     * @return nothing if it has ended
     */
    public Duration remaining() {
        return held.hasEnded ? Duration.ZERO : Duration.ofNanos(Clock.left(held.deadline));
    }

    /**
     * Returns if the lock is surely held, by this machine's own clock. It asks no server.
     *
     * @throws LockLostException if the lock was lost or released
     */
    public void check() {
        var ended = ended();
        if (ended != null) {
            throw ended;
        }
    }

    /** Returns why it is not surely held; null if it is. */
    private LockLostException ended() {
        if (held.overdue() != null) {
            core.engine.run(() -> {
                var reason = held.overdue();
                if (reason != null) {
                    core.keeper.lose(held, reason);
                }
            });
        }
        if (!held.hasEnded) {
            return null;
        }
        var lost = held.lost;
        return lost != null ? new LockLostException(held.wanted.label(), held.token, lost.reason(), lost.getCause())
                : new LockLostException(held.wanted.label(), held.token, LockLostException.Reason.RELEASED, null);
    }

    /**
     * Returns how the loss was noticed.
     *
     * @return empty if the lock was not lost
     */
    public Optional<LockLostException.Reason> reason() {
        var ended = ended();
        return ended == null || held.lost == null ? Optional.empty() : Optional.of(ended.reason());
    }

    /**
     * Returns a future that completes when the lock is lost, with the exception that says why. It never completes if the lock
     * is released before. One thread of the library completes all such futures: hand long work to an executor of your own.
     *
     * @return a future of the caller's own
     */
    public CompletableFuture<LockLostException> lost() {
        return held.lostFuture.copy();
    }

    /**
     * Begins a lease from now, and later renewals ask for it, too. After a {@link ConnectionFailedException} it is not known
     * which lease the server has: the hold counts on the shorter one.
     *
     * @param lease 100 ms or more
     * @throws InterruptedException if the thread is interrupted before the answer
     * @throws LockLostException if the lock was lost or released
     */
    public void extend(Duration lease) throws InterruptedException {
        long nanos = Rules.checkLease("lease", lease);
        check();
        long left = Clock.left(held.overAt);
        Rules.check(nanos <= left, "lease must be %s or less, for maxHold bounds this hold, not %s", Rules.text(left), lease);
        core.engine.<Void>ask(held.wanted.label(), then -> core.renew(held, nanos, problem -> then.accept(null, problem)));
        check(); // it may have ended meanwhile
    }

    /**
     * Begins a lease from now, as {@link #extend(Duration)} does, and keeps the lock taken at least so long from now as
     * {@code minHold} says, in place of what {@link Lock#minHold} said. Not for readers and leaders.
     *
     * @param lease 100 ms or more
     * @param minHold 0, or from 100 ms to the lease
     * @throws InterruptedException if the thread is interrupted before the answer
     * @throws LockLostException if the lock was lost or released
     */
    public void extend(Duration lease, Duration minHold) throws InterruptedException {
        Rules.check(held.wanted.kind != Wanted.Kind.SHARED, Lock.NO_MIN_HOLD);
        long least = Rules.given(minHold, "minHold").isZero() ? 0 : Rules.checkLease("minHold", minHold);
        Rules.check(minHold.compareTo(Rules.given(lease, "lease")) <= 0, "minHold must be the lease (%s) or less, not %s",
                lease, minHold);
        check();
        core.engine.run(() -> held.park(least));
        extend(lease);
    }

    /**
     * Gives the lock up, and waits for the server's answer, 5 s at most. An interrupt ends the wait for the answer and not the
     * release, and the thread keeps its flag. A second release does nothing.
     *
     * @throws LockLostException if the lock was lost
     * @throws ConnectionFailedException if no server answered: the background continues the release
     */
    public void release() {
        var done = releaseNow();
        Core.await(done, Duration.ofNanos(Rules.RELEASE_TIME + Rules.ATTEMPT));
        if (done.isCompletedExceptionally()) {
            try {
                done.join();
            } catch (CompletionException e) {
                throw (LockException) e.getCause();
            }
        }
        Reference.reachabilityFence(this);
    }

    /**
     * Gives the lock up, and waits for nothing. The future fails with what {@link #release} throws, as its cause.
     *
     * @return done once the server has answered
     */
    public CompletableFuture<Void> releaseAsync() {
        return releaseNow().thenApplyAsync(done -> done, core.engine.completing);
    }

    CompletableFuture<Void> releaseNow() {
        var done = new CompletableFuture<Void>();
        core.engine.run(() -> core.release(held, (lost, problem) -> {
            if (lost == null && problem == null) {
                done.complete(null);
            } else {
                done.completeExceptionally(lost != null ? lost : problem.exception());
            }
        }));
        return done;
    }

    /**
     * Gives the lock up, as {@link #release} does. What no server has answered, the background continues without a word.
     *
     * @throws LockLostException if the lock was lost
     */
    @Override
    public void close() {
        try {
            release();
        } catch (LockLostException e) {
            throw e;
        } catch (LockException e) {
            return; // the lease ends it at the latest
        }
    }
}
