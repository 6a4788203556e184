package redislock;

import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

/** Acquires, renews and releases, on one server, one primary, or one cluster. Its methods are steps of the engine. */
final class Core {
    /**
     * Takes the time at which a renewed lease starts, 0 if the lock is lost, and whether an older request may arrive
     * late.
     */
    interface Renewed {
        void done(long sent, boolean mayComeLate, Problem problem);
    }

    /** How long a close on an interrupted thread waits for the server. */
    private static final Duration MOMENT = Duration.ofNanos(Rules.LONGEST_PAUSE);

    final Engine engine = new Engine();
    final Locks.Builder options;
    final Servers servers;
    final Lines lines;
    final Keeper keeper = new Keeper(this);
    final Errands errands = new Errands(this);
    final Set<Acquire> acquires = new LinkedHashSet<>();
    /** The waits for several locks that have no connection yet, in their order, and the number that have one. */
    final ArrayDeque<BlockedWait> blocking = new ArrayDeque<>();
    int blockingNow;
    /** The time for which a queue position is kept, and the longest wait: as long as the server allows. */
    long keep = Rules.KEEP;
    long longestBlock = Rules.LONG_BLOCK;
    volatile boolean isClosing;
    /** The threads in a body of run or call, with the holds that they work under, the newest last. */
    private final Map<Thread, ArrayDeque<Held>> bodies = new HashMap<>();
    /** Counts releases and renewals that are in flight. */
    private int working;
    private final Map<String, Long> logged = new HashMap<>();
    private final List<CompletableFuture<Void>> idle = new ArrayList<>();
    private Thread closer;
    /**
     * The locks that each thread has acquired as a ThreadLock. No thread refers to the map, so a thread pool retains
     * nothing of an undeployed application. The keeper forgets threads that have ended, whose locks then end with their
     * leases.
     */
    final Map<Thread, Map<List<Object>, ThreadLock.Taken>> takenByThread = new ConcurrentHashMap<>();

    Core(Locks.Builder options, Servers.Config config) {
        this.options = options;
        lines = new Lines(engine, options.maxQueued);
        servers = new Servers(engine, config, options.serverTimeout, names -> {
            lines.changed(names);
            keeper.changed(names);
        }, server -> options.listener.reconnected(server));
    }

    /**
     * Returns the listener of an acquire that begins. This is not a step of the engine, because it calls the user's
     * code.
     */
    LockListener listener(String label) {
        try {
            return Objects.requireNonNull(options.listener.forAcquire(label), "forAcquire returned null");
        } catch (RuntimeException e) {
            Engine.LOGGER.log(Level.WARNING, "a listener failed", e);
            return options.listener;
        }
    }

    void tell(LockListener listener, Consumer<LockListener> what) {
        if (listener != Locks.Builder.SILENT) {
            engine.tell(() -> what.accept(listener));
        }
    }

    /** Lets a caller continue once the listener has received all earlier events, unless the caller is the listener. */
    void deliver(boolean isListener, Runnable complete) {
        if (isListener || options.listener == Locks.Builder.SILENT) {
            complete.run();
        } else {
            engine.tell(complete);
        }
    }

    /** Returns a new, unique owner that identifies the process for operators. */
    String newOwner() {
        return options.label + ":" + UUID.randomUUID();
    }

    /** Admits waits to connections of their own, up to the limit. */
    void enterBlocking() {
        while (blockingNow < options.maxQueued && !blocking.isEmpty()) {
            blockingNow++;
            blocking.poll().enter(true);
        }
    }

    /** Admits the waits of an owner that the program names to a connection each: it holds a lock from now on. */
    void enterHolding(Wanted holding) {
        for (var wait : holding.isNamed ? List.copyOf(blocking) : List.<BlockedWait>of()) {
            if (wait.isOf(holding)) {
                blocking.remove(wait);
                wait.enter(false);
            }
        }
    }

