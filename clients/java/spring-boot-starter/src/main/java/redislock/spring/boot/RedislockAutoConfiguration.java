package redislock.spring.boot;

import java.util.concurrent.Executor;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.BeanFactoryPostProcessor;
import org.springframework.boot.autoconfigure.AbstractDependsOnBeanFactoryPostProcessor;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.health.autoconfigure.contributor.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.health.contributor.AbstractHealthIndicator;
import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.scheduling.TaskScheduler;
import redislock.LockListener;
import redislock.Locks;
import redislock.shedlock.RedislockLockProvider;
import redislock.spring.integration.RedislockLockRegistry;

/**
 * Defines beans from the properties {@code redislock.*}: the {@link Locks}, and, if the program uses them, a provider
 * for ShedLock, a registry for Spring Integration, and a health indicator. A bean of your own replaces each.
 */
@AutoConfiguration
@EnableConfigurationProperties(RedislockProperties.class)
public class RedislockAutoConfiguration {
    /** Makes the configuration. */
    public RedislockAutoConfiguration() {}

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnMissingBean(Locks.class)
    static class ClosedLast {
        /** Closes it last: a job that is still under way keeps its lock until its scheduler has ended. */
        @Bean
        Locks redislockLocks(RedislockProperties properties, ObjectProvider<LockListener> listener) {
            var builder = properties.builder();
            listener.ifAvailable(builder::listener);
            return builder.open();
        }

        @Bean
        static BeanFactoryPostProcessor redislockBeforeSchedulers() {
            return new BeforeAll(TaskScheduler.class);
        }

        @Bean
        static BeanFactoryPostProcessor redislockBeforeExecutors() {
            return new BeforeAll(Executor.class);
        }
    }

    /** Has beans of a type end before the locks, which they may use. */
    private static final class BeforeAll extends AbstractDependsOnBeanFactoryPostProcessor {
        BeforeAll(Class<?> users) {
            super(users, "redislockLocks");
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockProvider.class)
    static class ForShedLock {
        @Bean
        @ConditionalOnMissingBean(LockProvider.class)
        RedislockLockProvider redislockLockProvider(Locks locks) {
            return new RedislockLockProvider(locks);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockRegistry.class)
    static class ForSpringIntegration {
        @Bean
        @ConditionalOnMissingBean(LockRegistry.class)
        RedislockLockRegistry redislockLockRegistry(Locks locks, RedislockProperties properties) {
            return new RedislockLockRegistry(locks, properties.lease());
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({HealthIndicator.class, ConditionalOnEnabledHealthIndicator.class})
    static class ForActuator {
        @Bean
        @ConditionalOnEnabledHealthIndicator("redislock")
        @ConditionalOnMissingBean(name = "redislockHealthIndicator")
        HealthIndicator redislockHealthIndicator(Locks locks) {
            return new AbstractHealthIndicator("locks cannot be acquired now") {
                @Override
                protected void doHealthCheck(Health.Builder health) throws Exception {
                    locks.ping();
                    health.up();
                }
            };
        }
    }
}
