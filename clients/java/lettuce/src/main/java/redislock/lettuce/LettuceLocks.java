package redislock.lettuce;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.SslVerifyMode;
import io.netty.handler.ssl.JdkSslContext;
import io.netty.handler.ssl.SslProvider;
import io.netty.handler.ssl.util.InsecureTrustManagerFactory;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Supplier;
import javax.net.ssl.SSLSocket;
import redislock.Credentials;
import redislock.Locks;

/**
 * Creates locks from the settings of Lettuce: addresses, credentials, TLS, Sentinel and the database.
 *
 * <pre>{@code
 * Locks locks = LettuceLocks.builder(RedisURI.create("redis://127.0.0.1:6379")).open();
 * }</pre>
 *
 * The locks have their own connections, because a command timeout of Lettuce would end a wait. So you may close its
 * client first.
 */
public final class LettuceLocks {
    private static final Duration TIMEOUT = Duration.ofSeconds(2);

    private LettuceLocks() {}

    /**
     * Takes the settings of one server, or of the primary that sentinels know.
     *
     * @param uri as the client of Lettuce has it. All sentinels have the credentials of the first
     * @return a builder, for the settings of locks
     */
    public static Locks.Builder builder(RedisURI uri) {
        return builder(uri, ClientOptions.create());
    }

    /**
     * Takes the settings of one server, or of the primary that sentinels know.
     *
     * @param uri as the client of Lettuce has it. All sentinels have the credentials of the first
     * @param options as {@code RedisClient.getOptions()} returns them: the certificates, ciphers and protocols of TLS
     * @return a builder, for the settings of locks
     */
    public static Locks.Builder builder(RedisURI uri, ClientOptions options) {
        Objects.requireNonNull(options, "options must not be null");
        var sentinels = Objects.requireNonNull(uri, "uri must not be null").getSentinels();
        if (sentinels.isEmpty()) {
            return with(Locks.builder().address(address(uri)), uri, List.of(), options);
        }
        return with(Locks.builder().sentinel(String.valueOf(uri.getSentinelMasterId()), addresses(sentinels)), uri, sentinels,
                options).sentinelLogin(credentials(sentinels.get(0)));
    }

    /**
     * Takes the settings of a cluster.
     *
     * @param uris some of its nodes. All nodes have the credentials and the TLS of the first
     * @param options as {@code RedisClusterClient.getOptions()} returns them
     * @return a builder, for the settings of locks
     */
    public static Locks.Builder cluster(Iterable<RedisURI> uris, ClientOptions options) {
        var nodes = new ArrayList<RedisURI>();
        Objects.requireNonNull(options, "options must not be null");
        Objects.requireNonNull(uris, "uris must not be null").forEach(nodes::add);
        var builder = Locks.builder().cluster(addresses(nodes));
        return with(builder, nodes.get(0), List.of(), options);
    }

    private static List<String> addresses(List<RedisURI> uris) {
        return uris.stream().map(LettuceLocks::address).toList();
    }

    private static String address(RedisURI uri) {
        if (uri.getSocket() != null || uri.isStartTls()) {
            throw new IllegalArgumentException("the RedisURI must have a host and a port, and no STARTTLS");
        }
        return uri.getHost() + ":" + uri.getPort();
    }

    private static Locks.Builder with(Locks.Builder builder, RedisURI uri, List<RedisURI> sentinels, ClientOptions options) {
        Map<String, RedisURI> known = new HashMap<>();
        sentinels.forEach(each -> known.put(address(each), each));
        return builder.login(credentials(uri)).database(uri.getDatabase()).connector((host, port) ->
                connect(known.getOrDefault(host + ":" + port, uri), options.getSslOptions(), host, port));
    }

    private static Supplier<Credentials> credentials(RedisURI uri) {
        return () -> {
            var got = uri.getCredentialsProvider().resolveCredentials().block(TIMEOUT);
            return got == null || !got.hasPassword() ? new Credentials("", "")
                    : new Credentials(got.hasUsername() ? got.getUsername() : "", new String(got.getPassword()));
        };
    }

    private static Socket connect(RedisURI uri, SslOptions options, String host, int port) throws IOException {
        var plain = new Socket();
        try {
            plain.connect(new InetSocketAddress(host, port), (int) TIMEOUT.toMillis());
            return uri.isSsl() ? secure(uri, options, plain, host, port) : plain;
        } catch (IOException | GeneralSecurityException e) {
            plain.close();
            throw e instanceof IOException failed ? failed : new IOException(e);
        }
    }

    private static Socket secure(RedisURI uri, SslOptions options, Socket plain, String host, int port)
            throws IOException, GeneralSecurityException {
        var builder = options.createSslContextBuilder().sslProvider(SslProvider.JDK);
        if (uri.getVerifyMode() == SslVerifyMode.NONE) {
            builder.trustManager(InsecureTrustManagerFactory.INSTANCE);
        }
        var factory = ((JdkSslContext) builder.build()).context().getSocketFactory();
        var secure = (SSLSocket) factory.createSocket(plain, host, port, true);
        var parameters = options.createSSLParameters();
        parameters.setEndpointIdentificationAlgorithm(uri.getVerifyMode() == SslVerifyMode.FULL ? "HTTPS" : "");
        secure.setSSLParameters(parameters);
        secure.setSoTimeout((int) TIMEOUT.toMillis());
        secure.startHandshake();
        return secure;
    }
}
