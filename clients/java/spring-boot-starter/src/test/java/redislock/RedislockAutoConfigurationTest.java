package redislock;

import static org.assertj.core.api.Assertions.assertThat;
import static redislock.Server.SLACK;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockProvider;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.task.TaskSchedulingAutoConfiguration;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.boot.health.contributor.Status;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.assertj.AssertableApplicationContext;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import redislock.spring.boot.RedislockAutoConfiguration;

class RedislockAutoConfigurationTest extends OneServer {
    private final ApplicationContextRunner program = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(RedislockAutoConfiguration.class, TaskSchedulingAutoConfiguration.class))
            .withPropertyValues("redislock.url=redis://" + server.address());

    @Test
    void beansAreMadeFromProperties() {
        program.withPropertyValues("redislock.lease=90s", "redislock.label=billing", "redislock.prefix=lock:",
                "redislock.server-timeout=20s", "redislock.max-queued-per-lock=4", "redislock.database=3").run(context -> {
            assertThat(context).hasSingleBean(Locks.class).hasSingleBean(LockProvider.class).hasSingleBean(LockRegistry.class)
                    .hasSingleBean(HealthIndicator.class);
            try (var hold = context.getBean(Locks.class).lock("k").acquire()) {
                assertThat(hold.remaining()).isGreaterThan(Duration.ofSeconds(40));
                assertThat(hold.owner()).startsWith("billing:");
                assertThat(server.isHeld("lock:k")).as("in database 0").isFalse();
            }
        });
    }

    @Test
    void beansAreOfWhatIsOnTheClassPath() {
        program.withClassLoader(new FilteredClassLoader("net.javacrumbs.shedlock", "org.springframework.integration",
                "org.springframework.boot.health")).run(context ->
                        assertThat(context).hasNotFailed().hasSingleBean(Locks.class)
                                .doesNotHaveBean("redislockLockProvider").doesNotHaveBean("redislockLockRegistry")
                                .doesNotHaveBean("redislockHealthIndicator"));
        program.withPropertyValues("management.health.redislock.enabled=false").run(context ->
                assertThat(context).doesNotHaveBean(HealthIndicator.class));
    }

    @Test
    void beansOfTheProgramComeFirst() {
        program.withBean("own", Locks.class, () -> Locks.open("redis://" + server.address()))
                .withBean(LockProvider.class, () -> asked -> java.util.Optional.empty()).run(context -> {
                    assertThat(context).hasSingleBean(Locks.class).hasSingleBean(LockProvider.class).hasBean("own");
                    assertThat(context.getBean(HealthIndicator.class).health().getStatus()).isEqualTo(Status.UP);
                });
    }

    @Test
    void wrongPropertyIsRefusedAtTheStart() {
        program.withPropertyValues("redislock.lease=5ms").run(context ->
                assertThat(context.getStartupFailure()).rootCause().hasMessageContaining("lease must be"));
        program.withPropertyValues("redislock.sentinel.nodes=127.0.0.1:26379").run(context ->
                assertThat(context.getStartupFailure()).rootCause().hasMessageContaining("redislock.sentinel.primary"));
        program.withPropertyValues("redislock.sentinel.primary=main", "redislock.sentinel.nodes=127.0.0.1:1",
                "redislock.cluster.nodes=127.0.0.1:1").run(context ->
                        assertThat(context.getStartupFailure()).rootCause().hasMessageContaining("must not be"));
        program.withPropertyValues("redislock.cluster.nodes=127.0.0.1:7000", "redislock.database=3").run(context ->
                assertThat(context.getStartupFailure()).rootCause().hasMessageContaining("database must be 0 in a cluster"));
    }

    @Test
    void serverThatIsAwayIsUnhealthy() {
        program.withPropertyValues("redislock.url=redis://127.0.0.1:1").run(context -> {
            assertThat(context).hasNotFailed();
            var health = context.getBean(HealthIndicator.class).health();
            assertThat(health.getStatus()).isEqualTo(Status.DOWN);
            assertThat(String.valueOf(health.getDetails().get("error"))).contains("127.0.0.1:1");
        });
    }

    @Test
    void replicaIsUnhealthy() {
        try (var replica = new Server()) {
            replica.command("REPLICAOF", "127.0.0.1", "1");
            program.withPropertyValues("redislock.url=redis://" + replica.address()).run(context -> {
                var health = context.getBean(HealthIndicator.class).health();
                assertThat(health.getStatus()).isEqualTo(Status.DOWN);
                assertThat(String.valueOf(health.getDetails().get("error"))).contains(replica.address() + " is a replica");
            });
        }
    }

    /** A pool that ends when its bean is destroyed. A task that runs in it may hold a lock until then. */
    static final class Pool implements Executor, DisposableBean {
        Hold hold;
        LockLostException lost;

        @Override
        public void execute(Runnable work) {
            work.run();
        }

        @Override
        public void destroy() {
            try {
                hold.check();
                hold.close();
            } catch (LockLostException e) {
                lost = e;
            }
        }
    }

    @Configuration
    static class Pools {
        @Bean
        Pool pool() {
            return new Pool();
        }
    }

    @Test
    void locksAreClosedAfterThePoolsThatUseThem() {
        var found = new Pool[1];
        program.withUserConfiguration(Pools.class).run(context -> {
            found[0] = context.getBean(Pool.class);
            found[0].hold = context.getBean(Locks.class).lock("pool").acquire();
        });
        assertThat(found[0].lost).isNull();
        assertThat(server.isHeld("pool")).isFalse();
    }

    /** A job that works on while the program ends. */
    @Configuration
    @EnableScheduling
    static class Job {
        static final CountDownLatch STARTED = new CountDownLatch(1);
        static volatile LockLostException lost;
        static volatile boolean hasEnded;
        private final Locks locks;

        Job(Locks locks) {
            this.locks = locks;
        }

        @Scheduled(fixedDelay = 3600_000)
        void works() throws InterruptedException {
            try (var hold = locks.lock("job").acquire()) {
                STARTED.countDown();
                Thread.sleep(700);
                hold.check();
            } catch (LockLostException e) {
                lost = e;
            }
            hasEnded = true;
        }
    }

    @Test
    void scheduledJobKeepsItsLockWhileTheProgramEnds() {
        program.withUserConfiguration(Job.class).run((AssertableApplicationContext context) -> {
            assertThat(context).hasNotFailed();
            assertThat(Job.STARTED.await(SLACK.toSeconds(), TimeUnit.SECONDS)).isTrue();
        });
        assertThat(Job.hasEnded).isTrue();
        assertThat(Job.lost).isNull();
        assertThat(server.isHeld("job")).isFalse();
    }
}
