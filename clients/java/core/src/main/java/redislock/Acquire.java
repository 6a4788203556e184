package redislock;

import java.lang.System.Logger.Level;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Function;

/** One acquire, from its call to its grant or end. Its methods are steps of the engine. */
final class Acquire {
    /** A grant, and the time when its request was sent. */
    record Grant(long token, long sent) {}

    private final Core core;
    private final Engine engine;
    final Wanted wanted;
    final long until;
    private final boolean once;
    private final long arrived;
    private final long began = Clock.now();
    /** Takes the grant, or the reason why there is none; both are null if another owner held the lock. */
    private final BiConsumer<Grant, Problem> then;
    private boolean isOver;
    private boolean hasWaited;
    private Request request;
    private Engine.Timer timer;
    private Engine.Timer logging;
    private BlockedWait blocked;
    private Lines.Place place;
    private long lease;
    private int times;
    private long behind;

    Acquire(Core core, Wanted wanted, long until, boolean once, BiConsumer<Grant, Problem> then) {
        this.core = core;
        this.engine = core.engine;
        this.wanted = wanted;
        this.until = until;
        this.once = once;
        this.then = then;
        arrived = engine.number();
    }

    void start() {
        core.acquires.add(this);
        if (!once) {
            logging = engine.in(Rules.OWN_WAIT, this::logOwnWait);
        }
        core.errands.callOff(wanted);
        again();
    }

    /** Ends it from outside: the caller no longer wants it, or the Locks are closed. */
    void end(Problem problem) {
        finish(null, problem);
    }

    boolean isOver() {
        return isOver;
    }

    long began() {
        return began;
    }

    private void again() {
        if (once) {
            attempt(this::settle);
        } else if (wanted.names.size() > 1) {
            blocked = new BlockedWait(core, this);
            blocked.begin();
        } else {
            place = core.lines.join(wanted.name(), arrived, wanted.isNamed);
            lease = wanted.lease;
            times = 0;
            behind = 0;
            waitInLine();
        }
    }

    boolean isLate() {
        return once || Clock.left(until) <= 0;
    }

    /** Takes the end of an attempt. If the reply took as long as the lease, it asks again while the wait lasts. */
    void settle(Grant got, Problem problem) {
        if (isOver) {
            return;
        }
        leaveLine();
        if (got == null || Clock.age(got.sent()) < Rules.sure(wanted.lease)) {
            finish(got, problem);
        } else if (isLate()) {
            finish(null, new Problem(Problem.Kind.LOST, wanted.label(), "", null));
        } else {
            again();
        }
    }

    /** Asks once more without waiting: only such a request learns that the server is in quarantine. */
    void last() {
        leaveLine();
        attempt((got, problem) -> {
            boolean tells = problem != null && problem.kind() == Problem.Kind.QUARANTINE;
            settle(got, tells ? problem : null);
        });
    }

    private void leaveLine() {
        if (place != null) {
            place.leave();
            place = null;
        }
    }

    private void finish(Grant got, Problem problem) {
        if (isOver) {
            return;
        }
        isOver = true;
        core.acquires.remove(this);
        if (request != null) {
            request.cancel();
        }
        engine.cancel(timer);
        engine.cancel(logging);
        leaveLine();
        if (blocked != null) {
            blocked.leave();
        }
        if (got == null && wanted.sent) {
            giveWay(problem);
        }
        then.accept(got, problem);
    }

    /** Gives up what a request may have got. If it got nothing, its owner keeps what it holds by another request. */
    private void giveWay(Problem problem) {
        boolean isClear = !wanted.doubtful;
        if (isClear && problem == null && once) {
            return; // nothing is left
        }
        boolean gotNothing = isClear && (problem == null || problem.grantedNothing() || !wanted.mayBeGranted());
        core.errands.abandon(wanted, gotNothing ? Rules.NOBODYS : 0);
    }

    /** Returns the time until which a request is repeated. */
    private long requestsUntil() {
        return Clock.after(until, Rules.WAIT_MARGIN);
    }

    private void ask(List<String> words, Function<Link, List<List<String>>> before,
            BiConsumer<Request.Answer, Problem> answered) {
        request = new Request(core.servers, wanted.name(), words, requestsUntil(), wanted, answered).before(before);
        request.start();
    }

    void attempt(BiConsumer<Grant, Problem> answered) {
        ask(wanted.acquire(wanted.lease, null, 0), null, (got, problem) -> answered.accept(grantOf(got), problem));
    }

    private static Grant grantOf(Request.Answer got) {
        return got != null && got.reply() instanceof Long token ? new Grant(token, got.sent()) : null;
    }

