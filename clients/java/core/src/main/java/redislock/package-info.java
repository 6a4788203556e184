/**
 * Acquires locks on Redis and Valkey servers that run the redislock module. It has exclusive locks, readers and
 * writers, semaphores, and several locks at once, all with leases, fencing tokens and fair queues. Start with
 * {@link redislock.Locks}.
 */
@NullMarked
package redislock;

import org.jspecify.annotations.NullMarked;
