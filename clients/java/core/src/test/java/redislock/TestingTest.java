package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;

import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** The server in the process, for tests of programs. */
class TestingTest extends OneServer {
    private final List<Object> told = new ArrayList<>();

    private interface Step {
        Object take() throws Exception;
    }

    private void tell(Step step) throws Exception {
        try {
            told.add(String.valueOf(step.take()));
        } catch (LockException e) {
            told.add(e.getClass().getSimpleName());
        }
    }

    private void tries(Lock lock) throws Exception {
        tell(() -> {
            var hold = lock.tryAcquire();
            hold.ifPresent(Hold::close);
            return hold.isPresent();
        });
    }

    private void info(Locks its, String name) throws Exception {
        tell(() -> its.info(name).map(found -> List.of(found.kind(), found.limit(), found.holds(), found.holders().size(),
                found.holders().get(0).owner(), found.waiters(), found.queue().size())));
    }

    private static void waiting(Locks its, String name, int number) throws InterruptedException {
        for (long end = System.nanoTime() + SLACK.toNanos(); its.info(name).map(LockInfo::waiters).orElse(0) != number;) {
            assertTrue(System.nanoTime() < end, number + " do not wait for " + name);
            Thread.sleep(2);
        }
    }

    private void kinds(Locks ours, Locks theirs) throws Exception {
        tell(ours::ping);
        try (var one = ours.read("r").owner("ann").acquire(); var other = theirs.read("r").acquire()) {
            tries(theirs.write("r"));
            tell(() -> one.token() < other.token());
            tries(ours.readMany(List.of("q", "r")));
            info(ours, "r");
            tries(theirs.semaphore("r", 2));
            tell(() -> one.token() < other.token());
        }
        try (var one = ours.semaphore("s", 2).owner("ann").acquire(); var other = theirs.semaphore("s", 2).acquire()) {
            for (var lock : List.of(ours.semaphore("s", 2), ours.semaphore("s", 3), ours.lock("s"), theirs.read("s"))) {
                tries(lock);
            }
            info(ours, "s");
            tell(() -> one.token() < other.token());
        }
        info(ours, "s");
    }

    private void owners(Locks ours, Locks theirs) throws Exception {
        try (var mine = ours.lock("k").owner("ann").acquire(); var left = ours.lock("left").owner("ben").acquire()) {
            tell(() -> mine.token() == theirs.lock("k").owner("ann").acquire().token());
            tries(ours.semaphore("k", 1).owner("ann"));
            tries(ours.many(List.of("k", "l")).owner("ann"));
            tell(() -> {
                ours.checkToken("k", mine.token());
                return "live";
            });
            tell(() -> {
                ours.checkToken("k", mine.token() - 1);
                return "live";
            });
            var waits = theirs.many(List.of("left", "other")).owner("ann").waitFor(SLACK).acquireAsync().toCompletableFuture();
            waiting(ours, "left", 1);
            info(ours, "left");
            tell(() -> assertThrows(DeadlockException.class, () -> ours.lock("k").owner("ben").acquire()).cycle());
            left.release();
            waits.get(SLACK.toSeconds(), TimeUnit.SECONDS).close();
        }
        try (var writer = ours.write("w").owner("ann").acquire()) {
            tell(() -> ours.read("w").owner("ann").acquire().token() == writer.token());
            tries(theirs.read("w"));
            tries(theirs.write("w"));
        }
    }

    @Test
    void answersAsARealServerDoes() throws Exception {
        try (var its = redislock.testing.Server.start()) {
            var stories = new ArrayList<List<Object>>();
            for (var url : List.of("redis://" + server.address(), its.url())) {
                told.clear();
                try (var ours = Locks.open(url); var theirs = Locks.open(url)) {
                    kinds(ours, theirs);
                    owners(ours, theirs);
                }
                stories.add(List.copyOf(told));
            }
            assertEquals(stories.get(0), stories.get(1));
            assertTrue(told.size() > 20, "" + told);
        }
    }

    @Test
    void waitersAreServedInTheirOrder() throws Exception {
        try (var its = redislock.testing.Server.start(); var ours = Locks.open(its.url()); var theirs = Locks.open(its.url())) {
            for (var names : List.of(List.of("one"), List.of("two", "three"))) {
                var served = new ArrayList<Integer>();
                var waiters = new ArrayList<CompletableFuture<Void>>();
                var hold = ours.many(names).acquire();
                for (int number = 0; number < 6; number++) {
                    int own = number;
                    waiters.add((number % 2 == 0 ? ours : theirs).many(names).acquireAsync().toCompletableFuture()
                            .thenAccept(next -> {
                                synchronized (served) {
                                    served.add(own);
                                }
                                next.releaseAsync();
                            }));
                    waiting(ours, names.get(0), own + 1);
                }
                assertThrows(LockTimeoutException.class, () -> theirs.many(names).waitFor(Duration.ofMillis(50)).acquire());
                hold.release();
                for (var waiter : waiters) {
                    waiter.get(SLACK.toSeconds(), TimeUnit.SECONDS);
                }
                synchronized (served) {
                    assertEquals(List.of(0, 1, 2, 3, 4, 5), served);
                }
            }
        }
    }

    private static Socket asks(redislock.testing.Server its, String... words) throws IOException {
        var socket = new Socket("127.0.0.1", URI.create(its.url()).getPort());
        socket.setSoTimeout((int) SLACK.toMillis());
        socket.getOutputStream().write(Resp.command(List.of(words)));
        return socket;
    }

    private static Object reply(Socket to) throws IOException {
        return new Resp(to.getInputStream()).read();
    }

    @Test
    void requestWhosePlaceANewerOneOfItsOwnerTakesIsAnswered() throws Exception {
        String[] blocks = {"LOCK.ACQUIRE", "k", "ann", "PX", "60000", "BLOCK", "60000"};
        try (var its = redislock.testing.Server.start(); var ours = Locks.open(its.url());
                var holder = asks(its, "LOCK.ACQUIRE", "k", "ben", "PX", "60000")) {
            assertInstanceOf(Long.class, reply(holder));
            try (var older = asks(its, blocks)) {
                waiting(ours, "k", 1);
                try (var newer = asks(its, blocks)) {
                    var answer = assertInstanceOf(Resp.Refusal.class, reply(older));
                    assertTrue(answer.text().startsWith("UNBLOCKED "), answer.text());
                    waiting(ours, "k", 1);
                    its.lose("k");
                    assertInstanceOf(Long.class, reply(newer));
                }
            }
        }
    }

    @Test
    void lossIsToldAndALeaseEnds() throws Exception {
        var its = redislock.testing.Server.start();
        try (its; var ours = Locks.open(its.url()); var theirs = Locks.open(its.url())) {
            var hold = ours.lock("invoice:42").acquire();
            assertTrue(theirs.lock("invoice:42").tryAcquire().isEmpty());
            its.lose("invoice:42");
            assertEquals(LockLostException.Reason.PUSH, hold.lost().get(SLACK.toSeconds(), TimeUnit.SECONDS).reason());
            theirs.lock("invoice:42").tryAcquire().orElseThrow().close();
            ours.lock("short").lease(Duration.ofMillis(200)).noRenewal().acquire();
            theirs.lock("short").waitFor(SLACK).acquire().close();
        }
        try (var late = Locks.open(its.url())) {
            assertThrows(ConnectionFailedException.class, () -> late.lock("k").waitFor(Duration.ofMillis(500)).acquire());
        }
    }
}
