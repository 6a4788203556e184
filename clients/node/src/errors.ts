/** The errors of the library, and what the server's errors mean. Pure. */

import { SHORTEST_LEASE_MS } from "./rules.js";

export type ErrorKind =
  | "LockTimeout"
  | "LockLost"
  | "Deadlock"
  | "Fenced"
  | "LockKindMismatch"
  | "QueueFull"
  | "Quarantine"
  | "NotConfirmed"
  | "ModuleMissing"
  | "Cancelled"
  | "ConnectionFailed"
  | "Refused";

/** All errors of this library. `kind` tells them apart where `instanceof` cannot. */
export class LockError extends Error {
  readonly kind: ErrorKind;
  constructor(kind: ErrorKind, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = kind;
    this.kind = kind;
  }
}

/** The lock was not to be had in time. */
export class LockTimeout extends LockError {
  constructor(message: string, cause?: unknown) {
    super("LockTimeout", message, cause);
  }
}

/** What noticed the loss: the deadline, a renewal, the server's push or the release; or the locks were closed. */
export type LossReason = "deadline" | "renewal" | "push" | "release" | "close";

/** The hold has ended before its holder released it. */
export class LockLost extends LockError {
  readonly reason: LossReason;
  constructor(message: string, reason: LossReason, cause?: unknown) {
    super("LockLost", message, cause);
    this.reason = reason;
  }
}

/** One step of a deadlock: `owner` waits for `name`, which `holder` holds. */
export interface DeadlockStep {
  readonly owner: string;
  readonly name: string;
  readonly holder: string;
}

/** The wait would never end: those it waits for wait for its owner. */
export class Deadlock extends LockError {
  readonly cycle: readonly DeadlockStep[];
  constructor(message: string, cause?: unknown) {
    super("Deadlock", message, cause);
    const steps = message.matchAll(/'(.*?)' waits for '(.*?)' and there for '(.*?)'/g);
    this.cycle = [...steps].map(([, owner = "", name = "", holder = ""]) => ({ owner, name, holder }));
  }
}

/** The token is not that of a live hold of the lock. */
export class Fenced extends LockError {
  constructor(message: string, cause?: unknown) {
    super("Fenced", message, cause);
  }
}

/** The lock is of another kind now: exclusive or shared, or a semaphore of another size. */
export class LockKindMismatch extends LockError {
  constructor(message: string, cause?: unknown) {
    super("LockKindMismatch", message, cause);
  }
}

/** Too many wait for the lock, or on the server, already. */
export class QueueFull extends LockError {
  constructor(message: string, cause?: unknown) {
    super("QueueFull", message, cause);
  }
}

/** The server grants nothing new for `leftMs` milliseconds, because it may have lost some locks. */
export class Quarantine extends LockError {
  readonly leftMs: number;
  constructor(message: string, cause?: unknown) {
    super("Quarantine", message, cause);
    this.leftMs = Number(/^QUARANTINE (\d+)/.exec(message)?.[1] ?? 0);
  }
}

/** Too few replicas confirmed the grant, so that it was undone. */
export class NotConfirmed extends LockError {
  constructor(message: string, cause?: unknown) {
    super("NotConfirmed", message, cause);
  }
}

/** The server does not know the commands. */
export class ModuleMissing extends LockError {
  constructor(message: string, cause?: unknown) {
    const help = "load the module: redis-server --loadmodule /path/to/libredislock.so";
    // What follows are the words of the request.
    const [said] = message.split(", with args");
    super("ModuleMissing", `${said} - ${help}`, cause);
  }
}

/** The caller's signal was aborted, or the locks were closed. */
export class Cancelled extends LockError {
  constructor(message: string, cause?: unknown) {
    super("Cancelled", message, cause);
  }
}

/** No server could be reached in time. */
export class ConnectionFailed extends LockError {
  constructor(message: string, cause?: unknown) {
    super("ConnectionFailed", message, cause);
  }
}

/** Any other error of the server. `code` is its first word, as WRONGTYPE or NOPERM. */
export class Refused extends LockError {
  readonly code: string;
  constructor(message: string, cause?: unknown) {
    super("Refused", message, cause);
    this.code = codeOf(message) ?? "ERR";
  }
}

/** Errors that say: not this server, or not now. The request is repeated. */
const AGAIN = new Set(["READONLY", "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"]);

const KINDS: Record<string, new (message: string, cause?: unknown) => LockError> = {
  LOCKKIND: LockKindMismatch,
  LOCKQUEUE: QueueFull,
  DEADLOCK: Deadlock,
  FENCED: Fenced,
  QUARANTINE: Quarantine,
  NOREPLICAS: NotConfirmed,
};

/** The first word of a server's error; nothing if the error is not a server's. */
export function codeOf(message: string): string | undefined {
  return /^-?([A-Z][A-Z0-9_]+)(?= )/.exec(message)?.[1];
}

/**
 * What an error means: one to throw, or "again" where the request should be repeated. `isAlone`: the client knows but
 * one server, and cannot follow a redirection to another one.
 */
export function meaningOf(error: unknown, isAlone = false): LockError | "again" {
  if (error instanceof LockError) return error;
  const message = error instanceof Error ? error.message : String(error);
  const code = codeOf(message);
  if (isAlone && code === "MOVED") {
    return new Refused(`${message}: this server is a node of a cluster. Give Locks a client of the cluster.`, error);
  }
  if (code === undefined || AGAIN.has(code)) return "again";
  if (/^ERR unknown command .*lock\./i.test(message)) return new ModuleMissing(message, error);
  const Kind = KINDS[code] ?? Refused;
  return new Kind(message, error);
}

/** An error of the library's own: this one, or one that has it as its cause, and names the server. */
export function ownOf(error: unknown, where: string): LockError {
  if (error instanceof LockError) return error;
  const said = error instanceof Error ? error.message || error.name : String(error);
  return new ConnectionFailed(`${said} (${where})`, error);
}

/** Refusals that pass by themselves: too few replicas, no disk, no memory, or a script that runs for long. */
const PASSING = new Set(["NOREPLICAS", "MISCONF", "OOM", "BUSY"]);

/** Whether the same request may be accepted later. */
export const mayPass = (meaning: LockError | "again"): boolean =>
  meaning === "again" || meaning instanceof ConnectionFailed || PASSING.has(codeOf(meaning.message) ?? "");

/** Whether the error says that a signal has ended the work. */
export const isAbort = (error: unknown): boolean => error instanceof Error && error.name === "AbortError";

/** Whether the server refused because another value was written over the lock. */
export const isOverwritten = (meaning: LockError | "again"): boolean =>
  meaning instanceof Refused && meaning.code === "WRONGTYPE";

/** Translates an error of a request with this lease: the server says in words of its own which leases are too long. */
export function ofLease(error: LockError, lease: number): LockError {
  const most = error instanceof Refused ? highestFor("PX", error) : undefined;
  if (most === undefined) return error;
  const range = `from ${SHORTEST_LEASE_MS} to ${most} milliseconds (redislock.max-lease of the server, or its quarantine)`;
  return new Refused(`lease must be ${range}: ${lease}`, error);
}

/** The highest value that the server accepts for an option it refused, as QUEUE or BLOCK. */
export function highestFor(option: string, error: unknown): number | undefined {
  const text = error instanceof Error ? error.message : "";
  const found = new RegExp(`${option} must be an integer from \\d+ to (\\d+)`).exec(text);
  return found === null ? undefined : Number(found[1]);
}
