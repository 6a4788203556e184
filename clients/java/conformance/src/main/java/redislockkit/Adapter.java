package redislockkit;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Stream;
import redislock.AlreadyHeldException;
import redislock.ConnectionFailedException;
import redislock.DeadlockException;
import redislock.FencedException;
import redislock.Hold;
import redislock.Leader;
import redislock.Lock;
import redislock.LockException;
import redislock.LockInfo;
import redislock.LockKindMismatchException;
import redislock.LockListener;
import redislock.LockLostException;
import redislock.LockTimeoutException;
import redislock.Locks;
import redislock.LocksClosedException;
import redislock.ModuleMissingException;
import redislock.NotConfirmedException;
import redislock.QuarantineException;
import redislock.QueueFullException;

/** The conformance kit's adapter: lines of JSON over standard input and output, as its PROTOCOL.md says. */
public final class Adapter implements LockListener {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private static final Map<Class<?>, String> KINDS = Map.ofEntries(Map.entry(AlreadyHeldException.class, "AlreadyHeld"),
            Map.entry(LockTimeoutException.class, "LockTimeout"), Map.entry(LockLostException.class, "LockLost"),
            Map.entry(DeadlockException.class, "Deadlock"), Map.entry(FencedException.class, "Fenced"),
            Map.entry(LockKindMismatchException.class, "LockKindMismatch"), Map.entry(QueueFullException.class, "QueueFull"),
            Map.entry(QuarantineException.class, "Quarantine"), Map.entry(NotConfirmedException.class, "NotConfirmed"),
            Map.entry(ModuleMissingException.class, "ModuleMissing"), Map.entry(LocksClosedException.class, "Cancelled"),
            Map.entry(ConnectionFailedException.class, "ConnectionFailed"),
            Map.entry(CancellationException.class, "Cancelled"), Map.entry(InterruptedException.class, "Cancelled"));

    /** A request has the members of all operations. */
    @SuppressWarnings("checkstyle")
    static final class Request {
        long id;
        String op;
        String mode;
        List<String> addresses;
        String service;
        String driver;
        Login login;
        int waiting_connections;
        String hold;
        String lock;
        String name;
        List<String> names;
        String kind;
        int limit;
        Long lease_ms;
        Long wait_ms;
        Long longest_ms;
        Long min_hold_ms;
        String prefix;
        String label;
        String nested;
        boolean stubborn;
        Boolean renew;
        String owner;
        long body_ms;
        boolean raise;
        int times;
        long of;
        long token;
        String leader;
        boolean fail;
        String until_lost;
    }

    /** The results of the provider of credentials, and its failures: at calls with these numbers, or "later". */
    static final class Login {
        String password;
        JsonElement fails;
    }

    private static final class BodyFailure extends Exception {
        private static final long serialVersionUID = 1L;
    }

    /** An answer that takes its time. */
    private interface Slow {
        Map<String, ?> answer() throws Exception;
    }

    private final PrintStream out = System.out;
    private final ExecutorService threads = Executors.newCachedThreadPool(work -> {
        var thread = new Thread(work, "kit");
        thread.setDaemon(true);
        return thread;
    });
    private final AtomicIntegerArray counts = new AtomicIntegerArray(5);
    private final Map<String, Hold> holds = new ConcurrentHashMap<>();
    private final Map<String, Lock> objects = new ConcurrentHashMap<>();
    private final Map<Long, Runnable> cancels = new ConcurrentHashMap<>();
    private final Map<String, Leader> leaders = new ConcurrentHashMap<>();
    private Locks locks;

    private synchronized void say(Map<String, ?> message) {
        out.print(GSON.toJson(message) + "\n");
        out.flush();
    }

    private void ok(Request request, Map<String, ?> members) {
        cancels.remove(request.id);
        say(Map.of("id", request.id, "ok", members));
    }

