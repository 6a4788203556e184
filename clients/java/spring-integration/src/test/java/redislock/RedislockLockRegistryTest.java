package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import redislock.spring.integration.RedislockLockRegistry;

class RedislockLockRegistryTest extends OneServer {
    private RedislockLockRegistry registry;

    @BeforeEach
    void register() {
        registry = new RedislockLockRegistry(locks, Duration.ofSeconds(60));
    }

    @Test
    void lockIsReentrantAndExcludesOtherThreads() throws Exception {
        var lock = registry.obtain("k");
        lock.lock();
        assertTrue(registry.obtain("k").tryLock());
        lock.lockInterruptibly();
        assertFalse(elsewhere(() -> registry.obtain("k").tryLock()));
        assertFalse(elsewhere(() -> lock.tryLock(20, TimeUnit.MILLISECONDS)));
        lock.unlock();
        lock.unlock();
        assertTrue(server.isHeld("k"));
        lock.unlock();
        assertFalse(server.isHeld("k"));
        assertThrows(IllegalStateException.class, lock::unlock);
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
        assertThrows(IllegalArgumentException.class, () -> registry.obtain(42));
    }

    @Test
    void foreignUnlockAndRenewalAreRefused() throws Exception {
        var lock = registry.obtain("foreign");
        lock.lock();
        assertInstanceOf(IllegalStateException.class, elsewhere(() -> assertThrows(RuntimeException.class, lock::unlock)));
        assertInstanceOf(IllegalStateException.class, elsewhere(() ->
                assertThrows(RuntimeException.class, () -> registry.renewLock("foreign"))));
        assertTrue(server.isHeld("foreign"));
        lock.unlock();
    }

    @Test
    void timeToLiveEndsTheLockUnlessItIsRenewed() throws Exception {
        var lock = registry.obtain("ttl");
        lock.lock(Duration.ofMillis(500));
        eventually("it ends", () -> !server.isHeld("ttl"));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertTrue(lock.tryLock(SLACK, Duration.ofSeconds(30)));
        registry.renewLock("ttl");
        assertTrue(locks.info("ttl").orElseThrow().holders().get(0).left().toSeconds() > 30);
        registry.renewLock("ttl", Duration.ofSeconds(300));
        assertTrue(locks.info("ttl").orElseThrow().holders().get(0).left().toSeconds() > 200);
        lock.unlock();
    }

    @Test
    void lostLockIsForgottenFirst() throws Exception {
        var lock = registry.obtain("lost");
        lock.lock();
        server.command("DEL", "lost");
        eventually("the next try of its own thread takes it again", () -> lock.tryLock() && server.isHeld("lost"));
        server.command("DEL", "lost");
        var other = locks.lock("lost").acquire();
        eventually("its own thread has it no more", () -> !lock.tryLock());
        assertThrows(IllegalStateException.class, lock::unlock);
        assertTrue(server.isHeld("lost"));
        other.close();
        lock.lock();
        server.command("DEL", "lost");
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertThrows(IllegalStateException.class, lock::unlock);
        assertTrue(lock.tryLock());
        lock.unlock();
    }

    @Test
    void interruptEndsOnlyWaitsThatMayBeInterrupted() throws Exception {
        var held = locks.lock("waits").acquire();
        var kept = new CompletableFuture<Boolean>();
        var thread = new Thread(() -> {
            registry.obtain("waits").lock();
            registry.obtain("waits").unlock();
            kept.complete(Thread.interrupted());
        });
        thread.start();
        eventually("it waits", () -> server.waiters("waits") == 1);
        thread.interrupt();
        assertThrows(InterruptedException.class, () -> {
            Thread.currentThread().interrupt();
            registry.obtain("waits").lockInterruptibly();
        });
        assertEquals(1, server.waiters("waits"));
        held.close();
        assertTrue(kept.get(SLACK.toSeconds(), TimeUnit.SECONDS));
    }

    @Test
    void bodiesRunUnderTheLock() throws Exception {
        assertTrue(registry.<Boolean, Exception>executeLocked("body", () -> server.isHeld("body")));
        assertFalse(server.isHeld("body"));
        var held = locks.lock("body").acquire();
        assertThrows(TimeoutException.class, () ->
                registry.executeLocked("body", Duration.ofMillis(20), () -> server.isHeld("body")));
        held.close();
    }

    @Test
    void serverThatIsAwayIsNotBusy() {
        try (var away = Locks.open("redis://127.0.0.1:1")) {
            var lock = new RedislockLockRegistry(away, Duration.ofSeconds(9)).obtain("k");
            assertThrows(ConnectionFailedException.class, lock::tryLock);
        }
    }

    @Test
    void lockOfAThreadThatHasEndedIsNotRenewedForEver() throws Exception {
        var brief = new RedislockLockRegistry(locks, Duration.ofMillis(500));
        elsewhere(() -> {
            brief.obtain("left").lock();
            return true;
        });
        eventually("it ends", () -> {
            System.gc();
            return !server.isHeld("left");
        });
    }

    @Test
    void nullIsRefusedByItsName() throws Exception {
        var nulls = new Nulls(Map.of(Locks.class, locks, Object.class, "k", RedislockLockRegistry.class, registry));
        assertEquals(6, nulls.tries(RedislockLockRegistry.class));
    }
}
