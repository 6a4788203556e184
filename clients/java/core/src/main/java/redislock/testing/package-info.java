/** A server in the process, with which programs that use locks are tested: {@link redislock.testing.Server}. */
@NullMarked
package redislock.testing;

import org.jspecify.annotations.NullMarked;
