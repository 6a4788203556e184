package redislock;

import java.lang.ref.Reference;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/**
 * One lock, or several that were acquired together. Any thread may check, extend and release it. Keep a reference to it
 * until you release it: a Hold without references is no longer renewed, and ends with its lease.
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
     * Returns the fencing token, which is higher than those of all earlier holders. Pass it to the resource that you
     * write to, and have that reject a lower token: {@code UPDATE ... SET fence = ? WHERE id = ? AND fence <= ?}.
     *
     * @return the token
     */
    public long token() {
        return held.token;
    }

    /**
     * Returns the owner, as LOCK.INFO shows it.
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
     * Returns how long the lock is certainly held, by the clock of this machine. Renewals extend it in time.
     *
     * @return the time; zero if the hold has ended
     */
    public Duration remaining() {
        return held.hasEnded ? Duration.ZERO : Duration.ofNanos(Clock.left(held.deadline));
    }

    /**
     * Throws unless the lock is certainly held, by the clock of this machine. It asks no server.
     *
     * @throws LockLostException if the lock was lost or released
     */
    public void check() {
        var ended = ended();
        if (ended != null) {
            throw ended;
        }
    }

    boolean isHeld() {
        return ended() == null;
    }

    /** Returns the reason why it is not certainly held; null if it is. */
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
     * Returns the reason for the loss.
     *
     * @return empty if the lock was not lost
     */
    public Optional<LockLostException.Reason> reason() {
        var ended = ended();
        return ended == null || held.lost == null ? Optional.empty() : Optional.of(ended.reason());
    }

    /**
     * Returns a future that completes when the lock is lost, with the exception that says why. It never completes if
     * the lock is released before that. One thread of the library completes all of these futures, so run long work in
     * your own executor.
     *
     * @return a new future
     */
    public CompletableFuture<LockLostException> lost() {
        return held.lostFuture.copy();
    }

    /**
     * Starts a new lease now, and later renewals use the same length. After a {@link ConnectionFailedException} either
     * lease may be in force on the server, so the hold assumes the shorter one.
     *
     * @param lease 100 ms or more
     * @throws InterruptedException if the thread is interrupted before the answer
     * @throws LockLostException if the lock was lost or released
     */
    public void extend(Duration lease) throws InterruptedException {
        extend(lease, -1);
    }

    private void extend(Duration lease, long least) throws InterruptedException {
        long nanos = Rules.checkLease("lease", lease);
        check();
        long left = Clock.left(held.overAt);
        Rules.check(nanos <= left, "lease must be %s or less, because of maxHold, not %s", Rules.text(left), lease);
        core.engine.<Void>ask(held.wanted.label(), then ->
                core.renew(held, nanos, least, problem -> then.accept(null, problem)));
        check(); // it may have ended meanwhile
    }

    /**
     * Starts a new lease now, as {@link #extend(Duration)} does, and keeps the lock taken at least for {@code minHold}
     * from now. This replaces the value of {@link Lock#minHold}. Not for readers and leaders.
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
        extend(lease, least);
    }

    /**
     * Releases the lock, and waits for the server's reply, 5 s at most. An interrupt ends the wait for the reply but
     * not the release, and the thread keeps its interrupt flag. A second release does nothing.
     *
     * @throws LockLostException if the lock was lost
     * @throws ConnectionFailedException if no server answered: the release is repeated in the background
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
     * Releases the lock without waiting. The future fails with the exception that {@link #release} would throw.
     *
     * @return a future that completes when the server has replied
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
     * Releases the lock, as {@link #release} does. If no server answers, the release is repeated in the background, and
     * close does not throw.
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
