/** Locks with the settings of Lettuce. */
@NullMarked
package redislock.lettuce;

import org.jspecify.annotations.NullMarked;
