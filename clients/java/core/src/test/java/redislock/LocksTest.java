package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class LocksTest extends OneServer {
    @Test
    void lockIsHeldUntilItIsClosed() throws Exception {
        try (Hold hold = locks.lock("invoice:42").waitFor(SLACK).acquire()) {
            hold.check();
            assertTrue(hold.token() > 0);
            assertEquals(List.of("invoice:42"), hold.names());
            assertTrue(hold.remaining().compareTo(Duration.ofSeconds(30)) < 0);
            assertTrue(hold.reason().isEmpty());
            var info = locks.info("invoice:42").orElseThrow();
            assertEquals("exclusive", info.kind());
            assertEquals(hold.owner(), info.holders().get(0).owner());
            assertEquals(hold.token(), info.holders().get(0).token());
            var busy = assertThrows(LockTimeoutException.class, () ->
                    locks.lock("invoice:42").waitFor(Duration.ofMillis(20)).acquire());
            assertTrue(busy.getMessage().contains("'invoice:42'"), busy.getMessage());
        }
        assertTrue(locks.info("invoice:42").isEmpty());
    }

    @Test
    void kindsExcludeAsTheyShould() throws Exception {
        var reader = locks.read("rw").acquire();
        locks.read("rw").acquire().close();
        assertTrue(locks.write("rw").tryAcquire().isEmpty());
        reader.close();
        var both = locks.many(List.of("a", "b")).acquire();
        assertEquals(List.of("a", "b"), both.names());
        assertTrue(locks.lock("b").tryAcquire().isEmpty());
        assertTrue(locks.readMany(List.of("b", "c")).tryAcquire().isEmpty());
        both.close();
        var one = locks.semaphore("s", 2).acquire();
        var two = locks.semaphore("s", 2).acquire();
        assertTrue(locks.semaphore("s", 2).tryAcquire().isEmpty());
        assertThrows(LockKindMismatchException.class, () -> locks.semaphore("s", 3).tryAcquire());
        one.close();
        two.close();
    }

    @Test
    void severalLocksAreWaitedFor() throws Exception {
        var held = locks.lock("m2").acquire();
        var waiting = locks.many(List.of("m1", "m2")).acquireAsync();
        eventually("it waits", () -> server.waiters("m2") == 1);
        held.close();
        var got = waiting.get(SLACK.toSeconds(), TimeUnit.SECONDS);
        assertTrue(server.isHeld("m1") && server.isHeld("m2"));
        got.close();
        assertFalse(server.isHeld("m1") || server.isHeld("m2"));
    }

    @Test
    void holdIsRenewedBeyondItsLease() throws Exception {
        var hold = locks.lock("renewed").lease(Duration.ofSeconds(9)).acquire();
        long renewals = server.calls("lock.renew");
        eventually("it is renewed", () -> server.calls("lock.renew") > renewals);
        eventually("a lease is counted from then", () -> hold.remaining().compareTo(Duration.ofMillis(6100)) > 0);
        hold.close();
    }

    @Test
    void minHoldOutlastsReleaseAndClose() throws Exception {
        var lock = locks.lock("job").minHold(Duration.ofSeconds(60));
        lock.tryAcquire().orElseThrow().close();
        assertTrue(lock.tryAcquire().isEmpty());
        locks.lock("job2").minHold(Duration.ofSeconds(60)).lease(Duration.ofMillis(200)).acquire();
        locks.close();
        try (var others = server.locks()) {
            Thread.sleep(500);
            assertTrue(others.lock("job").tryAcquire().isEmpty());
            assertTrue(others.lock("job2").tryAcquire().isEmpty());
        }
        server.command("DEL", "job", "job2");
    }

    @Test
    void extendMayKeepTheLockForAnotherMinHold() throws Exception {
        var hold = locks.lock("parked").acquire();
        hold.extend(Duration.ofSeconds(60), Duration.ofSeconds(50));
        hold.close();
        assertTrue(server.isHeld("parked"));
        var shorter = locks.lock("freed").minHold(Duration.ofSeconds(60)).acquire();
        shorter.extend(Duration.ofSeconds(60), Duration.ZERO);
        shorter.close();
        assertFalse(server.isHeld("freed"));
        var reader = locks.read("read").acquire();
        assertThrows(IllegalArgumentException.class, () -> reader.extend(Duration.ofSeconds(9), Duration.ZERO));
        reader.close();
    }

    @Test
    void maxHoldEndsTheHold() throws Exception {
        var hold = locks.lock("most").maxHold(Duration.ofMillis(1500)).acquire();
        var lost = hold.lost().get(SLACK.toSeconds(), TimeUnit.SECONDS);
        assertEquals(LockLostException.Reason.MAX_HOLD, lost.reason());
        eventually("it is free", () -> !server.isHeld("most"));
    }

    @Test
    void extendSetsTheLeaseOfLaterRenewals() throws Exception {
        var hold = locks.lock("extended").lease(Duration.ofSeconds(20)).acquire();
        hold.extend(Duration.ofSeconds(90));
        assertTrue(hold.remaining().compareTo(Duration.ofSeconds(30)) > 0);
        assertThrows(IllegalArgumentException.class, () -> hold.extend(Duration.ofMillis(99)));
        hold.extend(Duration.ofSeconds(9));
        long renewals = server.calls("lock.renew");
        eventually("it is renewed", () -> server.calls("lock.renew") > renewals);
        assertTrue(hold.remaining().compareTo(Duration.ofSeconds(9)) < 0);
        eventually("with this lease", () -> hold.remaining().compareTo(Duration.ofSeconds(6)) > 0);
        hold.close();
        assertEquals(LockLostException.Reason.RELEASED, assertThrows(LockLostException.class, hold::check).reason());
        hold.release();
    }

    @Test
    void extendThatIsRefusedLeavesLeaseAndMinHold() throws Exception {
        var hold = locks.lock("refused").lease(Duration.ofMillis(500)).acquire();
        assertThrows(ServerRefusedException.class, () -> hold.extend(Duration.ofDays(2)));
        assertThrows(ServerRefusedException.class, () -> hold.extend(Duration.ofDays(2), Duration.ofDays(2)));
        Thread.sleep(1000); // two leases
        hold.check();
        hold.close();
        assertFalse(server.isHeld("refused"));
    }

    @Test
    void waitForSeveralLocksKeepsItsPlaceBeyondTheLongestWaitOfTheServer() throws Exception {
        server.command("CONFIG", "SET", "redislock.max-wait", "300");
        try (var others = server.locks()) {
            var held = others.lock("place").acquire();
            var order = new LinkedBlockingQueue<String>();
            locks.many(List.of("place", "place-2")).acquireAsync().thenAccept(hold -> {
                order.add("first");
                hold.close();
            });
            eventually("one waits", () -> server.waiters("place") == 1);
            others.lock("place").acquireAsync().thenAccept(hold -> {
                order.add("second");
                hold.close();
            });
            eventually("both wait", () -> server.waiters("place") == 2);
            Thread.sleep(1000);
            held.close();
            assertEquals("first", order.poll(SLACK.toSeconds(), TimeUnit.SECONDS));
            assertEquals("second", order.poll(SLACK.toSeconds(), TimeUnit.SECONDS));
        } finally {
            server.command("CONFIG", "SET", "redislock.max-wait", "0");
        }
    }

    @Test
    void labelAndPrefixAreUsed() throws Exception {
        try (var own = Locks.builder().url("redis://" + server.address()).label("worker").prefix("lock:").open();
                var hold = own.lock("k").acquire()) {
            assertTrue(hold.owner().startsWith("worker:"), hold.owner());
            assertEquals(List.of("k"), hold.names());
            assertTrue(server.isHeld("lock:k"));
            assertEquals(1, own.info("k").orElseThrow().holds());
            own.checkToken("k", hold.token());
        }
    }

    @Test
    void listenerHearsBeforeItsCallerAndMayUseLocks() throws Exception {
        var heard = new java.util.ArrayList<String>();
        var own = new java.util.concurrent.CompletableFuture<Locks>();
        try (var listened = Locks.builder().url("redis://" + server.address()).listener(new LockListener() {
            @Override
            public void granted(String lock, Duration waited) {
                heard.add("granted " + lock);
                if (lock.equals("first")) {
                    try {
                        own.join().lock("inner").acquire().close();
                    } catch (InterruptedException e) {
                        heard.add("interrupted");
                    }
                }
            }

            @Override
            public void released(String lock, Duration held) {
                heard.add("released " + lock);
            }

            @Override
            public void timedOut(String lock, Duration waited) {
                heard.add("timed out " + lock);
            }
        }).open()) {
            own.complete(listened);
            var hold = listened.lock("first").acquire();
            assertEquals(List.of("granted first"), List.copyOf(heard).subList(0, 1));
            assertTrue(listened.lock("first").tryAcquire().isEmpty());
            assertTrue(heard.contains("timed out first"), heard.toString());
            hold.close();
            assertTrue(heard.contains("released first"), heard.toString());
            assertTrue(heard.contains("granted inner") && heard.contains("released inner"), heard.toString());
        }
    }

    @Test
    void deadlockIsToldWithItsCycle() throws Exception {
        var left = locks.lock("left").owner("ann").acquire();
        var right = locks.lock("right").owner("ben").acquire();
        var waiting = locks.lock("right").owner("ann").acquireAsync();
        eventually("ann waits", () -> server.waiters("right") == 1);
        var thrown = assertThrows(DeadlockException.class, () -> locks.lock("left").owner("ben").waitFor(SLACK).acquire());
        assertEquals("ben", thrown.cycle().get(0).owner());
        right.close();
        waiting.get(SLACK.toSeconds(), TimeUnit.SECONDS).close();
        left.close();
    }

    @Test
    void serverSeesTheDeadlockOfAnOwnerThoughTheProcessQueuesAllItMay() throws Exception {
        for (var names : List.of(List.of("theirs"), List.of("theirs", "free"))) {
            try (var few = Locks.builder().address(server.address()).maxQueuedPerLock(1).open()) {
                var mine = few.lock("mine").owner("ann").acquire();
                var theirs = locks.lock("theirs").owner("ben").acquire();
                var ben = locks.lock("mine").owner("ben").acquireAsync();
                eventually("ben waits", () -> server.waiters("mine") == 1);
                var others = Stream.generate(() -> few.many(names).acquireAsync()).limit(3).toList();
                eventually("one waits", () -> server.waiters("theirs") == 1);
                assertThrows(DeadlockException.class, () -> few.many(names).owner("ann").waitFor(SLACK).acquire());
                others.forEach(other -> other.cancel(true));
                ben.cancel(true);
                mine.close();
                theirs.close();
            }
        }
    }

    @Test
    void serverSeesTheDeadlockOfAnOwnerWhoseHoldBeginsWhileItWaitsForAConnection() throws Exception {
        var waits = new AtomicInteger();
        var both = List.of("theirs", "free");
        try (var few = Locks.builder().address(server.address()).maxQueuedPerLock(1).listener(new LockListener() {
            @Override
            public void waiting(String lock) {
                waits.incrementAndGet();
            }
        }).open()) {
            var theirs = locks.lock("theirs").owner("ben").acquire();
            var other = few.many(both).acquireAsync();
            eventually("one waits", () -> server.waiters("theirs") == 1);
            var ann = few.many(both).owner("ann").acquireAsync();
            eventually("both wait", () -> waits.get() == 2);
            assertEquals(1, server.waiters("theirs"), "it has no connection");
            var mine = few.lock("mine").owner("ann").acquire();
            eventually("the server sees the wait of ann", () -> server.waiters("theirs") == 2);
            assertThrows(DeadlockException.class, () -> locks.lock("mine").owner("ben").waitFor(SLACK).acquire());
            ann.cancel(true);
            other.cancel(true);
            mine.close();
            theirs.close();
        }
    }

    @Test
    void serverThatRestartsIsFoundAgain() throws Exception {
        try (var own = new Server(); var mine = own.locks()) {
            mine.lock("before").acquire();
            own.kill();
            own.start();
            own.command("CONFIG", "SET", "redislock.quarantine", "0");
            mine.lock("after").waitFor(SLACK).acquire().close();
        }
    }

    @Test
    void hostOfAUrlMayHaveAnUnderscore() throws Exception { // as the names of services in a file of docker compose
        for (var each : Map.of("redis://ann:b%40c@my_redis:7/2", "my_redis:7", "redis://my_redis", "my_redis:6379",
                "redis://:b@c@my-redis/1", "my-redis:6379", "redis://[::1]", "::1:6379", "redis://a@[::1]:7", "::1:7").entrySet()) {
            var asked = new CompletableFuture<String>();
            try (var own = Locks.builder().url(each.getKey()).connector((host, port) -> {
                asked.complete(host + ":" + port);
                throw new IOException("there is no server");
            }).open()) {
                own.lock("k").acquireAsync();
                assertEquals(each.getValue(), asked.get(SLACK.toMillis(), TimeUnit.MILLISECONDS));
            }
        }
    }

    @Test
    void wrongArgumentsAreRefusedWhereTheyAreGiven() {
        assertThrows(IllegalArgumentException.class, () -> locks.lock(""));
        assertThrows(IllegalArgumentException.class, () -> locks.many(List.of()));
        assertThrows(IllegalArgumentException.class, () -> locks.many(List.of("a", "a")));
        assertThrows(IllegalArgumentException.class, () -> locks.semaphore("s", 0));
        assertThrows(IllegalArgumentException.class, () -> locks.lock("k").lease(Duration.ofMillis(99)));
        assertThrows(IllegalArgumentException.class, () -> locks.lock("k").waitFor(Duration.ofMillis(-1)));
        assertThrows(IllegalArgumentException.class, () -> locks.lock("k").owner("*"));
        assertThrows(IllegalArgumentException.class, () -> locks.read("k").minHold(Duration.ofSeconds(1)));
        assertThrows(IllegalArgumentException.class, () ->
                locks.lock("k").maxHold(Duration.ofSeconds(1)).minHold(Duration.ofSeconds(2)));
        assertThrows(IllegalArgumentException.class, () ->
                locks.leader(locks.lock("k").minHold(Duration.ofSeconds(1))));
        assertThrows(IllegalArgumentException.class, () -> locks.leader(locks.read("k")));
        assertThrows(IllegalArgumentException.class, () -> locks.leader(locks.semaphore("k", 2)));
        assertThrows(IllegalArgumentException.class, () -> Locks.open("http://127.0.0.1"));
        var host = assertThrows(IllegalArgumentException.class, () -> Locks.open("my-redis")).getMessage();
        assertTrue(host.endsWith("must begin with redis:// or rediss://, not with the scheme ''"), host);
        var told = assertThrows(IllegalArgumentException.class, () -> Locks.open("redis://localhost?timeout=3")).getMessage();
        assertTrue(told.contains("no parameters, such as '?timeout=3'"), told);
        assertThrows(IllegalArgumentException.class, () -> Locks.builder().cluster(List.of("nowhere")));
        var secret = assertThrows(IllegalArgumentException.class, () -> Locks.open("redis://:a secret@h"));
        assertFalse(secret.getMessage().contains("secret"), secret.getMessage());
        for (String url : List.of("redis://:1%secret@h", "redis://:12#secret@h", "redis://ann:12#secret@h")) {
            var sign = assertThrows(IllegalArgumentException.class, () -> Locks.open(url), url).getMessage();
            assertTrue(sign.contains("%25 for % and %23 for #") && !sign.contains("secret"), sign);
        }
        for (String blank : List.of("", " ")) {
            var empty = assertThrows(IllegalArgumentException.class, () -> Locks.open(blank)).getMessage();
            assertTrue(empty.contains("redis://user:password@host:port/database, not empty: '" + blank + "'"), empty);
        }
        for (String none : List.of("redis://", "redis:///1", "redis://ann@", "redis://ann:b@:1", "redis://ann:b@a:b:1")) {
            assertThrows(IllegalArgumentException.class, () -> Locks.open(none), none);
        }
        var long1 = assertThrows(ServerRefusedException.class, () -> locks.lock("k").lease(Duration.ofDays(400)).acquire());
        assertTrue(long1.getMessage().contains("redislock.max-lease"), long1.getMessage());
    }

    @Test
    void providerOfCredentialsThatFailsOrHangsIsToldInTime() {
        var hangs = new CountDownLatch(1);
        var own = new IllegalStateException("its own");
        List<Supplier<Credentials>> providers = List.of(() -> null, () -> {
            throw own;
        }, () -> {
            try {
                hangs.await();
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
            return new Credentials("", "");
        });
        var thrown = new ArrayList<ConnectionFailedException>();
        for (var provider : providers) {
            try (var other = Locks.builder().address(server.address()).login(provider).open()) {
                thrown.add(assertThrows(ConnectionFailedException.class, () ->
                        other.lock("k").waitFor(Duration.ofMillis(200)).acquire()));
            }
        }
        hangs.countDown();
        assertTrue(thrown.get(0).getMessage().contains("could not get the credentials"), thrown.get(0).getMessage());
        assertEquals(own, thrown.get(1).getCause());
    }

    @Test
    void passwordIsNeverShown() {
        try (var own = Locks.open("redis://somebody:hunter2@" + server.address())) {
            var refused = assertThrows(ServerRefusedException.class, own::ping);
            assertFalse(refused.getMessage().contains("hunter2"), refused.getMessage());
            assertTrue(refused.getMessage().contains(server.address()), refused.getMessage());
        }
    }

    /** A connection to a server whose module says version 209, which is 0.2.9, whatever it says. */
    private static Socket old(String host, int port) throws IOException {
        return new Socket(host, port) {
            @Override
            public InputStream getInputStream() throws IOException {
                var from = super.getInputStream();
                return new InputStream() {
                    private String line = "";
                    private int at;

                    @Override
                    public int read() throws IOException {
                        if (at == line.length()) {
                            var next = new StringBuilder();
                            for (int got = 0; got != '\n';) {
                                if ((got = from.read()) < 0) {
                                    return got;
                                }
                                next.append((char) got);
                            }
                            line = line.equals("ver\r\n") ? ":209\r\n" : next.toString();
                            at = 0;
                        }
                        return line.charAt(at++);
                    }

                    @Override
                    public int read(byte[] to, int offset, int length) throws IOException {
                        int got = read(); // more may not have come
                        to[offset] = (byte) got;
                        return got < 0 ? got : 1;
                    }
                };
            }
        };
    }

    @Test
    void moduleThatIsTooOldIsLoggedOnceForAServer() throws Exception {
        var logged = new LinkedBlockingQueue<LogRecord>();
        var handler = new Handler() {
            @Override
            public void publish(LogRecord line) {
                logged.add(line);
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        var logger = Logger.getLogger("redislock");
        var made = new LinkedBlockingDeque<Socket>();
        logger.addHandler(handler);
        try (var own = Locks.builder().address(server.address()).connector((host, port) -> {
            made.add(old(host, port));
            return made.getLast();
        }).open()) {
            assertEquals("0.3.0", locks.ping());
            for (int time = 0; time < 2; time++) {
                assertEquals("0.2.9", own.ping());
                own.lock("outdated").acquire().close();
                made.getLast().close();
            }
            assertTrue(made.size() > 1);
            eventually("what came before is logged, too", () -> logged.stream().anyMatch(line -> line.getMessage().startsWith("reconnected")));
        } finally {
            logger.removeHandler(handler);
        }
        var lines = logged.stream().filter(line -> line.getMessage().contains("is version")).toList();
        assertEquals(List.of("the module redislock on " + server.address()
                + " is version 0.2.9, and this client needs 0.3.0 or later: upgrade the module"),
                lines.stream().map(LogRecord::getMessage).toList());
        assertEquals(Level.WARNING, lines.get(0).getLevel());
    }
}
