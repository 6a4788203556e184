package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.ref.WeakReference;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** Pitfalls that have cost users of other libraries hours. The library must survive each of them. */
class PitfallsTest extends OneServer {
    private static Thread started(Runnable work, boolean isVirtual) {
        if (isVirtual) {
            try { // which the release that this is compiled for lacks
                return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work);
            } catch (ReflectiveOperationException e) {
                // This JDK has none: a platform thread has to do.
                isVirtual = false;
            }
        }
        var thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    @Test
    void lossIsToldOnceWithItsReason() throws Exception {
        var heard = new AtomicInteger();
        try (var listening = Locks.builder().url("redis://" + server.address()).listener(new LockListener() {
            @Override
            public void lost(String lock, Duration held, LockLostException lost) {
                heard.incrementAndGet();
            }
        }).open()) {
            var hold = listening.lock("told").acquire();
            var lost = hold.lost();
            assertFalse(lost.isDone());
            server.command("DEL", "told");
            var why = lost.get(SLACK.toSeconds(), TimeUnit.SECONDS);
            assertEquals(LockLostException.Reason.PUSH, why.reason());
            assertEquals(hold.token(), why.token());
            assertEquals(LockLostException.Reason.PUSH, assertThrows(LockLostException.class, hold::check).reason());
            assertEquals(LockLostException.Reason.PUSH, hold.reason().orElseThrow());
            assertThrows(LockLostException.class, hold::close);
            eventually("the listener hears of it", () -> heard.get() == 1);
            assertEquals(Duration.ZERO, hold.remaining());
        }
        assertEquals(1, heard.get());
    }

    @Test
    void holdIsUsedAndReleasedByOtherThreads() throws Exception {
        var hold = locks.lock("threads").acquire();
        // It is no reentrant lock of the thread: an owner for each acquire.
        assertTrue(locks.lock("threads").tryAcquire().isEmpty());
        var thrown = new AtomicReference<Throwable>();
        var thread = started(() -> {
            try {
                hold.check();
                hold.extend(Duration.ofSeconds(40));
                hold.release();
            } catch (Throwable e) {
                thrown.set(e);
            }
        }, true);
        thread.join(SLACK.toMillis());
        assertNull(thrown.get());
        var second = locks.lock("threads").tryAcquire().orElseThrow();
        assertNotEquals(hold.owner(), second.owner());
        second.close();
    }

    @Test
    void interruptAtAnyPointHoldsNothing() throws Exception {
        for (int time = 0; time < 1000; time++) {
            var name = "interrupted:" + time % 7;
            var began = new CountDownLatch(1);
            var thread = started(() -> {
                began.countDown();
                try (var hold = locks.lock(name).acquire()) {
                    hold.check();
                } catch (InterruptedException e) {
                    assertFalse(Thread.currentThread().isInterrupted());
                }
            }, time % 2 == 0);
            began.await();
            long pause = ThreadLocalRandom.current().nextInt(400_000);
            for (long end = System.nanoTime() + pause; System.nanoTime() < end;) {
                Thread.onSpinWait();
            }
            thread.interrupt();
            thread.join(SLACK.toMillis());
            assertFalse(thread.isAlive());
        }
        for (int number = 0; number < 7; number++) {
            var name = "interrupted:" + number;
            eventually(name + " is free", () -> !server.isHeld(name) && server.waiters(name) == 0);
        }
        long renewals = server.calls("lock.renew");
        Thread.sleep(50);
        assertEquals(renewals, server.calls("lock.renew"), "a hold that was given up is renewed");
    }

    @Test
    void interruptedWaitersLeaveConnectionAndOtherHoldsAlive() throws Exception {
        var other = locks.lock("other").acquire();
        var held = locks.lock("busy").acquire();
        eventually("it has one connection", () -> connections().size() == 1);
        var connections = connections();
        var threads = new ArrayList<Thread>();
        var interrupted = new CountDownLatch(100);
        for (int number = 0; number < 100; number++) {
            threads.add(started(() -> {
                try {
                    locks.lock("busy").acquire();
                } catch (InterruptedException e) {
                    interrupted.countDown();
                }
            }, true));
        }
        eventually("they wait", () -> server.waiters("busy") == 16);
        threads.forEach(Thread::interrupt);
        assertTrue(interrupted.await(SLACK.toSeconds(), TimeUnit.SECONDS));
        eventually("they left the queue", () -> server.waiters("busy") == 0);
        other.extend(Duration.ofSeconds(30));
        held.check();
        other.close();
        held.close();
        assertEquals(connections, connections(), "it has another connection");
    }

