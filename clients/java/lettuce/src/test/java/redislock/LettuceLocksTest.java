package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.SslVerifyMode;
import java.net.ConnectException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import redislock.lettuce.LettuceLocks;

class LettuceLocksTest extends DriverContract {
    private static RedisURI uri(Settings settings) {
        var uri = RedisURI.Builder.redis("127.0.0.1", settings.port()).withDatabase(settings.database())
                .withTimeout(Duration.ofMillis(100)).build();
        if (settings.password() != null) {
            uri.setCredentialsProvider(RedisCredentialsProvider.from(() ->
                    RedisCredentials.just("ann", settings.password().get())));
        }
        uri.setSsl(settings.trusted() != null);
        return uri;
    }

    private static ClientOptions options(Settings settings) {
        var ssl = SslOptions.builder();
        if (settings.trusted() != null && settings.trusted().toFile().isFile()) {
            ssl.truststore(settings.trusted().toFile(), Door.PASSWORD);
        }
        return ClientOptions.builder().sslOptions(ssl.build()).build();
    }

    @Override
    Locks.Builder builder(Settings settings) {
        return LettuceLocks.builder(uri(settings), options(settings));
    }

    @Override
    Locks.Builder sentinel(Settings sentinel, Settings server) {
        var uri = uri(server);
        uri.setHost(null);
        uri.setSentinelMasterId("main");
        uri.getSentinels().add(uri(sentinel));
        return LettuceLocks.builder(uri, options(sentinel));
    }

    @Override
    Class<? extends Exception> refused() {
        return ConnectException.class;
    }

    @Test
    void namesOfServersAreVerifiedAsTheUriSays(@TempDir Path directory) throws Exception {
        var store = Door.store(directory, "dns:elsewhere.example");
        var trusted = Door.trusted(store);
        try (var door = Door.secure(server.port, store)) {
            var settings = new Settings(door.port, 0, null, trusted);
            for (var mode : SslVerifyMode.values()) {
                var uri = uri(settings);
                uri.setVerifyPeer(mode);
                // Without the certificate, where none is asked for.
                var options = mode == SslVerifyMode.NONE ? ClientOptions.create() : options(settings);
                try (var other = LettuceLocks.builder(uri, options).open()) {
                    var lock = other.lock("secure").waitFor(mode == SslVerifyMode.FULL ? Duration.ofMillis(500) : Server.SLACK);
                    if (mode == SslVerifyMode.FULL) {
                        assertThrows(ConnectionFailedException.class, lock::acquire);
                    } else {
                        lock.acquire().close();
                    }
                }
            }
        }
    }

    @Test
    void socketsOfUnixAndStartTlsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> LettuceLocks.builder(RedisURI.create("redis-socket:///tmp/redis")));
        var uri = RedisURI.create("rediss://127.0.0.1:6379");
        uri.setStartTls(true);
        assertThrows(IllegalArgumentException.class, () -> LettuceLocks.builder(uri));
    }

    @Test
    void nullIsRefusedByItsName() throws Exception {
        var uri = RedisURI.create("redis://127.0.0.1:1");
        assertEquals(5, new Nulls(Map.of(RedisURI.class, uri, Iterable.class, List.of(uri), ClientOptions.class,
                ClientOptions.create())).tries(LettuceLocks.class));
    }
}
