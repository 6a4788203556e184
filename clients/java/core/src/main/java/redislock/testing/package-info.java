/** An in-process server for tests of programs that use locks: {@link redislock.testing.Server}. */
@NullMarked
package redislock.testing;

import org.jspecify.annotations.NullMarked;
