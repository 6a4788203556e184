/** The errors of the library, and the meaning of the server's errors. Pure. */

import { SHORTEST_LEASE_MS } from "./rules.js";

export type ErrorKind =
  | "LockTimeoutError"
  | "LockLostError"
  | "AlreadyHeldError"
  | "DeadlockError"
  | "FencedError"
  | "LockKindMismatchError"
  | "QueueFullError"
  | "QuarantineError"
  | "NotConfirmedError"
  | "ModuleMissingError"
  | "LocksClosedError"
  | "ConnectionFailedError"
  | "ServerRefusedError";

/** All errors of this library. `kind` tells them apart where `instanceof` cannot. */
export abstract class LockError extends Error {
  abstract readonly kind: ErrorKind;
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
  }

  override get name(): string {
    return this.kind;
  }
}

/** The lock could not be acquired in time. */
export class LockTimeoutError extends LockError {
  readonly kind = "LockTimeoutError";
}

/**
 * The cause of the loss. The deadline, a renewal, the server's push or the release noticed it. Or the hold reached its
 * `maxHold`, the locks were closed, or another process continues the hold (`detach`).
 */
export type LossReason = "deadline" | "renewal" | "push" | "release" | "max_hold" | "close" | "detached";

/** The hold has ended before its holder released it. */
export class LockLostError extends LockError {
  readonly kind = "LockLostError";
  constructor(
    message: string,
    readonly reason: LossReason,
    cause?: unknown,
  ) {
    super(message, cause);
  }
}

/** One step of a deadlock: `owner` waits for `name`, which `holder` holds. */
export interface DeadlockStep {
  readonly owner: string;
  readonly name: string;
  readonly holder: string;
}

/** The owner holds the lock in another mode already. Release it first, then ask. */
export class AlreadyHeldError extends LockError {
  readonly kind = "AlreadyHeldError";
}

/** The wait would never end: the owners that it waits for wait for its owner. */
export class DeadlockError extends LockError {
  readonly kind = "DeadlockError";
  readonly cycle: readonly DeadlockStep[] = Array.from(
    this.message.matchAll(/'(.*?)' waits for '(.*?)' and there for '(.*?)'/g),
    ([, owner = "", name = "", holder = ""]) => ({ owner, name, holder }),
  );
}

/** The token is not that of a live hold of the lock. */
export class FencedError extends LockError {
  readonly kind = "FencedError";
}

/** The lock now has another kind: exclusive, shared, or a semaphore of another size. */
export class LockKindMismatchError extends LockError {
  readonly kind = "LockKindMismatchError";
}

/** Too many requests wait for the lock, or on the server. */
export class QueueFullError extends LockError {
  readonly kind = "QueueFullError";
}

/** The server grants nothing new for `leftMs` milliseconds, because it may have lost some locks. */
export class QuarantineError extends LockError {
  readonly kind = "QuarantineError";
  readonly leftMs = Number(/^QUARANTINE (\d+)/.exec(this.message)?.[1] ?? 0);
}

/** Too few replicas confirmed the grant: the owner may or may not hold the lock. */
export class NotConfirmedError extends LockError {
  readonly kind = "NotConfirmedError";
}

/** The server does not know the commands. */
export class ModuleMissingError extends LockError {
  readonly kind = "ModuleMissingError";
  constructor(message: string, cause?: unknown) {
    // The words of the request follow.
    const [said] = message.split(", with args");
    super(`${said} - load the module: redis-server --loadmodule /path/to/libredislock.so`, cause);
  }
}

/** The locks were closed. */
export class LocksClosedError extends LockError {
  readonly kind = "LocksClosedError";
  constructor() {
    super("the locks were closed");
  }
}

/** @internal Ends a request on behalf of the caller or `close()`. It never leaves the library: its `reason` does. */
export class Stopped extends Error {
  constructor(readonly reason: unknown) {
    super("the request was stopped");
  }
}

/** @internal Wraps the reason of an aborted signal. A signal of another library may have none. */
export const abortOf = (signal: AbortSignal): Stopped =>
  new Stopped(signal.reason ?? new DOMException("This operation was aborted", "AbortError"));