    /** Keeps a queue position over the shared connection, and asks when the server pushes a change. */
    private void waitInLine() {
        if (isOver) {
            return;
        }
        place.clear();
        if (times > 0 && isLate()) {
            last();
            return;
        }
        long mayNot = blockedFor();
        if (mayNot > 0) {
            waits();
            place.sleep(Math.min(Clock.left(until), mayNot), this::waitInLine);
            return;
        }
        behind = 0;
        boolean watches = times > 0;
        ask(wanted.acquire(lease, "QUEUE", core.keep), link -> {
            place.sends();
            return watches ? place.watch(link) : null;
        }, this::queued);
    }

    /** Returns the time for which it may not ask. */
    private long blockedFor() {
        return switch (place.mayAsk()) {
            case NOT_YET -> Rules.LONG_BLOCK;
            case AFTER_OTHERS -> {
                // A waiter that is not called in time asks anyway, because its position may lapse.
                behind = behind == 0 ? Clock.now() : behind;
                yield Clock.left(behind + core.keep / Rules.ASKS_IN_KEEP);
            }
            case ASK -> 0;
        };
    }

    private void queued(Request.Answer got, Problem problem) {
        if (problem != null) {
            bear(problem);
            return;
        }
        place.sends(); // where the server pushes nothing
        place.asked(got.number(), got.link());
        var grant = grantOf(got);
        if (grant == null) {
            waitOn();
        } else if (lease >= wanted.lease) {
            settle(grant, null);
        } else {
            begin(grant.token(), Clock.after(grant.sent(), Rules.sure(lease)), (had, failed) -> {
                if (had != null || failed != null) {
                    settle(had, failed);
                } else {
                    waitOn();
                }
            });
        }
    }

    private void waitOn() {
        if (isOver) {
            return;
        }
        if (isLate()) {
            last();
            return;
        }
        waits();
        times = Math.min(times + 1, 3);
        lease = Math.min(lease, wanted.firstLease);
        long left = Clock.left(until);
        if (!place.isFirst()) {
            // The waiter ahead calls it earlier, so all ask in their order.
            place.sleep(Math.min(left, 2 * core.keep / Rules.ASKS_IN_KEEP), this::waitInLine);
        } else if (place.isWatched()) {
            place.sleep(Math.min(left, core.keep / Rules.ASKS_IN_KEEP), this::waitInLine);
        } else if (times > 2) {
            place.sleep(Math.min(left, Rules.POLL), this::waitInLine); // the server does not push
        } else {
            engine.soon(this::waitInLine);
        }
    }

    void waits() {
        times = Math.max(times, 1);
        if (!hasWaited) {
            hasWaited = true;
            core.tell(wanted.listener, listener -> listener.waiting(wanted.label()));
        }
    }

    /** Waits after temporary errors, learns the server's limits from others, and passes on all other errors. */
    private void bear(Problem problem) {
        long most = Rules.longestWait(problem.text());
        if (problem.kind() == Problem.Kind.QUARANTINE && problem.left() < Clock.left(until)) {
            core.servers.isRefused(wanted, problem);
            // The address may lead to another server before the quarantine ends.
            sleep(Math.min(Rules.KEEP, problem.left() + Rules.PAUSE), this::waitInLine);
        } else if (most >= 0) {
            core.keep = Math.min(core.keep, most); // another request may have learned it first
            engine.soon(this::waitInLine);
        } else {
            settle(null, problem);
        }
    }

    void sleep(long duration, Runnable next) {
        timer = engine.in(duration, next);
    }

    /**
     * Renews once after a wait, and counts from that; both are null if the lock was already lost, or no server answers.
     */
    void begin(long token, long most, BiConsumer<Grant, Problem> began) {
        boolean wasDoubtful = wanted.doubtful;
        wanted.doubtful = true; // it was granted, whatever the reply
        core.renewed(wanted, wanted.lease, token, most, null, (sent, isLate, problem) -> {
            if (isOver) {
                return;
            }
            if (problem != null) {
                began.accept(null, problem.kind() == Problem.Kind.CONNECTION_FAILED ? null : problem);
                return;
            }
            wanted.doubtful = wasDoubtful;
            began.accept(sent == 0 ? null : new Grant(token, sent), null);
        });
    }

    private void logOwnWait() {
        long since = core.keeper.heldSince(wanted.names);
        if (since != Clock.NEVER && core.mayLog(wanted)) {
            engine.log(Level.WARNING, "waiting for lock '" + wanted.label() + "', which the same Locks has held for "
                    + Rules.text(Clock.age(since)) + ": a task that acquires a lock twice waits for itself");
        }
        logging = engine.in(Rules.LONG_WAIT - Rules.OWN_WAIT, () -> logWait(Rules.LONG_WAIT));
    }

    private void logWait(long waited) {
        logging = engine.in(waited, () -> logWait(2 * waited));
        if (core.mayLog(wanted)) {
            core.holder(wanted, holder -> engine.log(Level.WARNING, "waiting for lock '" + wanted.label() + "' for "
                    + Rules.text(waited) + holder));
        }
    }
}