    /** Renews the leases of all names. */
    void renewed(Wanted wanted, long lease, long token, long until, Consumer<Problem> onFailed, Renewed then) {
        var got = new ArrayList<Request.Answer>();
        var problems = new ArrayList<Problem>();
        for (String name : wanted.names) {
            new Request(servers, name, wanted.renew(name, lease, token), until, null, (answer, problem) -> {
                if (problem == null) {
                    got.add(answer);
                } else {
                    problems.add(problem);
                }
                if (got.size() + problems.size() < wanted.names.size()) {
                    return;
                }
                if (!problems.isEmpty()) {
                    then.done(0, false, problems.get(0));
                    return;
                }
                boolean isHeld = got.stream().allMatch(each -> Long.valueOf(1).equals(each.reply()));
                then.done(isHeld ? got.stream().mapToLong(Request.Answer::sent).min().orElse(0) : 0,
                        got.stream().anyMatch(Request.Answer::mayComeLate), null);
            }).onFailed(onFailed).start();
        }
    }

    /**
     * Renews the hold with its own lease, or loses it. {@code then} takes null if it was renewed or lost.
     *
     * @param asked a new lease; 0 for its own
     * @param least a new minHold; -1 for its own
     */
    void renew(Held held, long asked, long least, Consumer<Problem> then) {
        if (held.isRenewing) {
            held.renewals.add(() -> renew(held, asked, least, then));
            return;
        }
        if (held.hasEnded) {
            then.accept(null);
            return;
        }
        held.isRenewing = true;
        working++;
        long lease = asked == 0 ? held.nextLease() : least < 0 ? Math.max(asked, held.parked()) : asked;
        long until = held.mayCountFrom(Clock.now(), lease);
        keeper.refile(held);
        renewed(held.wanted, lease, held.token, until, problem -> renewalFailed(held, problem), (sent, isLate, problem) -> {
            if (isLate) {
                held.mayComeLate(lease);
            }
            if (problem == null ? sent == 0 : problem.isOverwritten()) {
                keeper.lose(held, LockLostException.Reason.RENEWAL);
                problem = null;
            } else if (problem != null) {
                if (!problem.isRefusal()) {
                    held.mayComeLate(lease);
                }
                held.renewAgain(); // it may pass, as a lack of replicas does; the deadline ends it if it does not
                problem = problem.named(held.wanted.label(), lease);
            } else {
                if (asked != 0) {
                    held.extended(asked);
                }
                if (least >= 0) {
                    held.park(least);
                }
                int failures = held.countFrom(sent, lease);
                if (failures > 0) {
                    engine.log(Level.WARNING, "renewed lock '" + held.wanted.label() + "' after " + failures
                            + " failed renewals");
                }
            }
            keeper.refile(held);
            working--;
            held.isRenewing = false;
            var next = held.renewals.poll();
            if (next != null) {
                engine.soon(next);
            }
            checkIdle();
            then.accept(problem);
        });
    }

    private void renewalFailed(Held held, Problem problem) {
        if (held.hasEnded) {
            return;
        }
        held.failed(problem);
        if (held.failures == 1) {
            engine.log(Level.WARNING, "could not renew lock '" + held.wanted.label() + "', will retry: "
                    + problem.text());
        }
        tell(held.wanted.listener, listener -> listener.renewalFailed(held.wanted.label(), problem.exception()));
    }

    /**
     * Asks whether the token is that of a live hold. Only a primary's no counts: a replica may lack its primary's
     * holds. So after a no, it sends a release of nothing, which a replica refuses: then the primary is looked up
     * again.
     */
    void fence(String name, long token, BiConsumer<Boolean, Problem> then) {
        long until = Clock.after(Clock.now(), 2 * Rules.ATTEMPT);
        var words = List.of("LOCK.FENCE", name, Long.toString(token));
        request(name, words, until, (got, problem) -> {
            if (problem != null || isOne(got)) {
                then.accept(problem == null, problem);
                return;
            }
            var write = List.of("LOCK.RELEASE", name, newOwner(), "TOKEN", Long.toString(Rules.NOBODYS));
            request(name, write, until, (wrote, refused) -> {
                if (refused != null && !refused.isRefusal()) {
                    then.accept(false, refused);
                } else {
                    request(name, words, until, (again, failed) -> then.accept(failed == null && isOne(again), failed));
                }
            });
        });
    }

    private static boolean isOne(Request.Answer got) {
        return Long.valueOf(1).equals(got.reply());
    }

    private void request(String name, List<String> words, long until, BiConsumer<Request.Answer, Problem> then) {
        new Request(servers, name, words, until, null, then).start();
    }

