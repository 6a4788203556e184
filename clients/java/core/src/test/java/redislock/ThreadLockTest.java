package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class ThreadLockTest extends OneServer {
    @Test
    void lockIsReentrantOverOneHoldOfTheServer() throws Exception {
        ThreadLock lock = locks.lock("k").asLock();
        lock.lock();
        long token = lock.hold().orElseThrow().token();
        assertTrue(locks.lock("k").asLock().tryLock());
        lock.lockInterruptibly();
        assertTrue(lock.tryLock(1, TimeUnit.MILLISECONDS));
        assertEquals(token, lock.hold().orElseThrow().token());
        assertEquals(1, locks.info("k").orElseThrow().holds());
        assertFalse(elsewhere(() -> locks.lock("k").asLock().tryLock()));
        assertFalse(elsewhere(() -> lock.tryLock(20, TimeUnit.MILLISECONDS)));
        assertTrue(elsewhere(() -> lock.hold().isEmpty()));
        for (int count = 3; count > 0; count--) {
            lock.unlock();
            assertTrue(server.isHeld("k"));
        }
        lock.unlock();
        assertFalse(server.isHeld("k"));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }

    @Test
    void foreignUnlockIsRefused() throws Exception {
        var lock = locks.lock("foreign").asLock();
        lock.lock();
        assertInstanceOf(IllegalMonitorStateException.class,
                elsewhere(() -> assertThrows(RuntimeException.class, lock::unlock)));
        assertTrue(server.isHeld("foreign"));
        lock.unlock();
    }

    @Test
    void otherKindsAreOtherLocks() throws Exception {
        var reader = locks.read("rw").asLock();
        reader.lock();
        assertTrue(elsewhere(() -> {
            reader.lock();
            reader.unlock();
            return locks.read("rw").asLock().tryLock();
        }));
        assertFalse(locks.write("rw").asLock().tryLock());
        reader.unlock();
        var both = locks.many(List.of("a", "b")).asLock();
        both.lock();
        assertTrue(server.isHeld("a") && server.isHeld("b"));
        both.unlock();
        assertFalse(server.isHeld("a") || server.isHeld("b"));
    }

    @Test
    void settingsOfTheLockHold() throws Exception {
        var held = locks.lock("set").acquire();
        assertThrows(LockTimeoutException.class, () -> locks.lock("set").waitFor(Duration.ofMillis(20)).asLock().lock());
        held.close();
        var once = locks.lock("set").lease(Duration.ofSeconds(200)).noRenewal().asLock();
        once.lock();
        assertTrue(once.hold().orElseThrow().remaining().toSeconds() > 100);
        assertTrue(locks.lock("set").asLock().tryLock(), "the same lock, whatever its lease");
        locks.lock("set").asLock().unlock();
        once.unlock();
        assertFalse(server.isHeld("set"));
    }

    @Test
    void uninterruptibleWaitKeepsTheFlag() throws Exception {
        var held = locks.lock("waits").acquire();
        var kept = new CompletableFuture<Boolean>();
        var thread = new Thread(() -> {
            var lock = locks.lock("waits").asLock();
            lock.lock();
            lock.unlock();
            kept.complete(Thread.interrupted());
        });
        thread.start();
        eventually("it waits", () -> server.waiters("waits") == 1);
        thread.interrupt();
        assertThrows(InterruptedException.class, () -> {
            Thread.currentThread().interrupt();
            locks.lock("waits").asLock().lockInterruptibly();
        });
        assertEquals(1, server.waiters("waits"), "an interrupt does not end the wait of lock()");
        held.close();
        assertTrue(kept.get(SLACK.toSeconds(), TimeUnit.SECONDS));
        eventually("the interrupted thread's release arrives", () -> !server.isHeld("waits"));
        Thread.currentThread().interrupt();
        assertTrue(locks.lock("waits").asLock().tryLock(), "tryLock() is not interruptible");
        locks.lock("waits").asLock().unlock();
        assertTrue(Thread.interrupted());
        eventually("it is free", () -> !server.isHeld("waits"));
    }

    @Test
    void lostLockIsGoneLocallyBeforeUnlockSaysSo() throws Exception {
        var lock = locks.lock("lost").asLock();
        lock.lock();
        lock.lock();
        server.command("DEL", "lost");
        lock.unlock();
        assertThrows(LockLostException.class, lock::unlock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(elsewhere(() -> {
            boolean isTaken = lock.tryLock();
            lock.unlock();
            return isTaken;
        }));
        assertTrue(lock.tryLock());
        lock.unlock();
    }

    @Test
    void leaderByTryLockLeadsNoMoreOnceItsLockIsLost() throws Exception {
        var lock = locks.lock("leads").asLock();
        assertTrue(lock.tryLock());
        server.command("DEL", "leads");
        var successor = locks.lock("leads").waitFor(SLACK).acquire();
        eventually("a reentrant tryLock asks the server", () -> !lock.tryLock());
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(server.isHeld("leads"), "the successor's hold is left alone");
        successor.close();
    }

    @Test
    void lockWhoseHoldWasReleasedIsAcquiredAgain() throws Exception {
        var lock = locks.lock("again").asLock();
        lock.lock();
        long token = lock.hold().orElseThrow().token();
        lock.hold().orElseThrow().release();
        assertTrue(lock.tryLock());
        assertTrue(lock.hold().orElseThrow().token() > token);
        assertTrue(server.isHeld("again"));
        lock.unlock();
    }

    @Test
    void stageOfAnAcquireMayTakeALock() throws Exception {
        var lock = locks.lock("inner").asLock();
        locks.lock("outer").acquireAsync().thenAccept(hold -> {
            lock.lock();
            lock.unlock();
            hold.close();
        }).get(SLACK.toSeconds(), TimeUnit.SECONDS);
    }

    @Test
    void serverThatIsAwayIsNotBusy() {
        try (var away = Locks.open("redis://127.0.0.1:1")) {
            assertThrows(ConnectionFailedException.class, () -> away.lock("k").asLock().tryLock());
        }
    }

    @Test
    void lockOfAThreadThatHasEndedIsNotRenewedForEver() throws Exception {
        assertTrue(elsewhere(() -> locks.lock("left").lease(Duration.ofMillis(500)).asLock().tryLock()));
        eventually("it ends", () -> {
            System.gc();
            return !server.isHeld("left");
        });
    }
}
