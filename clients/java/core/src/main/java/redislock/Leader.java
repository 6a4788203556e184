package redislock;

import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * Stands for election: the holder of its lock leads. Set the functions that you need, and call {@link #start}. When it
 * is deposed, it stands again, until it is closed.
 */
public final class Leader implements AutoCloseable {
    /** The work of a leader. */
    @FunctionalInterface
    public interface Work {
        /**
         * Does the work of the leader, in a thread of its own, which is interrupted when the leader is deposed or
         * resigns. A leader that resigns keeps the lock until the work has ended, but renews it no more. If the work
         * returns earlier, the leader continues to lead.
         *
         * @param hold the leader's hold
         * @throws Exception to release the lock and end the candidacy; after a loss it stands again all the same
         */
        void lead(Hold hold) throws Exception;
    }

    private final Lock lock;
    private final Core core;
    private volatile Work elected = hold -> { };
    private volatile Consumer<LockLostException> deposed = lost -> { };
    private volatile Consumer<Throwable> failed = failure -> { };
    private volatile Hold leads;
    private final AtomicReference<Thread> standing = new AtomicReference<>();
    private volatile Thread working;
    private final CompletableFuture<Void> resigns = new CompletableFuture<>();

    Leader(Lock lock) {
        Rules.check(lock.isExclusive(), "a leader needs an exclusive lock: of readers or permits there may be several");
        Rules.check(!lock.hasMinHold(), "minHold must not be set for leaders: the next leader waits only for the lease");
        this.lock = lock;
        core = lock.core();
    }

    /**
     * Sets the work of the leader.
     *
     * @param work runs while it leads
     * @return this
     */
    public Leader onElected(Work work) {
        elected = Rules.given(work, "work");
        return this;
    }

    /**
     * Sets a function that is called when the leader loses the lock, but not when it resigns.
     *
     * @param hears takes the loss
     * @return this
     */
    public Leader onDeposed(Consumer<LockLostException> hears) {
        deposed = Rules.given(hears, "onDeposed");
        return this;
    }

    /**
     * Sets a function that is called when the candidate cannot ask for the lock, for example because no server answers.
     * It keeps trying. The function is called once for consecutive failures of the same kind, and also with the
     * exception that the work has thrown.
     *
     * @param hears takes the failure
     * @return this
     */
    public Leader onError(Consumer<Throwable> hears) {
        failed = Rules.given(hears, "onError");
        return this;
    }

    /**
     * Returns the hold while it leads.
     *
     * @return empty if it does not lead
     */
    public Optional<Hold> hold() {
        var hold = leads;
        return hold == null || hold.remaining().isZero() ? Optional.empty() : Optional.of(hold);
    }

    /**
     * Stands for election, in a daemon thread.
     *
     * @return this
     */
    public Leader start() {
        var thread = Engine.thread(this::stand, "redislock-leader-" + lock.label());
        if (!resigns.isDone() && standing.compareAndSet(null, thread)) {
            thread.start();
        }
        return this;
    }

    private void stand() {
        Class<?> told = null;
        while (!resigns.isDone()) {
            try {
                var hold = lock.acquire();
                told = null;
                if (!lead(hold)) {
                    return;
                }
            } catch (InterruptedException | LocksClosedException e) {
                return;
            } catch (LockException e) {
                if (e.getClass() != told) {
                    told = e.getClass();
                    core.engine.log(Level.WARNING, "could not stand for election, will retry: " + e.getMessage());
                    core.engine.tell(() -> failed.accept(e));
                }
                Core.await(resigns, Duration.ofNanos(Rules.LONGEST_PAUSE));
            }
        }
    }

    /** Leads until it is deposed or resigns. Returns true if it stands again. */
    private boolean lead(Hold hold) {
        var ended = new CompletableFuture<Throwable>();
        var threw = new CompletableFuture<Object>();
        var thread = Engine.thread(() -> {
            Throwable thrown = null;
            try {
                elected.lead(hold);
            } catch (Exception | Error e) {
                thrown = e;
                threw.complete(e);
            }
            ended.complete(thrown);
        }, "redislock-leads-" + lock.label());
        leads = hold;
        working = thread;
        core.engine.run(() -> core.enterBody(hold.held(), thread));
        thread.start();
        var lost = hold.lost();
        try {
            CompletableFuture.anyOf(lost, threw, resigns).get();
        } catch (InterruptedException | ExecutionException e) {
            resigns.complete(null); // only its close interrupts this thread
        }
        leads = null;
        // Work that checks the hold can throw its loss before another thread has completed the future.
        boolean isLost = lost.isDone() || hold.held().lost != null;
        boolean hasFailed = threw.isDone() && !isLost && !resigns.isDone();
        boolean isHeld = core.engine.get(() -> core.resign(hold.held()));
        thread.interrupt();
        var loss = lost.getNow(hold.held().lost);
        if (loss != null && !resigns.isDone()) {
            core.engine.tell(() -> deposed.accept(loss));
        }
        var thrown = ended.join();
        Thread.interrupted(); // close() interrupts only a candidate that waits
        var released = new CompletableFuture<Void>();
        core.engine.run(() -> {
            if (isHeld) {
                core.giveBack(hold.held(), (lostNow, problem) -> released.complete(null));
            } else {
                core.release(hold.held(), (lostNow, problem) -> released.complete(null));
            }
            core.leaveBody(hold.held(), thread);
        });
        if (isHeld) {
            Core.await(released, Duration.ofNanos(Rules.RELEASE_TIME + Rules.ATTEMPT));
        }
        if (hasFailed) {
            core.engine.log(Level.ERROR, "the work of the leader of '" + lock.label() + "' failed, so the candidacy ends: "
                    + thrown);
            core.engine.tell(() -> failed.accept(thrown));
        }
        return !hasFailed && !resigns.isDone();
    }

    /** Resigns, and waits until the lock is free and the work has ended; if the work itself calls it, it does not wait. */
    @Override
    public void close() {
        resigns.complete(null);
        var thread = standing.get();
        if (thread == null || Thread.currentThread() == working) {
            return;
        }
        if (leads == null) {
            thread.interrupt();
        }
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