    /** Asks for the holders and the waiters of the lock: null if there are none. */
    void info(String name, BiConsumer<LockInfo, Problem> then) {
        request(name, List.of("LOCK.INFO", name), Clock.after(Clock.now(), 2 * Rules.ATTEMPT), (got, problem) ->
                then.accept(problem == null && got.reply() instanceof Map<?, ?> fields ? LockInfo.of(fields) : null, problem));
    }

    /** Asks for the module's version, if a primary has the module and this user may acquire locks. */
    void version(BiConsumer<String, Problem> then) {
        String name = options.prefix + "redislock:ping";
        var words = List.of("LOCK.FENCE", name, Long.toString(Rules.NOBODYS));
        new Request(servers, name, words, Clock.after(Clock.now(), Rules.WAIT_MARGIN), null, (got, problem) -> {
            long version = problem == null ? LockInfo.version(got.reply()) : 0;
            boolean isMissing = problem == null && version == 0;
            then.accept(LockInfo.shown(version), isMissing ? Problem.of("ERR unknown command LOCK.ACQUIRE") : problem);
        }).pings().start();
    }

    /** Releases the hold. If a server does not answer in time, the release continues in the background. */
    void release(Held held, BiConsumer<LockLostException, Problem> then) {
        if (!keeper.finish(held, null)) {
            var lost = held.lost;
            if (lost != null && !held.isLeft) {
                held.isLeft = true;
                if (lost.reason() != LockLostException.Reason.CLOSE && held.parked() == 0) {
                    errands.abandon(held.wanted, held.token);
                }
            }
            then.accept(lost, null); // null: it was released before
            return;
        }
        giveBack(held, then);
    }

    /** Releases a hold that has ended in this process. */
    void giveBack(Held held, BiConsumer<LockLostException, Problem> then) {
        boolean isListener = engine.isInListener();
        var wanted = held.wanted;
        long until = Clock.after(Clock.now(), Rules.RELEASE_TIME);
        var problems = new ArrayList<Problem>();
        var answers = new ArrayList<Boolean>();
        working++;
        for (String name : wanted.names) {
            long parked = held.parked();
            var words = parked > 0 ? wanted.renew(name, parked, held.token) : wanted.release(name, held.token);
            request(name, words, until, (got, problem) -> {
                answers.add(problem == null && (isOne(got) || got.isRepeated()));
                if (problem != null && !problem.isOverwritten()) {
                    problems.add(problem);
                }
                if (answers.size() == wanted.names.size()) {
                    working--;
                    released(held, problems, answers.contains(false), (lost, failed) ->
                            deliver(isListener, () -> then.accept(lost, failed)));
                    checkIdle();
                }
            });
        }
    }

    private void released(Held held, List<Problem> problems, boolean wasLost, BiConsumer<LockLostException, Problem> then) {
        if ((!problems.isEmpty() || held.wanted.doubtful) && held.parked() == 0) {
            errands.abandon(held.wanted, held.token);
        }
        if (wasLost && problems.isEmpty()) {
            held.lost = held.loss(LockLostException.Reason.RELEASE);
            keeper.tellLoss(held, held.lost);
            then.accept(held.lost, null);
        } else {
            var lasted = held.age();
            tell(held.wanted.listener, listener -> listener.released(held.wanted.label(), lasted));
            then.accept(null, problems.isEmpty() ? null : problems.get(0).named(held.wanted.label(), 0));
        }
    }

    /** True if a wait for this lock may be logged: one of many waiters is enough. */
    boolean mayLog(Wanted wanted) {
        logged.values().removeIf(at -> Clock.age(at) >= Rules.LONG_WAIT / 2);
        return logged.putIfAbsent(wanted.name(), Clock.now()) == null;
    }

    /** Names the holder of any of these locks, for people; null if the server refuses to say. */
    void holder(Wanted wanted, Consumer<String> then) {
        holder(wanted, 0, then);
    }

    private void holder(Wanted wanted, int at, Consumer<String> then) {
        if (at == wanted.names.size()) {
            then.accept("");
            return;
        }
        info(wanted.names.get(at), (info, problem) -> {
            if (info == null || info.holders().isEmpty()) {
                holder(wanted, at + 1, then);
                return;
            }
            var first = info.holders().get(0);
            then.accept(": held by " + first.owner() + " for " + Rules.text(first.held().toNanos()));
        });
    }

