package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import net.javacrumbs.shedlock.test.support.FuzzTester;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redislock.shedlock.RedislockLockProvider;

/**
 * The tests that ShedLock publishes for all of its providers, and some own ones. The leases of seconds, and what is slept
 * until they end, are three times as long as in the published ones, for a busy machine.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class RedislockLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    private static final int SLOWER = 3;
    private static Server server;
    private static Locks locks;
    private static RedislockLockProvider provider;

    @BeforeAll
    static void start() {
        server = new Server();
        locks = server.locks();
        provider = new RedislockLockProvider(locks);
    }

    @AfterAll
    static void end() {
        locks.close();
        server.close();
    }

    private static LockConfiguration config(String name, Duration most, Duration least) {
        return new LockConfiguration(Instant.now(), name, most, least);
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return asked -> provider.lock(config(asked.getName(), asked.getLockAtMostFor().multipliedBy(SLOWER),
                asked.getLockAtLeastFor()));
    }

    @Override
    protected void assertUnlocked(String name) {
        assertFalse(server.isHeld(name));
    }

    @Override
    protected void assertLocked(String name) {
        assertTrue(server.isHeld(name));
    }

    /** Sleeps for as much longer, and for what the shortest leases are raised by. */
    @Override
    protected void sleepFor(Duration published) {
        super.sleepFor(published.multipliedBy(SLOWER).plusMillis(200));
    }

    /** The published one has a lease of 50 ms. */
    @Override
    @Test
    public void shouldTimeout() throws InterruptedException {
        var name = "times-out";
        provider.lock(config(name, Duration.ofMillis(50), Duration.ZERO)).orElseThrow();
        Server.eventually("it ends", () -> !server.isHeld(name));
        provider.lock(config(name, Duration.ofSeconds(60), Duration.ZERO)).orElseThrow().unlock();
        assertUnlocked(name);
    }

    /** Takes a tenth of the published turns, whose threads ask without a pause. */
    @Override
    @Test
    public void fuzzTestShouldPass() throws ExecutionException, InterruptedException {
        new FuzzTester(getLockProvider(), Duration.ofMillis(1), Duration.ofMinutes(5), FuzzTester.SHORT_ITERATION).doFuzzTest();
    }

    @Test
    void unlockAfterItsTimeIsSilentAndEndsNoOtherLock() {
        var late = provider.lock(config("late", Duration.ofMillis(100), Duration.ZERO)).orElseThrow();
        Optional<SimpleLock> next = Optional.empty();
        for (long end = System.nanoTime() + Server.SLACK.toNanos(); next.isEmpty() && System.nanoTime() < end;) {
            next = provider.lock(config("late", Duration.ofSeconds(60), Duration.ZERO));
        }
        late.unlock();
        assertLocked("late");
        next.orElseThrow().unlock();
        assertUnlocked("late");
    }

    @Test
    void serverThatIsAwayIsNotBusy() {
        try (var away = Locks.open("redis://127.0.0.1:1")) {
            assertThrows(ConnectionFailedException.class, () ->
                    new RedislockLockProvider(away).lock(config("k", Duration.ofSeconds(9), Duration.ZERO)));
        }
    }

    @Test
    void interruptIsKept() {
        Thread.currentThread().interrupt();
        assertThrows(LockException.class, () -> provider.lock(config("i", Duration.ofSeconds(9), Duration.ZERO)));
        assertTrue(Thread.interrupted());
        assertUnlocked("i");
    }

    @Test
    void nullIsRefusedByItsName() throws Exception {
        var nulls = new Nulls(Map.of(Locks.class, locks, LockConfiguration.class, config("k", Duration.ofSeconds(9), Duration.ZERO),
                RedislockLockProvider.class, provider));
        assertEquals(2, nulls.tries(RedislockLockProvider.class));
    }
}
