/** A provider of locks for ShedLock. */
@NullMarked
package redislock.shedlock;

import org.jspecify.annotations.NullMarked;