    /**
     * Ends the hold of a leader for its work, which may ask {@link Hold#check}. The server keeps the lock until the work
     * has ended, or its lease. Returns false if the hold had ended before.
     */
    boolean resign(Held held) {
        return keeper.finish(held, null);
    }

    /** Records that this thread works under the hold: a close waits for it, unless it closes. */
    void enterBody(Held held, Thread thread) {
        held.hasBody = true;
        bodies.computeIfAbsent(thread, unused -> new ArrayDeque<>()).add(held);
    }

    void leaveBody(Held held, Thread thread) {
        var stack = bodies.get(thread);
        stack.remove(held);
        if (stack.isEmpty()) {
            bodies.remove(thread);
        }
        held.hasBody = false;
        checkIdle();
    }

    /** Counts the bodies above this call in which the thread holds any of these locks, under another owner. */
    int heldByBodies(List<String> names, String owner) {
        int count = 0;
        for (var held : bodies.getOrDefault(Thread.currentThread(), new ArrayDeque<>())) {
            if (!held.hasEnded && !held.wanted.owner.equals(owner) && names.stream().anyMatch(held.wanted.names::contains)) {
                count++;
            }
        }
        return count;
    }

    private boolean isIdle() {
        boolean hasBodies = bodies.keySet().stream().anyMatch(thread -> thread != closer);
        return acquires.isEmpty() && !hasBodies && working == 0 && errands.areDone();
    }

    void checkIdle() {
        if (isClosing && isIdle()) {
            idle.forEach(each -> each.complete(null));
            idle.clear();
        }
    }

    /** Ends all holds, waits and connections, within this time. Called by a thread of the user. */
    void close(Duration most) {
        var done = new CompletableFuture<Void>();
        boolean isFirst = engine.get(() -> {
            if (isClosing) {
                return false;
            }
            isClosing = true;
            closer = Thread.currentThread();
            List.copyOf(acquires).forEach(acquire -> acquire.end(Problem.closed()));
            for (var held : keeper.all()) {
                if (held.hasBody) {
                    var lost = held.loss(LockLostException.Reason.CLOSE);
                    engine.tell(() -> engine.completing.execute(() -> held.lostFuture.complete(lost)));
                } else {
                    lose(held);
                }
            }
            errands.hurry();
            idle.add(done);
            checkIdle();
            return true;
        });
        if (!isFirst) {
            return;
        }
        if (!most.isZero()) {
            await(done, most);
            if (Thread.interrupted()) { // releases that were just requested must still reach the server
                await(done, most.compareTo(MOMENT) < 0 ? most : MOMENT);
                Thread.currentThread().interrupt();
            }
        }
        var timing = engine.get(() -> {
            for (var held : keeper.all()) {
                engine.log(Level.WARNING, "closed while a body still works under lock '" + held.wanted.label()
                        + "', which stays taken until its lease expires, in " + Rules.text(Clock.left(held.deadline)));
                keeper.finish(held, LockLostException.Reason.CLOSE);
            }
            servers.end();
            return engine.timing();
        });
        engine.run(engine::end);
        join(timing);
    }

    private void lose(Held held) {
        if (!keeper.finish(held, LockLostException.Reason.CLOSE)) {
            return;
        }
        long parked = held.parked();
        if (parked == 0) {
            errands.abandon(held.wanted, held.token);
            return;
        }
        working++;
        renewed(held.wanted, parked, held.token, Clock.after(Clock.now(), Rules.ATTEMPT), null, (sent, isLate, problem) -> {
            working--;
            checkIdle();
        });
    }

    /** Waits. On an interrupted thread it stops waiting, and keeps the interrupt flag. */
    static void await(CompletableFuture<?> done, Duration most) {
        try {
            done.get(most.toNanos(), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (java.util.concurrent.TimeoutException | java.util.concurrent.ExecutionException e) {
            return; // the time is up, or the work has failed
        }
    }

    private static void join(Thread timing) {
        try {
            if (timing != null && timing != Thread.currentThread()) {
                timing.join(1000);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