    /** Returns the numbers of the connections that track keys, as those of the library do. */
    private static List<String> connections() {
        String all = String.valueOf(server.command("CLIENT", "LIST"));
        return all.lines().filter(line -> line.contains("flags=t")).map(line -> line.split(" ")[0]).toList();
    }

    @Test
    void interruptedThreadReleasesAndKeepsItsFlag() throws Exception {
        var hold = locks.lock("flag").acquire();
        Thread.currentThread().interrupt();
        hold.close();
        assertTrue(Thread.interrupted());
        eventually("it is free", () -> !server.isHeld("flag"));
    }

    @Test
    void interruptedThreadSendsNothing() throws Exception {
        locks.ping();
        long calls = server.calls("lock.acquire");
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> locks.lock("nothing").acquire());
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> locks.lock("nothing").tryAcquire());
        assertFalse(Thread.interrupted());
        assertTrue(locks.ping().matches("\\d+\\.\\d+\\.\\d+"));
        assertEquals(calls, server.calls("lock.acquire"));
    }

    @Test
    void noMonitorIsHeldByAWaiter() throws IOException {
        // A virtual thread that waits in a monitor keeps its carrier before JDK 24.
        try (var files = Files.walk(Path.of("src/main/java"))) {
            for (var file : files.filter(Files::isRegularFile).toList()) {
                assertFalse(Files.readString(file).matches("(?s).*\\bsynchronized\\b.*"), file + " has a monitor");
            }
        }
    }

    @Test
    void serverThatIsAwayIsNeverBusy() throws Exception {
        int port;
        try (var listener = new ServerSocket()) {
            listener.bind(new InetSocketAddress("127.0.0.1", 0));
            port = listener.getLocalPort();
            // It accepts connections in its backlog, and answers nothing.
            try (var silent = Locks.open("redis://127.0.0.1:" + port)) {
                var thrown = assertThrows(ConnectionFailedException.class, () -> silent.lock("k").tryAcquire());
                assertTrue(thrown.getMessage().contains("127.0.0.1:" + port), thrown.getMessage());
                assertTrue(thrown.getMessage().contains("'k'"), thrown.getMessage());
            }
        }
        try (var refused = Locks.open("redis://127.0.0.1:1")) {
            assertThrows(ConnectionFailedException.class, () -> refused.lock("k").tryAcquire());
            assertThrows(ConnectionFailedException.class, () -> refused.lock("k").waitFor(Duration.ofMillis(50)).acquire());
            assertThrows(ConnectionFailedException.class, refused::ping);
        }
    }

    @Test
    void tlsToAPlainPortFailsInTime() {
        try (var secure = Locks.open("rediss://" + server.address())) {
            var thrown = assertThrows(ConnectionFailedException.class, () ->
                    secure.lock("k").waitFor(Duration.ofMillis(2500)).acquire());
            assertTrue(thrown.getMessage().contains("could not connect within 2 s: is this a port that speaks TLS?"), thrown.getMessage());
        }
    }

    @Test
    void forgottenHoldIsNotRenewed() throws Exception {
        var heard = new AtomicReference<LockLostException>();
        try (var forgetful = Locks.builder().url("redis://" + server.address()).lease(Duration.ofSeconds(3))
                .listener(new LockListener() {
                    @Override
                    public void lost(String lock, Duration held, LockLostException lost) {
                        heard.set(lost);
                    }
                }).open()) {
            var dropped = dropped(forgetful);
            eventually("it is collected", () -> {
                System.gc();
                return dropped.get() == null;
            });
            eventually("it is lost", () -> heard.get() != null);
            assertEquals(LockLostException.Reason.FORGOTTEN, heard.get().reason());
            eventually("it is free", () -> !server.isHeld("forgotten"));
        }
    }

    private static WeakReference<Hold> dropped(Locks from) throws InterruptedException {
        return new WeakReference<>(from.lock("forgotten").acquire());
    }

    @Test
    void closeReleasesAndIsBounded() throws Exception {
        var first = server.locks();
        var held = first.lock("closed").acquire();
        var waiting = first.lock("closed").acquireAsync();
        first.close();
        assertFalse(server.isHeld("closed"));
        assertEquals(LockLostException.Reason.CLOSE, assertThrows(LockLostException.class, held::check).reason());
        assertEquals(LockLostException.Reason.CLOSE, held.lost().get(SLACK.toSeconds(), TimeUnit.SECONDS).reason());
        var failed = assertThrows(java.util.concurrent.ExecutionException.class, () ->
                waiting.get(SLACK.toSeconds(), TimeUnit.SECONDS));
        assertTrue(failed.getCause() instanceof LocksClosedException, failed.toString());
        assertThrows(LocksClosedException.class, () -> first.lock("closed").acquire());
        first.close();
        try (var own = new Server()) {
            var second = own.locks();
            second.lock("stopped").acquire();
            own.signal("STOP");
            long began = System.nanoTime();
            second.close();
            assertTrue(System.nanoTime() - began < SLACK.toNanos(), "it is bounded");
            own.signal("CONT");
        }
    }

    @Test
    void closeEndsAllRequestsInFlight() throws Exception {
        try (var own = new Server()) {
            var mine = own.locks();
            var held = mine.lock("extended").acquire();
            var released = mine.lock("released").acquire();
            own.kill();
            var all = new ArrayList<CompletableFuture<?>>();
            for (Callable<?> ask : List.<Callable<?>>of(mine::ping, () -> mine.info("k"), () -> {
                mine.checkToken("k", 7);
                return null;
            }, () -> {
                held.extend(Duration.ofSeconds(30));
                return null;
            })) {
                var ended = new CompletableFuture<Object>();
                started(() -> {
                    try {
                        ended.complete(ask.call());
                    } catch (Exception e) {
                        ended.complete(e);
                    }
                }, true);
                all.add(ended);
            }
            all.add(released.releaseAsync().handle((done, failed) -> failed.getCause()));
            Thread.sleep(300);
            mine.close(Duration.ofMillis(100));
            for (var each : all) {
                var thrown = each.get(SLACK.toSeconds(), TimeUnit.SECONDS);
                assertTrue(thrown instanceof ConnectionFailedException, String.valueOf(thrown));
            }
        }
    }

    @Test
    void closeOfAnInterruptedThreadReleases() throws Exception {
        for (int time = 0; time < 10; time++) {
            var own = server.locks();
            var hold = own.lock("late").acquire();
            own.lock("later").acquire();
            Thread.currentThread().interrupt();
            hold.close();
            own.close();
            assertTrue(Thread.interrupted());
            assertFalse(server.isHeld("late") || server.isHeld("later"));
        }
    }

    @Test
    void closeTellsABodyAndLeavesItItsLease() throws Exception {
        var own = server.locks();
        var told = new CompletableFuture<LockLostException.Reason>();
        var mayEnd = new CountDownLatch(1);
        var works = new CountDownLatch(1);
        var thrown = new CompletableFuture<Throwable>();
        started(() -> {
            try {
                own.lock("working").run(hold -> {
                    hold.lost().thenAccept(lost -> told.complete(lost.reason()));
                    works.countDown();
                    mayEnd.await();
                });
            } catch (Exception e) {
                thrown.complete(e);
            }
        }, false);
        assertTrue(works.await(SLACK.toSeconds(), TimeUnit.SECONDS));

        own.close(Duration.ofMillis(100));
        assertEquals(LockLostException.Reason.CLOSE, told.get(SLACK.toSeconds(), TimeUnit.SECONDS));
        assertTrue(server.isHeld("working"), "a lock was released that a body works under");
        mayEnd.countDown();
        assertTrue(thrown.get(SLACK.toSeconds(), TimeUnit.SECONDS) instanceof LockLostException);
        server.command("DEL", "working");
    }

    @Test
    void closeTellsABodyAtOnceAndWaitsForIt() throws Exception {
        var own = server.locks();
        var works = new CountDownLatch(1);
        started(() -> {
            try {
                own.lock("stops").run(hold -> {
                    works.countDown();
                    hold.lost().get();
                });
            } catch (Exception e) {
                works.countDown(); // the loss
            }
        }, true);
        assertTrue(works.await(SLACK.toSeconds(), TimeUnit.SECONDS));
        long began = System.nanoTime();
        own.close(SLACK);
        assertTrue(System.nanoTime() - began < SLACK.toNanos() / 2, "the body was told at the end");
        assertFalse(server.isHeld("stops"), "it waits until the body has ended");
    }

    @Test
    void closeLeavesNoThread() throws Exception {
        var own = server.locks();
        own.lock("threads-end").acquire().close();
        own.lock("threads-end").acquireAsync().get().close();
        var mine = Thread.getAllStackTraces().keySet().stream().filter(thread -> thread.getName().startsWith("redislock")).toList();
        assertTrue(mine.size() >= 3, mine.toString());
        for (var thread : mine) {
            assertTrue(thread.isDaemon(), thread.getName());
            assertNull(thread.getContextClassLoader(), thread.getName());
        }
        own.close();
        locks.close();
        eventually("no thread is left", () -> Thread.getAllStackTraces().keySet().stream().noneMatch(thread ->
                thread.getName().startsWith("redislock")));
    }

    @Test
    void staleReleaseEndsNoNewerHold() throws Exception {
        var stale = locks.lock("stale").lease(Duration.ofMillis(100)).noRenewal().acquire();
        var newer = locks.lock("stale").waitFor(SLACK).acquire();
        assertTrue(newer.token() > stale.token());
        assertThrows(LockLostException.class, stale::close);
        assertThrows(LockLostException.class, stale::release);
        locks.checkToken("stale", newer.token());
        assertThrows(FencedException.class, () -> locks.checkToken("stale", stale.token()));
        newer.close();
    }

    @Test
    void lossLeavesNothingTakenInTheProcess() throws Exception {
        var lost = locks.lock("local").acquire();
        server.command("DEL", "local");
        assertThrows(LockLostException.class, lost::release);
        locks.lock("local").tryAcquire().orElseThrow().close();
    }

    @Test
    void leaderThatLosesItsLockLeadsNoMore() throws Exception {
        var deposed = new AtomicReference<LockLostException>();
        var ended = new CountDownLatch(1);
        var times = new AtomicInteger();
        try (var leader = locks.leader(locks.lock("leader")).onDeposed(deposed::set).onElected(hold -> {
            if (times.incrementAndGet() > 1) {
                return;
            }
            try {
                Thread.sleep(SLACK.toMillis());
            } catch (InterruptedException e) {
                ended.countDown();
            }
        }).start()) {
            eventually("it leads", () -> leader.hold().isPresent());
            server.command("DEL", "leader");
            eventually("it is deposed", () -> deposed.get() != null);
            assertTrue(ended.await(SLACK.toSeconds(), TimeUnit.SECONDS), "its work is interrupted");
            eventually("it leads again", () -> times.get() == 2 && leader.hold().isPresent());
        }
        eventually("it has resigned", () -> !server.isHeld("leader"));
    }

    @Test
    void leaderThatResignsKeepsTheLockUntilItsWorkHasEnded() throws Exception {
        var began = new CountDownLatch(1);
        var mayEnd = new CountDownLatch(1);
        var leader = locks.leader(locks.lock("resigns")).onElected(hold -> {
            began.countDown();
            try {
                while (true) {
                    hold.check();
                }
            } catch (LockLostException e) {
                Thread.interrupted();
                mayEnd.await(); // it finishes what it has begun
            }
        }).start();
        assertTrue(began.await(SLACK.toSeconds(), TimeUnit.SECONDS));
        var closing = started(leader::close, false);
        Thread.sleep(100);
        assertTrue(server.isHeld("resigns"), "another may lead while the work goes on");
        mayEnd.countDown();
        closing.join(SLACK.toMillis());
        assertFalse(server.isHeld("resigns"));
    }

    @Test
    void closeWaitsForTheWorkOfLeader() throws Exception {
        var began = new CountDownLatch(1);
        var mayEnd = new CountDownLatch(1);
        locks.leader(locks.lock("closes")).onElected(hold -> {
            began.countDown();
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException e) {
                mayEnd.await(); // it finishes what it has begun
            }
        }).start();
        assertTrue(began.await(SLACK.toSeconds(), TimeUnit.SECONDS));
        var closing = started(() -> locks.close(), false);
        Thread.sleep(100);
        assertTrue(server.isHeld("closes"), "another may lead while the work goes on");
        mayEnd.countDown();
        closing.join(SLACK.toMillis());
        assertFalse(server.isHeld("closes"));
    }

    @Test
    void leaderWhoseWorkThrowsTheLossStandsAgain() throws Exception {
        var deposed = new AtomicInteger();
        var times = new AtomicInteger();
        try (var leader = locks.leader(locks.lock("leader")).onDeposed(lost -> deposed.incrementAndGet())
                .onElected(hold -> {
                    times.incrementAndGet();
                    while (true) {
                        hold.check();
                    }
                }).start()) {
            for (int time = 1; time <= 10; time++) {
                int term = time;
                eventually("it leads in term " + term, () -> times.get() == term && leader.hold().isPresent());
                server.command("DEL", "leader");
                eventually("it is deposed from term " + term, () -> deposed.get() == term);
            }
        }
    }

    @Test
    void cancelledFutureReleasesALateGrant() throws Exception {
        for (int time = 0; time < 200; time++) {
            var waiting = locks.lock("late").acquireAsync();
            for (long end = System.nanoTime() + ThreadLocalRandom.current().nextInt(300_000); System.nanoTime() < end;) {
                Thread.onSpinWait();
            }
            if (waiting.cancel(true)) {
                assertThrows(CancellationException.class, waiting::join);
            } else {
                waiting.join().close();
            }
        }
        eventually("it is free", () -> !server.isHeld("late") && server.waiters("late") == 0);
        var held = locks.lock("late").acquire();
        var waiting = locks.lock("late").acquireAsync();
        eventually("it waits", () -> server.waiters("late") == 1);
        waiting.cancel(false);
        eventually("it left the queue", () -> server.waiters("late") == 0);
        var timedOut = locks.lock("late").acquireAsync().orTimeout(1, TimeUnit.MILLISECONDS);
        assertThrows(java.util.concurrent.ExecutionException.class, timedOut::get);
        held.close();
        eventually("the late grant is released", () -> !server.isHeld("late") && server.waiters("late") == 0);
    }

    @Test
    void aThousandWaitersUseNoProcessorAndAreServed() throws Exception {
        var first = locks.lock("thousand").acquire();
        var order = new ArrayList<Integer>();
        var all = new ArrayList<CompletableFuture<Void>>();
        int threads = Thread.activeCount();
        for (int number = 0; number < 1000; number++) {
            int mine = number;
            all.add(locks.lock("thousand").acquireAsync().thenAccept(hold -> {
                order.add(mine);
                hold.close();
            }));
        }
        eventually("they wait", () -> server.waiters("thousand") == 16);
        assertTrue(Thread.activeCount() < threads + 50, "a thread for each");
        var process = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        Thread.sleep(500);
        long before = process.getProcessCpuTime();
        long calls = server.calls("lock.acquire");
        Thread.sleep(2000);
        long used = process.getProcessCpuTime() - before;
        assertTrue(used < 1_000_000_000, "1,000 waiters used " + used / 1_000_000 + " ms of a processor in 2 s");
        long asked = server.calls("lock.acquire") - calls;
        assertTrue(asked < 300, "1,000 waiters asked " + asked + " times in 2 s");
        first.close();
        CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).get(2 * SLACK.toSeconds(), TimeUnit.SECONDS);
        assertEquals(1000, order.size());
        assertEquals(List.copyOf(new java.util.TreeSet<>(order)), order, "in the order of their calls");
    }

    @Test
    void acquireUnderItsOwnBodyIsRefused() throws Exception {
        var lock = locks.lock("nested");
        assertThrows(AlreadyHeldException.class, () -> lock.run(hold -> {
            lock.waitFor(SLACK).acquire();
        }));
        assertThrows(AlreadyHeldException.class, () -> locks.read("nested").run(hold -> {
            locks.read("nested").tryAcquire();
        }));
        int found = lock.call(hold -> {
            locks.lock("another").acquire().close();
            return 5;
        });
        assertEquals(5, found);
        lock.acquire().close();
    }

    @Test
    void exceptionOfTheBodyHasTheLossSuppressed() {
        var thrown = assertThrows(IllegalStateException.class, () -> locks.lock("body").run(hold -> {
            server.command("DEL", "body");
            throw new IllegalStateException("mine");
        }));
        assertEquals(1, thrown.getSuppressed().length);
        assertTrue(thrown.getSuppressed()[0] instanceof LockLostException);
        assertThrows(LockLostException.class, () -> locks.lock("body").run(hold -> {
            server.command("DEL", "body");
        }));
    }
}