    private void error(Request request, Throwable thrown, Map<String, ?> more) {
        cancels.remove(request.id);
        var cause = thrown instanceof CompletionException && thrown.getCause() != null ? thrown.getCause() : thrown;
        var members = new LinkedHashMap<String, Object>(more);
        String kind = null;
        for (Class<?> each = cause.getClass(); each != null && kind == null; each = each.getSuperclass()) {
            kind = each == Object.class ? "Other" : KINDS.get(each);
        }
        members.put("kind", kind);
        members.put("message", String.valueOf(cause.getMessage()));
        if (cause instanceof DeadlockException deadlock) {
            members.put("cycle", deadlock.cycle().stream().map(step ->
                    List.of(step.owner(), step.lock(), step.holder())).toList());
        }
        if (cause instanceof QuarantineException quarantine) {
            members.put("left_ms", quarantine.left().toMillis());
        }
        if (kind.equals("Other")) {
            thrown.printStackTrace();
        }
        say(Map.of("id", request.id, "error", members));
    }

    private void slowly(Request request, Slow work) {
        var task = threads.submit(() -> {
            try {
                ok(request, work.answer());
            } catch (Exception e) {
                error(request, e, Map.of());
            }
        });
        cancels.put(request.id, () -> task.cancel(true));
    }

    private void take(Request request) {
        switch (request.op) {
            case "open" -> ok(request, open(request));
            case "acquire" -> acquire(request);
            case "try" -> slowly(request, () -> {
                var hold = lock(request).tryAcquire();
                return hold.isPresent() ? keep(request, hold.get()) : Map.of();
            });
            case "info" -> slowly(request, () -> locks.info(request.name).map(Adapter::info)
                    .orElse(Map.of("holders", List.of(), "waiters", 0)));
            case "ping" -> slowly(request, () -> Map.of("version", locks.ping()));
            case "check" -> {
                try {
                    hold(request).check();
                    ok(request, Map.of("remaining_ms", hold(request).remaining().toMillis()));
                } catch (LockException e) {
                    error(request, e, Map.of());
                }
            }
            case "release" -> slowly(request, () -> {
                hold(request).release();
                return Map.of();
            });
            case "run" -> run(request);
            case "cycle" -> slowly(request, () -> cycle(request));
            case "cancel" -> {
                var cancel = cancels.get(request.of);
                if (cancel != null) {
                    cancel.run();
                }
                ok(request, Map.of());
            }
            case "fence" -> slowly(request, () -> {
                locks.checkToken(request.name, request.token);
                return Map.of();
            });
            case "lead" -> {
                lead(request);
                ok(request, Map.of());
            }
            case "resign" -> slowly(request, () -> {
                leaders.get(request.leader).close();
                return Map.of();
            });
            case "stats" -> ok(request, Map.of("grants", counts.get(0), "timeouts", counts.get(1), "losses", counts.get(2),
                    "releases", counts.get(3), "waits", counts.get(4)));
            case "threads" -> {
                try { // in this thread: one more of the adapter's own would count, too
                    ok(request, process());
                } catch (IOException e) {
                    error(request, e, Map.of());
                }
            }
            case "close" -> slowly(request, () -> {
                locks.close();
                return Map.of();
            });
            default -> say(Map.of("id", request.id, "error", Map.of("kind", "Unsupported", "message", "no such operation")));
        }
    }

    private Hold hold(Request request) {
        return holds.get(request.hold);
    }

    private Map<String, ?> open(Request request) {
        var found = Map.of("drivers", Driver.NAMES, "features", request.mode.equals("independent") ? List.of()
                : List.of("push", "cancel", "tasks", "leader", "log", "stats", "sentinel", "cluster", "fence", "provider",
                        "min_hold", "nested", "stubborn"));
        if (request.mode.equals("independent")) {
            return found;
        }
        var builder = Driver.builder(request).listener(this);
        if (request.lease_ms != null) {
            builder.lease(Duration.ofMillis(request.lease_ms));
        }
        if (request.prefix != null) {
            builder.prefix(request.prefix);
        }
        if (request.label != null) {
            builder.label(request.label);
        }
        if (request.waiting_connections > 0) {
            builder.maxQueuedPerLock(request.waiting_connections);
        }
        locks = builder.open();
        return found;
    }

    private Lock lock(Request request) {
        return request.lock == null ? describe(request) : objects.computeIfAbsent(request.lock, id -> describe(request));
    }

