/** Auto-configuration of redislock for Spring Boot. */
@NullMarked
package redislock.spring.boot;

import org.jspecify.annotations.NullMarked;
