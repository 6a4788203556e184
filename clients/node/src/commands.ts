/** Builds commands as lists of words, and makes owners. Pure except for the owner's UUID. */

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

/** The mode in which a lock is held. */
export type Kind = "exclusive" | "read" | "write" | "semaphore";

/** A request for a lock, the same in each repetition. */
export interface Request {
  readonly names: readonly string[];
  /** The names with their prefix, as on the server. */
  readonly keys: readonly string[];
  readonly owner: string;
  /** True if the program has named the owner, which may then hold the lock by another request. */
  readonly isNamed: boolean;
  readonly kind: Kind;
  readonly limit?: number | undefined;
  readonly lease: number;
}

/** The parts of a request that differ between repetitions. */
export interface How {
  /** The time for which the server keeps a queue position, in milliseconds. */
  readonly queue?: number | undefined;
  /** The time for which the request waits, in milliseconds. */
  readonly block?: number | undefined;
}

/**
 * Identifies the process of an owner for operators. An owner has at most 256 bytes; the host's name gets 100 of them.
 */
export const hostLabel = (): string => `${hostname().slice(0, 100)}:${process.pid}`;

export const freshOwner = (label: string): string => `${label}:${randomUUID()}`;

/** The key that selects the server. */
export const routingKey = (keys: readonly string[]): string => keys[0] ?? "";

/** LOCK.ACQUIRE for one name, LOCK.MACQUIRE for several. */
export function acquireCommand(request: Request, how: How = {}): string[] {
  const { keys, owner, kind, limit, lease } = request;
  const words =
    keys.length === 1
      ? ["LOCK.ACQUIRE", routingKey(keys), owner, "PX", String(lease)]
      : ["LOCK.MACQUIRE", String(keys.length), ...keys, owner, "PX", String(lease)];
  if (how.queue !== undefined) words.push("QUEUE", String(how.queue));
  if (how.block !== undefined) words.push("BLOCK", String(how.block));
  if (kind === "read") words.push("SHARED");
  if (kind === "semaphore") words.push("LIMIT", String(limit));
  return words;
}

export const releaseCommand = (name: string, owner: string, token?: number): string[] =>
  token === undefined ? ["LOCK.RELEASE", name, owner] : ["LOCK.RELEASE", name, owner, "TOKEN", String(token)];

/** Renews the hold that has this token; with RAISE, raises its token to this one. */
export function renewCommand(name: string, owner: string, lease: number, token: number, how = "TOKEN"): string[] {
  return ["LOCK.RENEW", name, owner, "PX", String(lease), how, String(token)];
}

export const fenceCommand = (name: string, token?: number): string[] =>
  token === undefined ? ["LOCK.FENCE", name] : ["LOCK.FENCE", name, String(token)];

/** Returns true if a server replied 1: there was such a hold. Drivers may return integers as text. */
export const isOne = (reply: unknown): boolean => Number(reply) === 1;

/** Returns the token of a grant, or undefined for nil. Drivers may return integers as text. */
export function tokenOf(reply: unknown): number | undefined {
  if (reply === null || reply === undefined) return undefined;
  const token = Number(reply);
  if (!Number.isSafeInteger(token) || token <= 0) throw new Error(`not a token: ${String(reply)}`);
  return token;
}
