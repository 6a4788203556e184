package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.net.ServerSocket;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The tests that must pass with the settings of each driver. */
abstract class DriverContract extends OneServer {
    /**
     * The settings that a driver gets.
     *
     * @param password that of the user ann; null for no login
     * @param trusted the certificates of TLS: null without TLS
     */
    record Settings(int port, int database, Supplier<String> password, Path trusted) {
        Settings(int port) {
            this(port, 0, null, null);
        }
    }

    /** Configures the driver. If it has such a setting, a reply must arrive within 100 ms. */
    abstract Locks.Builder builder(Settings settings);

    abstract Locks.Builder sentinel(Settings sentinel, Settings server);

    /** The class of the driver's own error for a connection that is refused. */
    abstract Class<? extends Exception> refused();

    @Test
    void timeOutsOfTheDriverEndNoWait() throws Exception {
        var held = locks.lock("k").acquire();
        try (var other = builder(new Settings(server.port)).open()) {
            var waiting = other.lock("k").acquireAsync();
            eventually("it waits", () -> server.waiters("k") == 1);
            long connections = server.calls("hello");
            Thread.sleep(1000);
            // One is that of the question.
            assertEquals(connections + 1, server.calls("hello"), "it connects again");
            held.close();
            waiting.get(SLACK.toSeconds(), TimeUnit.SECONDS).close();
        }
    }

    @Test
    void credentialsAreAskedForWithEachConnection() throws Exception {
        server.command("ACL", "SETUSER", "ann", "resetpass", ">one", "on", "~*", "+@all");
        var password = new AtomicReference<>("one");
        try (var other = builder(new Settings(server.port, 0, password::get, null)).open()) {
            other.lock("a").acquire().close();
            server.command("ACL", "SETUSER", "ann", "resetpass", ">two");
            password.set("two");
            server.command("CLIENT", "KILL", "USER", "ann");
            other.lock("a").waitFor(SLACK).acquire().close();
            password.set("wrong");
            server.command("CLIENT", "KILL", "USER", "ann");
            var thrown = assertThrows(LockException.class, () -> other.lock("a").waitFor(Duration.ofMillis(500)).acquire());
            assertTrue(thrown.getMessage().contains("WRONGPASS"), thrown.getMessage());
        }
    }

    @Test
    void databaseIsSelected() throws Exception {
        try (var other = builder(new Settings(server.port, 3, null, null)).open(); var hold = other.lock("in-three").acquire()) {
            hold.check();
            assertFalse(server.isHeld("in-three"));
            assertTrue(String.valueOf(server.command("INFO", "keyspace")).contains("db3:keys=1"));
        }
    }

    @Test
    void certificatesAreCheckedAsTheDriverDoes(@TempDir Path directory) throws Exception {
        var store = Door.store(directory, "ip:127.0.0.1");
        try (var door = Door.secure(server.port, store);
                var other = builder(new Settings(door.port, 0, null, Door.trusted(store))).open();
                var strict = builder(new Settings(door.port, 0, null, Path.of(""))).open()) {
            other.lock("secure").waitFor(SLACK).acquire().close();
            var thrown = assertThrows(ConnectionFailedException.class, () ->
                    strict.lock("secure").waitFor(Duration.ofMillis(500)).acquire());
            assertTrue(thrown.getMessage().contains("127.0.0.1:" + door.port), thrown.getMessage());
        }
    }

    @Test
    void sentinelsHaveSettingsOfTheirOwn(@TempDir Path directory) throws Exception {
        server.command("ACL", "SETUSER", "ann", "resetpass", ">one", "on", "~*", "+@all");
        var asked = new CopyOnWriteArrayList<String>();
        Supplier<String> there = () -> asked.add("sentinel") ? "of the sentinel" : "";
        Supplier<String> here = () -> asked.add("server") ? "one" : "";
        var store = Door.store(directory, "ip:127.0.0.1");
        try (var sentinel = Door.sentinel(server.port); var secure = Door.secure(sentinel.port, store);
                var other = sentinel(new Settings(secure.port, 0, there, Door.trusted(store)),
                        new Settings(0, 3, here, null)).open()) {
            other.lock("k").waitFor(SLACK).acquire().close();
            assertEquals(List.of("sentinel", "server"), asked);
        }
    }

    @Test
    void errorsOfTheDriverAreTheCause() throws Exception {
        int port;
        try (var free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        try (var other = builder(new Settings(port)).open()) {
            var thrown = assertThrows(ConnectionFailedException.class, () -> other.lock("k").waitFor(Duration.ofMillis(200)).acquire());
            assertTrue(thrown.getMessage().contains("127.0.0.1:" + port), thrown.getMessage());
            Throwable cause = thrown;
            while (cause != null && !refused().isInstance(cause)) {
                cause = cause.getCause();
            }
            assertTrue(cause != null, thrown.toString());
        }
    }
}
