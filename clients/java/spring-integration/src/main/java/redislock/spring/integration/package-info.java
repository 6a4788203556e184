/** A lock registry for Spring Integration. */
@NullMarked
package redislock.spring.integration;

import org.jspecify.annotations.NullMarked;
