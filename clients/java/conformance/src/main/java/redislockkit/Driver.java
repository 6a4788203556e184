package redislockkit;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisCredentialsProvider;
import io.lettuce.core.RedisURI;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redislock.Credentials;
import redislock.Locks;
import redislock.jedis.JedisLocks;
import redislock.lettuce.LettuceLocks;

/** Gives the library an address, or the settings of a driver. */
final class Driver {
    static final List<String> NAMES = List.of("url", "lettuce", "jedis");

    private Driver() {}

    static Locks.Builder builder(Adapter.Request request) {
        return switch (request.driver == null ? "url" : request.driver) {
            case "lettuce" -> lettuce(request);
            case "jedis" -> jedis(request);
            default -> own(request);
        };
    }

    /** Returns the password, or fails as the kit asked for: null without a login. */
    private static Supplier<String> password(Adapter.Login login) {
        var calls = new AtomicInteger();
        return login == null ? null : () -> {
            int call = calls.incrementAndGet();
            boolean fails = login.fails.isJsonArray()
                    ? login.fails.getAsJsonArray().asList().stream().anyMatch(each -> each.getAsInt() == call) : call > 1;
            if (fails) {
                throw new IllegalStateException("no password this time");
            }
            return login.password;
        };
    }

    private static Locks.Builder own(Adapter.Request request) {
        var builder = Locks.builder();
        switch (request.mode) {
            case "sentinel" -> builder.sentinel(request.service, request.addresses);
            case "cluster" -> builder.cluster(request.addresses);
            default -> builder.url("redis://" + request.addresses.get(0));
        }
        var password = password(request.login);
        return password == null ? builder : builder.login(() -> new Credentials("default", password.get()));
    }

    private static Locks.Builder lettuce(Adapter.Request request) {
        var uris = request.addresses.stream().map(address -> RedisURI.create("redis://" + address)).toList();
        var password = password(request.login);
        if (password != null) {
            uris.get(0).setCredentialsProvider(RedisCredentialsProvider.from(() ->
                    RedisCredentials.just("default", password.get())));
        }
        return switch (request.mode) {
            case "sentinel" -> {
                var uri = new RedisURI();
                uri.setSentinelMasterId(request.service);
                uri.getSentinels().addAll(uris);
                yield LettuceLocks.builder(uri);
            }
            case "cluster" -> LettuceLocks.cluster(uris, ClientOptions.create());
            default -> LettuceLocks.builder(uris.get(0));
        };
    }

    private static Locks.Builder jedis(Adapter.Request request) {
        var servers = request.addresses.stream().map(HostAndPort::from).collect(Collectors.toSet());
        var config = DefaultJedisClientConfig.builder();
        var password = password(request.login);
        if (password != null) {
            config.credentialsProvider(() -> new redis.clients.jedis.DefaultRedisCredentials("default", password.get()));
        }
        return switch (request.mode) {
            case "sentinel" -> JedisLocks.sentinel(request.service, servers, config.build(), config.build());
            case "cluster" -> JedisLocks.cluster(servers, config.build());
            default -> JedisLocks.builder(servers.iterator().next(), config.build());
        };
    }
}
