package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.redisson.Redisson;
import org.redisson.config.Config;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.integration.support.locks.LockRegistry;

/** The examples of docs/how-to/migrate*.md in Java, before and after: both work, and exclude each other meanwhile. */
class MigratingTest extends OneServer {
    private static final String IMPORTS = """
            import java.time.Duration;
            import java.util.*;
            import java.util.concurrent.TimeUnit;
            import java.util.concurrent.locks.Lock;
            import java.util.function.Consumer;
            import net.javacrumbs.shedlock.core.LockProvider;
            import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
            import org.redisson.api.*;
            import org.springframework.context.annotation.Bean;
            import org.springframework.data.redis.connection.RedisConnectionFactory;
            import org.springframework.data.redis.core.StringRedisTemplate;
            import org.springframework.data.redis.core.script.DefaultRedisScript;
            import org.springframework.integration.redis.util.RedisLockRegistry;
            import org.springframework.integration.support.locks.LockRegistry;
            import redislock.Hold;
            import redislock.Locks;
            import redislock.shedlock.RedislockLockProvider;
            import redislock.spring.integration.RedislockLockRegistry;

            """;
    @TempDir
    static Path folder;

    /** The objects that an example may use. */
    interface Example {
        void run(Object driver, Locks locks, Consumer<Long> pay) throws Exception;
    }

    @BeforeAll
    static void migrate() {
        server.command("CONFIG", "SET", "redislock.legacy-strings", "yes");
    }

    private static LettuceConnectionFactory connections() {
        var connections = new LettuceConnectionFactory("127.0.0.1", server.port);
        connections.afterPropertiesSet();
        connections.start();
        return connections;
    }

    private static String shown(String when, String what) throws Exception {
        var page = what.equals("redisson") || what.equals("reentrant") ? "migrate-redisson.md" : "migrate.md";
        return new Page("../../../docs/how-to/" + page).shown("<!-- " + when + ": " + what + " -->\n```java\n(.*?)```")
                .replace("127.0.0.1:6379", server.address()).replace("ofSeconds(5)", "ofMillis(20)")
                .replace("tryLock(5, 30, TimeUnit.SECONDS)", "tryLock(20, 30_000, TimeUnit.MILLISECONDS)")
                .replace("tryLock(5, TimeUnit.SECONDS)", "tryLock(20, TimeUnit.MILLISECONDS)");
    }

    /** Compiles statements, which use redis or redisson, locks and pay. */
    private static Example example(String when, String what) throws Exception {
        var name = when + what;
        var type = Page.compiled(folder, name, IMPORTS + "public class " + name + " {\n"
                + "    StringRedisTemplate redis;\n    RedissonClient redisson;\n    Locks locks;\n    Consumer<Long> paid;\n"
                + "    void pay() { paid.accept(0L); }\n    void pay(long token) { paid.accept(token); }\n"
                + "    public void run(Object driver, Locks locks, Consumer<Long> paid) throws Exception {\n"
                + "        redis = driver instanceof StringRedisTemplate one ? one : null;\n"
                + "        redisson = driver instanceof RedissonClient one ? one : null;\n"
                + "        this.paid = paid;\n" + shown(when, what) + "    }\n}\n");
        var run = type.getMethod("run", Object.class, Locks.class, Consumer.class);
        var made = type.getConstructor().newInstance();
        return (driver, locks, paid) -> run.invoke(made, driver, locks, paid);
    }

    /** Runs an example, and returns the tokens with which it paid. In a thread of its own, as another program. */
    private List<Long> paid(Example example, Object driver, Consumer<Long> meanwhile) throws Exception {
        var tokens = new ArrayList<Long>();
        var done = new CompletableFuture<List<Long>>();
        new Thread(() -> {
            try {
                example.run(driver, locks, token -> {
                    tokens.add(token);
                    meanwhile.accept(token);
                });
                done.complete(tokens);
            } catch (java.lang.reflect.InvocationTargetException e) {
                if (e.getCause() instanceof LockTimeoutException) {
                    done.complete(tokens);
                }
                done.completeExceptionally(e.getCause());
            } catch (Exception e) {
                done.completeExceptionally(e);
            }
        }).start();
        return done.get(Server.SLACK.toSeconds(), TimeUnit.SECONDS);
    }

