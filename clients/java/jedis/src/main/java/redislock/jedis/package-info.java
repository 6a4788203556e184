/** Locks with the settings of Jedis. */
@NullMarked
package redislock.jedis;

import org.jspecify.annotations.NullMarked;
