package rivals;

import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import redislock.Hold;
import redislock.Locks;

/** The libraries. What they leave to their users is as their own documentation has it. */
final class Subjects {
    /** The name by which sentinels know the primary. */
    private static final String GROUP = "group";

    private Subjects() {}

    static Client open(String subject, List<String> addresses, Duration lease) throws Exception {
        return switch (subject) {
            case "redislock" -> ours(addresses, lease);
            case "RLock" -> redisson(addresses, lease, false);
            case "RFencedLock" -> redisson(addresses, lease, true);
            case "RedisLockRegistry" -> spring(addresses, lease, RedisLockRegistry.RedisLockType.SPIN_LOCK);
            case "RedisLockRegistry PUB_SUB" -> spring(addresses, lease, RedisLockRegistry.RedisLockType.PUB_SUB_LOCK);
            case "ShedLock" -> shedLock(addresses, lease);
            case "Curator" -> curator(addresses, lease);
            default -> throw new IllegalArgumentException("no such subject: " + subject);
        };
    }

    private static Client ours(List<String> addresses, Duration lease) {
        var builder = Locks.builder().lease(lease);
        Locks locks = addresses.size() > 1
                ? builder.sentinel(GROUP, addresses).open()
                : builder.address(addresses.get(0)).open();
        return name -> new Client.Taker() {
            private Hold hold;

            @Override
            public void take() throws InterruptedException {
                hold = locks.lock(name).acquire();
            }

            @Override
            public void free() {
                hold.release();
            }

            @Override
            public CompletableFuture<?> lost() {
                return hold.lost();
            }

            @Override
            public void takeAway() throws Exception {
                String[] at = addresses.get(0).split(":");
                try (var other = new Socket(at[0], Integer.parseInt(at[1]))) {
                    other.getOutputStream().write(("DEL " + name + "\r\n").getBytes(StandardCharsets.UTF_8));
                    if (other.getInputStream().read() != ':') {
                        throw new IllegalStateException("DEL was refused");
                    }
                }
            }
        };
    }

    private static Client redisson(List<String> addresses, Duration lease, boolean isFenced) {
        var config = new Config();
        config.setLockWatchdogTimeout(lease.toMillis());
        config.useSingleServer().setAddress("redis://" + addresses.get(0));
        var made = Redisson.create(config);
        return name -> {
            RLock lock = isFenced ? made.getFencedLock(name) : made.getLock(name);
            return taker(lock::lock, lock::unlock);
        };
    }

    private static Client spring(List<String> addresses, Duration lease, RedisLockRegistry.RedisLockType type) {
        var registry = new RedisLockRegistry(connections(addresses), "rivals", lease);
        registry.setRedisLockType(type);
        return name -> taker(() -> registry.obtain(name).lock(), () -> registry.obtain(name).unlock());
    }

    /** It never waits: whoever does not get the lock leaves the job to the other. */
    private static Client shedLock(List<String> addresses, Duration lease) {
        var provider = new RedisLockProvider(connections(addresses), "rivals");
        return name -> new Client.Taker() {
            private SimpleLock held;

            @Override
            public void take() {
                held = provider.lock(new LockConfiguration(Instant.now(), name, lease, Duration.ZERO)).orElseThrow();
            }

            @Override
            public void free() {
                held.unlock();
            }
        };
    }

    private static Client curator(List<String> addresses, Duration lease) throws InterruptedException {
        int session = Math.toIntExact(lease.toMillis());
        var client = CuratorFrameworkFactory.newClient(String.join(",", addresses), session, session, new RetryForever(50));
        client.start();
        client.blockUntilConnected();
        return name -> {
            var mutex = new InterProcessMutex(client, "/" + name.replace(':', '-'));
            return taker(mutex::acquire, mutex::release);
        };
    }

    private static LettuceConnectionFactory connections(List<String> addresses) {
        String[] at = addresses.get(0).split(":");
        var found = new LettuceConnectionFactory(at[0], Integer.parseInt(at[1]));
        found.afterPropertiesSet();
        found.start();
        return found;
    }

    private interface Step {
        void run() throws Exception;
    }

    private static Client.Taker taker(Step take, Step free) {
        return new Client.Taker() {
            @Override
            public void take() throws Exception {
                take.run();
            }

            @Override
            public void free() throws Exception {
                free.run();
            }
        };
    }
}
