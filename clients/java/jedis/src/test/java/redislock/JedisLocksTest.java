package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultRedisCredentials;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.SslOptions;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redislock.jedis.JedisLocks;

class JedisLocksTest extends DriverContract {
    private static HostAndPort server(Settings settings) {
        return new HostAndPort("127.0.0.1", settings.port());
    }

    private static JedisClientConfig config(Settings settings) {
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(100).database(settings.database());
        if (settings.password() != null) {
            config.credentialsProvider(() -> new DefaultRedisCredentials("ann", settings.password().get()));
        }
        if (settings.trusted() != null) {
            var trusted = settings.trusted().toFile();
            config.sslOptions(trusted.isFile() ? SslOptions.builder().trustStoreType("PKCS12")
                    .truststore(trusted, Door.PASSWORD.toCharArray()).build() : SslOptions.defaults());
        }
        return config.build();
    }

    @Override
    Locks.Builder builder(Settings settings) {
        return JedisLocks.builder(server(settings), config(settings));
    }

    @Override
    Locks.Builder sentinel(Settings sentinel, Settings server) {
        return JedisLocks.sentinel("main", Set.of(server(sentinel)), config(server), config(sentinel));
    }

    @Override
    Class<? extends Exception> refused() {
        return JedisConnectionException.class;
    }

    @Test
    void nullIsRefusedByItsName() throws Exception {
        var server = new HostAndPort("127.0.0.1", 1);
        assertEquals(8, new Nulls(Map.of(HostAndPort.class, server, Set.class, Set.of(server), JedisClientConfig.class,
                DefaultJedisClientConfig.builder().build())).tries(JedisLocks.class));
    }
}
