package redislock;

import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** Passes the outcome of an acquire to its caller. */
final class Waiting {
    private final Core core;
    private final Lock.Options options;
    private final String label;
    private final LockListener listener;
    Acquire acquire;
    /** The hold; null if another owner held the lock. */
    private final CompletableFuture<Hold> end = new CompletableFuture<>();
    private Problem problem;
    private Hold hold;
    private final boolean isListener;

    Waiting(Core core, Lock.Options options, String label, LockListener listener) {
        this.core = core;
        this.options = options;
        this.listener = listener;
        this.label = label;
        isListener = core.engine.isInListener();
        core.tell(listener, hears -> hears.requested(label));
    }

    /** Takes the outcome: a step of the engine. */
    void done(Acquire.Grant got, Problem why) {
        var waited = Duration.ofNanos(Clock.age(acquire.began()));
        if (got != null) {
            var held = new Held(core, acquire.wanted, got, options);
            hold = new Hold(core, held);
            core.keeper.register(held, hold);
            core.tell(listener, hears -> hears.granted(label, waited));
        } else if (why == null) {
            core.tell(listener, hears -> hears.timedOut(label, waited));
        } else {
            problem = why.named(label, acquire.wanted.lease);
            var failure = why.kind() == Problem.Kind.CANCELLED ? new CancellationException(why.text()) : problem.exception();
            core.tell(listener, hears -> hears.failed(label, waited, failure));
        }
        core.deliver(isListener, () -> end.complete(hold));
    }

    Problem timedOut() {
        return new Problem(Problem.Kind.TIMEOUT, "", "could not acquire lock '" + label + "' within "
                + Rules.text(Clock.age(acquire.began())) + ": another owner holds it", null);
    }

    /** Waits for the outcome. An interrupt ends the wait, and a grant that arrives at the same time is released. */
    Hold get() throws InterruptedException {
        try {
            var granted = end.get();
            if (problem != null) {
                throw problem.exception();
            }
            return granted;
        } catch (InterruptedException e) {
            cancel();
            throw e;
        } catch (ExecutionException e) {
            throw new AssertionError(e); // it is only ever completed
        }
    }

    /** Waits for the outcome. An interrupt does not end the wait, and the thread keeps its flag. */
    Hold join() {
        var granted = end.join();
        if (problem != null) {
            throw problem.exception();
        }
        return granted;
    }

    private void cancel() {
        core.engine.run(() -> {
            acquire.end(new Problem(Problem.Kind.CANCELLED, label, "the wait was cancelled", null));
            if (hold != null) {
                hold.releaseNow();
            }
        });
    }

    /** The future that the caller of acquireAsync gets. */
    static final class Given extends CompletableFuture<Hold> {
        private volatile Waiting waiting;

        void follow(Waiting of) {
            waiting = of;
            of.end.thenAcceptAsync(granted -> {
                if (of.problem != null) {
                    completeExceptionally(of.problem.exception());
                } else if (granted == null) {
                    completeExceptionally(of.timedOut().exception());
                } else if (!complete(granted)) {
                    granted.releaseNow(); // it was cancelled
                }
            }, of.core.engine.completing);
        }

        @Override
        public boolean cancel(boolean mayInterruptIfRunning) {
            boolean isCancelled = super.cancel(mayInterruptIfRunning);
            var of = waiting;
            if (isCancelled && of != null) {
                of.cancel();
            }
            return isCancelled;
        }

        @Override
        public <U> CompletableFuture<U> newIncompleteFuture() {
            return new CompletableFuture<>();
        }
    }
}