/** No server could be reached in time. */
export class ConnectionFailedError extends LockError {
  readonly kind = "ConnectionFailedError";
}

/** A reply did not come in time. An error before it says more about the cause. */
export class LateReplyError extends ConnectionFailedError {}

/** Any other error of the server. `code` is its first word, such as WRONGTYPE or NOPERM. */
export class ServerRefusedError extends LockError {
  readonly kind = "ServerRefusedError";
  readonly code: string = codeOf(this.message) ?? "ERR";
}

/** Errors that mean: not this server, or not now. The request is repeated. */
const AGAIN = new Set(["READONLY", "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"]);

const KINDS: Record<string, new (message: string, cause?: unknown) => LockError> = {
  LOCKKIND: LockKindMismatchError,
  LOCKHELD: AlreadyHeldError,
  LOCKQUEUE: QueueFullError,
  DEADLOCK: DeadlockError,
  FENCED: FencedError,
  QUARANTINE: QuarantineError,
  NOREPLICAS: NotConfirmedError,
};

/** Returns the first word of a server's error, or undefined if the error is not a server's. */
export function codeOf(message: string): string | undefined {
  return /^-?([A-Z][A-Z0-9_]+)(?= )/.exec(message)?.[1];
}

/**
 * Translates an error to one to throw, or to "again" if the request should be repeated. `isAlone`: the client knows
 * only one server, and cannot follow a redirection.
 */
export function meaningOf(error: unknown, isAlone = false): LockError | "again" {
  if (error instanceof LockError) return error;
  const message = error instanceof Error ? error.message : String(error);
  const code = codeOf(message);
  if (isAlone && code === "MOVED") {
    return new ServerRefusedError(`${message}: this server is a node of a cluster. Give Locks a client of the cluster.`, error);
  }
  if (code === undefined || AGAIN.has(code)) return "again";
  if (/^ERR unknown command .*lock\./i.test(message)) return new ModuleMissingError(message, error);
  const Kind = KINDS[code] ?? ServerRefusedError;
  return new Kind(message, error);
}

/** Returns an error of the library's own: this one, or one that has it as its cause and names the server. */
export function ownOf(error: unknown, where: string): LockError {
  if (error instanceof LockError) return error;
  const said = error instanceof Error ? error.message || error.name : String(error);
  return new ConnectionFailedError(`${said} (${where})`, error);
}

/** Refusals that are temporary: too few replicas, no disk, no memory, or a script that runs too long. */
const PASSING = new Set(["NOREPLICAS", "MISCONF", "OOM", "BUSY"]);

/** Returns true if the same request may be accepted later. */
export const mayPass = (meaning: LockError | "again"): boolean =>
  meaning === "again" || meaning instanceof ConnectionFailedError || PASSING.has(codeOf(meaning.message) ?? "");

/** Returns true if the error says that a signal has ended the work. */
export const isAbort = (error: unknown): boolean => error instanceof Error && error.name === "AbortError";

/** Returns true if the server refused because another value was written over the lock. */
export const isOverwritten = (meaning: LockError | "again"): boolean =>
  meaning instanceof ServerRefusedError && meaning.code === "WRONGTYPE";

/** Translates an error of a request with this lease: the server's own message says which leases are too long. */
export function ofLease(error: LockError, lease: number): LockError {
  const most = error instanceof ServerRefusedError ? highestFor("PX", error) : undefined;
  if (most === undefined) return error;
  const range = `from ${SHORTEST_LEASE_MS} to ${most} milliseconds (redislock.max-lease of the server, or its quarantine)`;
  return new ServerRefusedError(`lease must be ${range}: ${lease}`, error);
}

/** Returns the highest value that the server accepts for an option that it refused, such as QUEUE or BLOCK. */
export function highestFor(option: string, error: unknown): number | undefined {
  const text = error instanceof Error ? error.message : "";
  const found = new RegExp(`${option} must be an integer from \\d+ to (\\d+)`).exec(text);
  return found === null ? undefined : Number(found[1]);
}
