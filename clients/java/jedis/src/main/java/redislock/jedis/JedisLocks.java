package redislock.jedis;

import java.io.IOException;
import java.net.Socket;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.function.Supplier;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisCredentials;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redislock.Credentials;
import redislock.Locks;

/**
 * Creates locks from the settings of Jedis: addresses, credentials, TLS, timeouts, the address mapper, and the
 * database.
 *
 * <pre>{@code
 * Locks locks = JedisLocks.builder(new HostAndPort("127.0.0.1", 6379), config).open();
 * }</pre>
 *
 * The locks have their own connections, which Jedis opens, because its pool is not made for long waits. So you may
 * close its clients first.
 */
public final class JedisLocks {
    private JedisLocks() {}

    /**
     * Takes the settings of one server.
     *
     * @param server its address
     * @param config the settings
     * @return a builder, for the settings of locks
     */
    public static Locks.Builder builder(HostAndPort server, JedisClientConfig config) {
        return with(Locks.builder().address(Objects.requireNonNull(server, "server must not be null").toString()), config);
    }

    /**
     * Takes the settings of a primary that Sentinel monitors.
     *
     * @param primary the primary's name in Sentinel
     * @param sentinels their addresses
     * @param config the settings for the primary
     * @param sentinelConfig the settings for the sentinels
     * @return a builder, for the settings of locks
     */
    public static Locks.Builder sentinel(String primary, Set<HostAndPort> sentinels, JedisClientConfig config,
            JedisClientConfig sentinelConfig) {
        Objects.requireNonNull(primary, "primary must not be null");
        Objects.requireNonNull(sentinelConfig, "sentinelConfig must not be null");
        var known = Set.copyOf(Objects.requireNonNull(sentinels, "sentinels must not be null"));
        return with(Locks.builder().sentinel(primary, texts(known)), config).sentinelLogin(credentials(sentinelConfig))
                .connector((host, port) -> {
                    var server = new HostAndPort(host, port);
                    return connect(server, known.contains(server) ? sentinelConfig : config);
                });
    }

    /**
     * Takes the settings of a cluster.
     *
     * @param nodes the addresses of some of its nodes
     * @param config the settings
     * @return a builder, for the settings of locks
     */
    public static Locks.Builder cluster(Set<HostAndPort> nodes, JedisClientConfig config) {
        return with(Locks.builder().cluster(texts(Objects.requireNonNull(nodes, "nodes must not be null"))), config);
    }

    private static List<String> texts(Collection<HostAndPort> servers) {
        return servers.stream().map(HostAndPort::toString).toList();
    }

    private static Locks.Builder with(Locks.Builder builder, JedisClientConfig config) {
        return builder.login(credentials(Objects.requireNonNull(config, "config must not be null"))).database(config.getDatabase())
                .connector((host, port) -> connect(new HostAndPort(host, port), config));
    }

    private static Socket connect(HostAndPort server, JedisClientConfig config) throws IOException {
        try {
            return new DefaultJedisSocketFactory(server, config).createSocket();
        } catch (JedisConnectionException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    private static Supplier<Credentials> credentials(JedisClientConfig config) {
        Supplier<RedisCredentials> provider = config.getAuthXManager();
        var asked = provider != null ? provider : config.getCredentialsProvider();
        return () -> {
            var got = asked == null ? null : asked.get();
            return got == null || got.getPassword() == null ? new Credentials("", "")
                    : new Credentials(got.getUser() == null ? "" : got.getUser(), new String(got.getPassword()));
        };
    }
}
