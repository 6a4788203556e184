package redislock;

import java.time.Duration;
import java.lang.ref.WeakReference;
import java.util.ArrayDeque;
import java.util.concurrent.CompletableFuture;

/** One hold, as its keeper sees it. It does not refer to the Hold, so that a forgotten Hold can be collected. */
final class Held implements Comparable<Held> {
    final Wanted wanted;
    final long token;
    final long grantedAt = Clock.now();
    final CompletableFuture<LockLostException> lostFuture = new CompletableFuture<>();
    private boolean renews;
    /** The time at which the hold ends at the latest (maxHold), and until which the lock stays taken (minHold). */
    final long overAt;
    private long parkedUntil;
    /** True while a renewal is in flight: a repeated one might undo a lease that was requested meanwhile. */
    boolean isRenewing;
    final ArrayDeque<Runnable> renewals = new ArrayDeque<>();
    /** The lease that was last requested, and the one that renewals ask for. */
    private long lease;
    private long next;
    /** Read by threads of users. */
    volatile long deadline;
    long renewAt = Clock.NEVER;
    long watchAt = Clock.after(Clock.now(), Rules.WATCH_AFTER);
    /** The shortest lease of an unanswered renewal, and the time until which that may reach the server. */
    private long stray;
    private long strayUntil;
    int failures;
    private Problem cause;
    /** True once it has ended; {@code lost} says why, unless it was released. */
    volatile boolean hasEnded;
    volatile LockLostException lost;
    boolean isLooking;
    boolean looksAgain;
    /** True once a lost hold was released on the server. */
    boolean isLeft;
    boolean hasBody;
    private boolean isForgotten;
    WeakReference<Hold> hold;
    long due;
    private final long number;

    Held(Core core, Wanted wanted, Acquire.Grant got, Lock.Options options) {
        this.wanted = wanted;
        token = got.token();
        renews = options.renews();
        overAt = options.maxHold() == 0 ? Clock.NEVER : Clock.after(got.sent(), options.maxHold());
        park(options.minHold());
        number = core.engine.number();
        countFrom(got.sent(), wanted.lease);
        next = Math.min(wanted.lease, options.lease());
    }

    @Override
    public int compareTo(Held other) {
        return due != other.due ? Long.compare(due, other.due) : Long.compare(number, other.number);
    }

    @Override
    public boolean equals(Object other) {
        return this == other;
    }

    @Override
    public int hashCode() {
        return Long.hashCode(number);
    }

    /** Starts a lease at the moment when it was requested. Returns how many renewals had failed before. */
    int countFrom(long sent, long asked) {
        long surely = asked;
        // An older renewal that arrives late may still shorten it, so only that shorter lease is certain.
        if (sent < strayUntil) {
            surely = Math.min(asked, stray);
        } else {
            strayUntil = 0;
        }
        lease = asked;
        deadline = Clock.after(sent, Rules.sure(surely)); // no lease is longer than maxHold leaves
        renewAt = renews && Clock.after(sent, asked) < overAt ? Clock.after(sent, Rules.renewal(surely)) : Clock.NEVER;
        int failed = failures;
        failures = 0;
        cause = null;
        return failed;
    }

    /**
     * Records that a lease is requested, which may be shorter than the one before. Until it is answered, the server may
     * have started it, so only the shorter lease is certain.
     */
    long mayCountFrom(long sent, long asked) {
        deadline = Math.min(deadline, Clock.after(sent, Rules.sure(asked)));
        if (renewAt != Clock.NEVER) {
            renewAt = Math.min(renewAt, Clock.after(sent, Rules.renewal(asked)));
        }
        return deadline;
    }

    /** Returns the lease that the next automatic renewal asks for. */
    long nextLease() {
        return Math.min(Math.max(next, parked()), Clock.left(overAt));
    }

    /** Has later renewals ask for this lease, which the server has granted. */
    void extended(long asked) {
        next = asked;
    }

    /** Keeps the lock taken at least this long from now, whatever was set before: 0 not at all. */
    void park(long least) {
        parkedUntil = least == 0 ? 0 : Clock.after(Clock.now(), least);
    }

    /** Returns the time for which the lock stays taken, whatever happens to the hold, in milliseconds, rounded up. */
    long parked() {
        return (Clock.left(parkedUntil) + Rules.MILLISECOND - 1) / Rules.MILLISECOND * Rules.MILLISECOND;
    }

    void mayComeLate(long asked) {
        stray = strayUntil == 0 ? asked : Math.min(stray, asked);
        strayUntil = Clock.after(Clock.now(), Rules.STRAY_TIME);
    }

    /** Schedules the retry of a failed renewal. */
    void renewAgain() {
        // It leaves a short lease time for more than one.
        long pause = Math.min(Rules.LONGEST_PAUSE, Math.max(Clock.left(deadline) / 4, Rules.PAUSE));
        long at = Clock.after(Clock.now(), pause);
        if (renews && at < overAt) {
            renewAt = at;
        }
    }

    void failed(Problem problem) {
        failures++;
        cause = problem;
    }

    void forget() {
        isForgotten = true;
        renews = false;
        renewAt = Clock.NEVER;
    }

    /** Returns the reason of a loss now; null if the deadline has not passed. Also called by threads of users. */
    LockLostException.Reason overdue() {
        if (hasEnded || Clock.now() < deadline) {
            return null;
        }
        if (isForgotten) {
            return LockLostException.Reason.FORGOTTEN;
        }
        boolean isMost = overAt != Clock.NEVER
                && Clock.after(Clock.now(), lease / Rules.DRIFT_PART + Rules.MARGIN + Rules.PAUSE) >= overAt;
        return isMost ? LockLostException.Reason.MAX_HOLD : LockLostException.Reason.DEADLINE;
    }

    Duration age() {
        return Duration.ofNanos(Clock.age(grantedAt));
    }

    LockLostException loss(LockLostException.Reason reason) {
        return new LockLostException(wanted.label(), token, reason, cause == null ? null : cause.exception());
    }

    long nextDue() {
        return Math.min(deadline, Math.min(renewAt, watchAt));
    }
}
