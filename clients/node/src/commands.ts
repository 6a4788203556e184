/** The commands as lists of words, and owners. Pure but for the owner's UUID. */

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

/** How a lock is held. */
export type Kind = "exclusive" | "read" | "write" | "semaphore";

/** What is asked for, the same in each repetition. */
export interface Request {
  readonly names: readonly string[];
  /** The names with their prefix, as the server has them. */
  readonly keys: readonly string[];
  readonly owner: string;
  /** Whether the program has named the owner, which may hold the lock by another request then. */
  readonly isNamed: boolean;
  readonly kind: Kind;
  readonly limit?: number | undefined;
  readonly lease: number;
}

/** What differs from one repetition to the next. */
export interface How {
  /** For how many milliseconds the server is to keep a place in line. */
  readonly queue?: number | undefined;
  /** For how many milliseconds the request is to wait. */
  readonly block?: number | undefined;
}

/** What tells an operator whose an owner is. An owner has 256 bytes at most; a host's name gets 100 of them. */
export const hostLabel = (): string => `${hostname().slice(0, 100)}:${process.pid}`;

export const freshOwner = (label: string): string => `${label}:${randomUUID()}`;

/** The key that decides which server is asked. */
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

/** Renews the hold that has this token; with RAISE, one that gets it. */
export function renewCommand(name: string, owner: string, lease: number, token: number, how = "TOKEN"): string[] {
  return ["LOCK.RENEW", name, owner, "PX", String(lease), how, String(token)];
}

export const fenceCommand = (name: string, token?: number): string[] =>
  token === undefined ? ["LOCK.FENCE", name] : ["LOCK.FENCE", name, String(token)];

/** The token of a grant; nothing for nil. Drivers may give integers as text. */
export function tokenOf(reply: unknown): number | undefined {
  if (reply === null || reply === undefined) return undefined;
  const token = Number(reply);
  if (!Number.isSafeInteger(token) || token <= 0) throw new Error(`not a token: ${String(reply)}`);
  return token;
}
