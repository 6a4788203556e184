/** Locks in Redis and Valkey with the redislock module. See README.md. */

export type { AcquireOptions, BaseOptions, Body, Hooks, TryOptions } from "./base.js";
export { Lock } from "./base.js";
export type { Client, IoredisClient, NodeRedisClient } from "./driver.js";
export type { DeadlockStep, ErrorKind, LossReason } from "./errors.js";
export {
  AlreadyHeldError,
  ConnectionFailedError,
  DeadlockError,
  FencedError,
  LockError,
  LockKindMismatchError,
  LockLostError,
  LocksClosedError,
  LockTimeoutError,
  ModuleMissingError,
  NotConfirmedError,
  QuarantineError,
  QueueFullError,
  ServerRefusedError,
} from "./errors.js";
export { Hold } from "./hold.js";
export type { LockHolder, LockInfo, LockWaiter } from "./info.js";
export type { Logger } from "./journal.js";
export type { LeaderOptions } from "./leader.js";
export { Leader } from "./leader.js";
export type { LocksOptions } from "./locks.js";
export { Locks } from "./locks.js";