    private void areExclusive(Object driver, Example one, Example other) throws Exception {
        var inside = new ArrayList<Long>();
        assertEquals(1, paid(one, driver, token -> {
            try {
                inside.addAll(paid(other, driver, nothing -> { }));
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }).size());
        assertEquals(List.of(), inside, "both are inside");
    }

    @Test
    void redisTemplateBecomesThreeLines() throws Exception {
        var connections = connections();
        var redis = new StringRedisTemplate(connections);
        var before = example("before", "template");
        var after = example("after", "template");
        assertEquals(List.of(0L), paid(before, redis, token -> { }));
        assertTrue(paid(after, redis, token -> { }).get(0) > 0);
        areExclusive(redis, before, after);
        areExclusive(redis, after, before);
        assertEquals(3, shown("after", "template").strip().lines().count());
        assertFalse(server.isHeld("invoice:42"));
        assertEquals(0L, server.command("EXISTS", "invoice:42"));
        connections.destroy();
    }

    @Test
    void redissonIsLeftInTwoReleases() throws Exception {
        var config = new Config();
        config.useSingleServer().setAddress("redis://" + server.address()).setConnectionMinimumIdleSize(1);
        var redisson = Redisson.create(config);
        try {
            var before = example("before", "redisson");
            var both = example("both", "redisson");
            var after = example("after", "redisson");
            assertEquals(List.of(0L), paid(before, redisson, token -> { }));
            areExclusive(redisson, before, both);
            areExclusive(redisson, both, before);
            areExclusive(redisson, both, after);
            areExclusive(redisson, after, both);
            assertTrue(paid(after, redisson, token -> { }).get(0) > 0);
            var reentrant = example("after", "reentrant");
            areExclusive(redisson, reentrant, after);
        } finally {
            redisson.shutdown();
        }
    }

    /** Starts a program whose beans the page shows. */
    private static AnnotationConfigApplicationContext program(String when, String what) throws Exception {
        var name = when + what;
        var type = Page.compiled(folder, name, IMPORTS + "public class " + name + " {\n" + shown(when, what) + "}\n");
        var program = new AnnotationConfigApplicationContext();
        program.registerBean(RedisConnectionFactory.class, MigratingTest::connections);
        program.register(type);
        program.refresh();
        return program;
    }

    @Test
    void providersOfShedLockExcludeEachOther() throws Exception {
        try (var before = program("before", "shedlock"); var after = program("after", "shedlock")) {
            var job = new LockConfiguration(Instant.now(), "job", Duration.ofMinutes(30), Duration.ZERO);
            var old = before.getBean(LockProvider.class);
            var next = after.getBean(LockProvider.class);
            var held = old.lock(job).orElseThrow();
            assertTrue(next.lock(job).isEmpty());
            held.unlock();
            held = next.lock(job).orElseThrow();
            assertTrue(old.lock(job).isEmpty());
            held.unlock();
            assertNull(server.command("LOCK.INFO", "job-lock:prod:job"));
        }
    }

    @Test
    void registriesOfSpringIntegrationExcludeEachOther() throws Exception {
        try (var before = program("before", "registry"); var after = program("after", "registry")) {
            var old = before.getBean(LockRegistry.class).obtain("job");
            var next = after.getBean(LockRegistry.class).obtain("job");
            assertTrue(old.tryLock());
            assertFalse(next.tryLock());
            old.unlock();
            assertTrue(next.tryLock());
            assertThrows(CannotAcquireLockException.class, old::tryLock, "its script reads a key that is no string");
            next.unlock();
            assertNull(server.command("LOCK.INFO", "orders:job"));
        }
    }
}
