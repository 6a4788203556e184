package redislock.spring.boot;

import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;
import redislock.Locks;

/**
 * The properties {@code redislock.*}. Properties that are not set have the defaults of {@link Locks.Builder}.
 *
 * @param url the URL of one server: redis://user:password@host:port/database, or rediss:// for TLS
 * @param sentinel the sentinels, in place of a URL
 * @param cluster the nodes of a cluster, in place of a URL
 * @param username the user, who may also be in the URL
 * @param password the password, which may also be in the URL
 * @param database the database, which may also be in the URL
 * @param lease the lease of locks that set none
 * @param label names this process for operators, as in LOCK.INFO: host:pid by default
 * @param prefix prepended to each lock name on the server
 * @param serverTimeout a wait without a limit fails after no server has answered for this long
 * @param maxQueuedPerLock how many requests of these locks the server queues for one lock
 */
@ConfigurationProperties("redislock")
public record RedislockProperties(@DefaultValue("redis://127.0.0.1:6379") String url, @Nullable Sentinel sentinel,
        @Nullable Cluster cluster, @DefaultValue("") String username, @Nullable String password, @Nullable Integer database,
        @DefaultValue("30s") Duration lease, @Nullable String label, @DefaultValue("") String prefix,
        @Nullable Duration serverTimeout, @Nullable Integer maxQueuedPerLock) {

    /**
     * The sentinels that monitor the primary.
     *
     * @param primary the primary's name in Sentinel
     * @param nodes their addresses, as host:port
     * @param username the user
     * @param password the password
     */
    public record Sentinel(@DefaultValue("") String primary, @DefaultValue List<String> nodes,
            @DefaultValue("") String username, @Nullable String password) {}

    /**
     * Some nodes of a cluster.
     *
     * @param nodes their addresses, as host:port
     */
    public record Cluster(@DefaultValue List<String> nodes) {}

    /**
     * Returns a builder with these settings.
     *
     * @return a builder
     */
    public Locks.Builder builder() {
        var builder = Locks.builder().url(url).lease(lease).prefix(prefix);
        if (sentinel != null) {
            if (sentinel.primary.isEmpty() || sentinel.nodes.isEmpty() || cluster != null) {
                throw new IllegalArgumentException("redislock.sentinel.primary and redislock.sentinel.nodes must both be set, "
                        + "and redislock.cluster must not be");
            }
            builder.sentinel(sentinel.primary, sentinel.nodes);
            if (sentinel.password != null) {
                builder.sentinelLogin(sentinel.username, sentinel.password);
            }
        }
        if (cluster != null) {
            builder.cluster(cluster.nodes);
        }
        if (password != null) {
            builder.login(username, password);
        }
        if (database != null) {
            builder.database(database);
        }
        if (label != null) {
            builder.label(label);
        }
        if (serverTimeout != null) {
            builder.serverTimeout(serverTimeout);
        }
        if (maxQueuedPerLock != null) {
            builder.maxQueuedPerLock(maxQueuedPerLock);
        }
        return builder;
    }
}
