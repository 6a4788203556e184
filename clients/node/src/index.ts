/** Locks in Redis and Valkey with the redislock module. See README.md. */

export type { AcquireOptions, BaseOptions, Body, Hooks } from "./base.js";
export { Lock } from "./base.js";
export type { Client, IoredisClient, NodeRedisClient } from "./driver.js";
export type { DeadlockStep, ErrorKind, LossReason } from "./errors.js";
export {
  Cancelled,
  ConnectionFailed,
  Deadlock,
  Fenced,
  LockError,
  LockKindMismatch,
  LockLost,
  LockTimeout,
  ModuleMissing,
  NotConfirmed,
  Quarantine,
  QueueFull,
  Refused,
} from "./errors.js";
export { Hold } from "./hold.js";
export { IndependentLocks } from "./independent.js";
export type { Logger } from "./journal.js";
export type { LeaderOptions } from "./leader.js";
export { Leader } from "./leader.js";
export type { LocksOptions } from "./locks.js";
export { Locks } from "./locks.js";