    private Lock describe(Request request) {
        String kind = request.kind == null ? "exclusive" : request.kind;
        Lock lock;
        if (request.names != null) {
            lock = kind.equals("read") ? locks.readMany(request.names) : locks.many(request.names);
        } else {
            lock = switch (kind) {
                case "read" -> locks.read(request.name);
                case "write" -> locks.write(request.name);
                case "semaphore" -> locks.semaphore(request.name, request.limit);
                default -> locks.lock(request.name);
            };
        }
        if (request.lease_ms != null) {
            lock = lock.lease(Duration.ofMillis(request.lease_ms));
        }
        if (request.wait_ms != null) {
            lock = lock.waitFor(Duration.ofMillis(request.wait_ms));
        }
        if (request.longest_ms != null) {
            lock = lock.maxHold(Duration.ofMillis(request.longest_ms));
        }
        if (request.min_hold_ms != null) {
            lock = lock.minHold(Duration.ofMillis(request.min_hold_ms));
        }
        if (Boolean.FALSE.equals(request.renew)) {
            lock = lock.noRenewal();
        }
        return request.owner == null ? lock : lock.owner(request.owner);
    }

    private void acquire(Request request) {
        CompletableFuture<Hold> waiting;
        try {
            waiting = lock(request).acquireAsync();
        } catch (IllegalArgumentException e) {
            error(request, e, Map.of());
            return;
        }
        cancels.put(request.id, () -> waiting.cancel(true));
        waiting.whenComplete((hold, failed) -> {
            if (failed != null) {
                error(request, failed, Map.of());
                return;
            }
            ok(request, keep(request, hold));
        });
    }

    private Map<String, ?> keep(Request request, Hold hold) {
        watch(request.hold, hold);
        holds.put(request.hold, hold);
        return Map.of("token", hold.token(), "remaining_ms", hold.remaining().toMillis(), "owner", hold.owner());
    }

    private static Map<String, ?> info(LockInfo info) {
        var holders = info.holders().stream().map(each ->
                Map.of("owner", each.owner(), "token", each.token(), "left_ms", each.left().toMillis())).toList();
        return Map.of("holders", holders, "waiters", info.waiters());
    }

    /** Acquires the lock that the block holds, in the body of the block. */
    private String nested(Request request) throws InterruptedException {
        var inner = new Request();
        inner.name = request.name;
        inner.kind = request.nested;
        try {
            lock(inner).acquire();
            return "ok";
        } catch (LockException e) {
            return KINDS.getOrDefault(e.getClass(), "Other");
        }
    }

    private void watch(String id, Hold hold) {
        hold.lost().thenAccept(lost -> {
            var event = new LinkedHashMap<String, Object>(Map.of("event", "lost", "hold", id, "reason", lost.reason().word()));
            if (lost.getCause() != null) {
                event.put("cause", lost.getCause().getMessage());
            }
            say(event);
        });
    }

    private void run(Request request) {
        var task = threads.submit(() -> {
            var found = new LinkedHashMap<String, Object>(Map.of("body", "cancelled"));
            try {
                lock(request).<Exception>run(hold -> {
                    found.put("token", hold.token());
                    if (request.hold != null) {
                        watch(request.hold, hold);
                    }
                    if (request.nested != null) {
                        found.put("nested", nested(request));
                    }
                    if (request.stubborn) {
                        say(Map.of("event", "begun", "hold", request.hold));
                        Thread.sleep(request.body_ms);
                    } else {
                        sleep(hold, request.body_ms);
                    }
                    found.put("body", "finished");
                    if (request.raise) {
                        throw new BodyFailure();
                    }
                });
                ok(request, found);
            } catch (BodyFailure e) {
                if (e.getSuppressed().length > 0) {
                    error(request, e.getSuppressed()[0], found);
                } else {
                    found.put("body", "raised");
                    ok(request, found);
                }
            } catch (Exception e) {
                error(request, e, found);
            }
        });
        cancels.put(request.id, () -> task.cancel(true));
    }

    /** Works for this time, or until it learns of the loss, as a user's body does. */
    private static void sleep(Hold hold, long milliseconds) throws Exception {
        hold.lost().completeOnTimeout(null, milliseconds, TimeUnit.MILLISECONDS).get();
    }

