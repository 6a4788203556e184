/**
 * Locks on a Redis or Valkey server that has the module redislock: locks with owners, leases, fencing tokens, fair
 * queues, readers and writers, semaphores, and several locks at once. Begin with {@link redislock.Locks}.
 */
@NullMarked
package redislock;

import org.jspecify.annotations.NullMarked;
