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

/** Acquires, renews and gives up, on one server, one primary, or one cluster. Its methods are steps of the engine. */
final class Core {
    /** Takes from when a renewed lease counts, 0 if the lock is lost, and whether an older request may come late. */
    interface Renewed {
        void done(long sent, boolean mayComeLate, Problem problem);
    }

    final Engine engine = new Engine();
    final Locks.Builder options;
    final Servers servers;
    final Lines lines;
    final Keeper keeper = new Keeper(this);
    final Errands errands = new Errands(this);
    final Set<Acquire> acquires = new LinkedHashSet<>();
    /** Waits for several locks that have no connection yet, in their order, and how many have one. */
    final ArrayDeque<BlockedWait> blocking = new ArrayDeque<>();
    int blockingNow;
    /** For how long a place in the queue is kept, and the longest wait: what the server allows. */
    long keep = Rules.KEEP;
    long longestBlock = Rules.LONG_BLOCK;
    volatile boolean isClosing;
    /** The threads in a body of run or call, with the holds that they work under, the newest last. */
    private final Map<Thread, ArrayDeque<Held>> bodies = new HashMap<>();
    /** Counts releases and renewals that are under way. */
    private int working;
    private final Map<String, Long> logged = new HashMap<>();
    private final List<CompletableFuture<Void>> idle = new ArrayList<>();
    private Thread closer;
    /**
     * What each thread has taken as a ThreadLock. No thread refers to it, so that a pool of threads keeps nothing of an
     * application that was undeployed. The keeper forgets threads that have ended, whose locks then end with their leases.
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

    /** Returns who hears of an acquire that begins: no step of the engine, for it calls the code of the user. */
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

    /** Lets a caller go on once the listener has heard all that came before, unless it is the listener. */
    void deliver(boolean isListener, Runnable complete) {
        if (isListener || options.listener == Locks.Builder.SILENT) {
            complete.run();
        } else {
            engine.tell(complete);
        }
    }

    /** Returns an owner that no acquire had before, and that names the holder for an operator. */
    String newOwner() {
        return options.label + ":" + UUID.randomUUID();
    }

    /** Lets as many wait over connections of their own as may. */
    void enterBlocking() {
        while (blockingNow < options.maxQueued && !blocking.isEmpty()) {
            blockingNow++;
            blocking.poll().enter(true);
        }
    }

    /** Lets the waits of an owner that the program names make a connection each: it holds a lock from now on. */
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

    /** Renews the hold with a new lease, or its own (0), or loses it. {@code then} takes null if it was renewed or lost. */
    void renew(Held held, long asked, Consumer<Problem> then) {
        if (held.isRenewing) {
            held.renewals.add(() -> renew(held, asked, then));
            return;
        }
        if (held.hasEnded) {
            then.accept(null);
            return;
        }
        held.isRenewing = true;
        working++;
        long lease = asked == 0 ? held.nextLease() : held.extendsTo(asked);
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
                held.renewAgain(); // it may pass, as a lack of replicas does; the deadline ends it if it does not
                problem = problem.named(held.wanted.label(), lease);
            } else {
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
     * Asks whether the token is that of a live hold. Only a primary's no counts: a replica may lack what its primary has. So
     * after a no, it is asked for a release of nothing, which a replica refuses: then the primary is sought again.
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

    /** Asks who holds the lock and who waits: null if none does. */
    void info(String name, BiConsumer<LockInfo, Problem> then) {
        request(name, List.of("LOCK.INFO", name), Clock.after(Clock.now(), 2 * Rules.ATTEMPT), (got, problem) ->
                then.accept(problem == null && got.reply() instanceof Map<?, ?> fields ? LockInfo.of(fields) : null, problem));
    }

    /** Asks for the version of the module, if a primary has it that this user may ask for locks. */
    void version(BiConsumer<String, Problem> then) {
        String name = options.prefix + "redislock:ping";
        var words = List.of("LOCK.FENCE", name, Long.toString(Rules.NOBODYS));
        new Request(servers, name, words, Clock.after(Clock.now(), Rules.WAIT_MARGIN), null, (got, problem) -> {
            long version = problem == null ? LockInfo.version(got.reply()) : 0;
            boolean isMissing = problem == null && version == 0;
            then.accept(LockInfo.shown(version), isMissing ? Problem.of("ERR unknown command LOCK.ACQUIRE") : problem);
        }).pings().start();
    }

    /** Gives the hold up. What a server does not answer in time, the background continues. */
    void release(Held held, BiConsumer<LockLostException, Problem> then) {
        boolean isListener = engine.isInListener();
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

    /** True if a wait for this lock may be logged: many wait for it, and one of them is enough. */
    boolean mayLog(Wanted wanted) {
        logged.values().removeIf(at -> Clock.age(at) >= Rules.LONG_WAIT / 2);
        return logged.putIfAbsent(wanted.name(), Clock.now()) == null;
    }

    /** Names the holder of any of these locks, for people; nothing where the server refuses to say. */
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

    void enterBody(Held held) {
        held.hasBody = true;
        bodies.computeIfAbsent(Thread.currentThread(), thread -> new ArrayDeque<>()).add(held);
    }

    void leaveBody(Held held) {
        var stack = bodies.get(Thread.currentThread());
        stack.remove(held);
        if (stack.isEmpty()) {
            bodies.remove(Thread.currentThread());
        }
        held.hasBody = false;
        checkIdle();
    }

    /** Counts in how many bodies above this call the thread holds any of these locks, by another owner. */
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

    /** Ends what is held and what waits, and all connections, within this time. Called by a thread of the user. */
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

    /** Waits, and keeps the flag of an interrupted thread, which waits no longer. */
    static void await(CompletableFuture<?> done, Duration most) {
        try {
            done.get(most.toNanos(), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (java.util.concurrent.TimeoutException | java.util.concurrent.ExecutionException e) {
            return; // what has ended has ended
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