    private Map<String, ?> cycle(Request request) throws InterruptedException {
        var lock = lock(request);
        for (int time = 0; time < request.times; time++) {
            var hold = request.wait_ms != null && request.wait_ms == 0 ? lock.tryAcquire().orElse(null) : lock.acquire();
            if (hold == null) {
                throw new IllegalStateException("the lock is not free");
            }
            hold.release();
        }
        return Map.of("times", request.times);
    }

    private void lead(Request request) {
        var leader = locks.leader(lock(request));
        leaders.put(request.leader, leader);
        leader.onElected(hold -> {
            say(Map.of("event", "elected", "leader", request.leader, "token", hold.token()));
            if (request.fail) {
                throw new BodyFailure();
            }
            if (request.until_lost != null) {
                try {
                    leadUntilLost(hold, request.until_lost);
                } finally {
                    say(Map.of("event", "ended", "leader", request.leader));
                }
            }
        }).onDeposed(lost -> say(Map.of("event", "deposed", "leader", request.leader, "reason", lost.reason().word())))
                .onError(e -> say(Map.of("event", "failed", "leader", request.leader, "message", String.valueOf(e.getMessage()))))
                .start();
    }

    /** Works until the loss, and throws it. */
    private static void leadUntilLost(Hold hold, String until) throws Exception {
        if (until.equals("signal")) {
            throw hold.lost().get();
        }
        while (true) {
            hold.check();
            if (until.equals("check")) {
                Thread.sleep(5);
            }
        }
    }

    private static Map<String, ?> process() throws IOException {
        for (int time = 0; time < 3; time++) {
            System.gc();
        }
        var found = new LinkedHashMap<String, Object>();
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("Threads:") || line.startsWith("VmRSS:")) {
                found.put(line.startsWith("T") ? "threads" : "memory_kb", Integer.parseInt(line.replaceAll("[^0-9]", "")));
            }
        }
        Set<String> established = new HashSet<>();
        for (String table : List.of("/proc/net/tcp", "/proc/net/tcp6")) {
            for (String row : Files.readAllLines(Path.of(table))) {
                String[] columns = row.trim().split("\\s+");
                if (columns.length > 9 && columns[3].equals("01")) {
                    established.add("socket:[" + columns[9] + "]");
                }
            }
        }
        int connections = 0;
        try (Stream<Path> files = Files.list(Path.of("/proc/self/fd"))) {
            for (Path file : files.toList()) {
                connections += isOneOf(file, established) ? 1 : 0;
            }
        }
        found.put("connections", connections);
        return found;
    }

    private static boolean isOneOf(Path file, Set<String> established) {
        try {
            return established.contains(Files.readSymbolicLink(file).toString());
        } catch (IOException e) {
            return false; // it was closed meanwhile
        }
    }

    @Override
    public void granted(String lock, Duration waited) {
        counts.incrementAndGet(0);
    }

    @Override
    public void timedOut(String lock, Duration waited) {
        counts.incrementAndGet(1);
    }

    @Override
    public void lost(String lock, Duration held, LockLostException lost) {
        counts.incrementAndGet(2);
    }

    @Override
    public void released(String lock, Duration held) {
        counts.incrementAndGet(3);
    }

    @Override
    public void waiting(String lock) {
        counts.incrementAndGet(4);
    }

    /** Forwards the library's log records. */
    private final class Forward extends Handler {
        @Override
        public void publish(LogRecord line) {
            String level = line.getLevel() == Level.SEVERE ? "error" : line.getLevel() == Level.WARNING ? "warning" : "info";
            String thrown = line.getThrown() == null ? "" : " " + line.getThrown();
            say(Map.of("event", "log", "level", level, "message", line.getMessage() + thrown));
        }

        @Override
        public void flush() {
            out.flush();
        }

        @Override
        public void close() {}
    }

    /**
     * Serves the kit until standard input ends.
     *
     * @param words none
     * @throws IOException if standard input fails
     */
    public static void main(String[] words) throws IOException {
        var adapter = new Adapter();
        var logger = Logger.getLogger("redislock");
        logger.setUseParentHandlers(false);
        logger.addHandler(adapter.new Forward());
        var from = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = from.readLine(); line != null; line = from.readLine()) {
            adapter.take(GSON.fromJson(GSON.fromJson(line, JsonElement.class), Request.class));
        }
        if (adapter.locks != null) {
            adapter.locks.close();
        }
        System.exit(0);
    }
}
