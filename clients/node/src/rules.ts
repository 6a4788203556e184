/** Checks arguments before any server is asked. Untyped programs may pass anything. Pure. */

import { inspect } from "node:util";

/** It leaves time for a renewal. A user who writes 30 probably means seconds. */
export const SHORTEST_LEASE_MS = 100;
/** The longest owner that the server accepts. */
const LONGEST_OWNER = 256;
/** An owner is a label and a UUID. */
const LONGEST_LABEL = 200;

/** Refuses anything but a whole number of milliseconds, at least `least`. */
export function checked(name: string, value: unknown, least: number): void {
  if (!(Number.isInteger(value) && (value as number) >= least)) {
    throw new TypeError(`${name} must be a whole number of milliseconds, ${least} or more: ${inspect(value)}`);
  }
}

/** Refuses anything but a whole number, at least 1. Infinity is refused. */
export function checkCount(name: string, value: unknown, most = Number.POSITIVE_INFINITY): void {
  if (Number.isInteger(value) && (value as number) >= 1 && (value as number) <= most) return;
  const range = most === Number.POSITIVE_INFINITY ? "1 or more" : `1 to ${most}`;
  throw new TypeError(`${name} must be a whole number, ${range}: ${inspect(value)}`);
}

/** The largest semaphore that the server accepts. */
export const MOST_PERMITS = 1_000_000;

export const checkLease = (lease: unknown): void => checked("lease", lease, SHORTEST_LEASE_MS);

/** Refuses anything but a string of 1 to `most` bytes. */
function checkText(name: string, value: unknown, most: number, { not = "" } = {}): void {
  const length = typeof value === "string" && value !== not ? Buffer.byteLength(value) : 0;
  if (length >= 1 && length <= most) return;
  throw new TypeError(`${name} must be a string of 1 to ${most} bytes${not && `, and not '${not}'`}: ${inspect(value)}`);
}

/**
 * For `*`, the server would generate an owner, a new one in each repetition, and the program would not know its hold.
 */
export const checkOwner = (owner: unknown): void => checkText("owner", owner, LONGEST_OWNER, { not: "*" });

export const checkLabel = (label: unknown): void => checkText("label", label, LONGEST_LABEL);

export function checkName(name: unknown): void {
  if (typeof name !== "string") throw new TypeError(`a name must be a string: ${inspect(name)}`);
  if (name === "") throw new TypeError("a name must not be empty");
}

export function checkNames(names: unknown): void {
  if (!Array.isArray(names)) throw new TypeError(`the names must be an array of strings: ${inspect(names)}`);
  for (const name of names) checkName(name);
  const twice: unknown = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw new TypeError(`a name must not be given twice: ${inspect(twice)}`);
}

/** Refuses unknown option names: the intended option would silently keep its default. */
export function checkOptions(options: unknown, names: readonly string[]): void {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`the options must be an object: ${inspect(options)}`);
  }
  const unknown = Object.keys(options).find((option) => !names.includes(option));
  if (unknown !== undefined) throw new TypeError(`there is no option ${unknown}; there are ${names.join(", ")}`);
}

/** Refuses anything but a function. An optional callback may be undefined. */
export function checkCallback(name: string, value: unknown, isOptional: boolean): void {
  if (typeof value === "function" || (isOptional && value === undefined)) return;
  throw new TypeError(`${name} must be a function: ${inspect(value)}`);
}

const REQUEST_OPTIONS = ["lease", "wait", "signal", "renew", "minHold", "maxHold", "owner"];

export function checkPrefix(prefix: unknown): void {
  if (typeof prefix !== "string") throw new TypeError(`prefix must be a string: ${inspect(prefix)}`);
}

/** Refuses invalid options of a request. */
export function checkRequest(options: unknown, { isTry = false } = {}): void {
  checkOptions(options, isTry ? REQUEST_OPTIONS.filter((option) => option !== "wait") : REQUEST_OPTIONS);
  const { lease, wait, signal, renew, minHold, maxHold, owner } = options as Record<string, unknown>;
  if (wait !== undefined) checked("wait", wait, 0);
  if (lease !== undefined) checkLease(lease);
  if (maxHold !== undefined) checked("maxHold", maxHold, SHORTEST_LEASE_MS);
  if (minHold !== undefined) checked("minHold", minHold, SHORTEST_LEASE_MS);
  if (minHold !== undefined && (minHold as number) > ((maxHold ?? minHold) as number)) {
    throw new TypeError(`minHold must be maxHold (${String(maxHold)} milliseconds) or less: ${String(minHold)}`);
  }
  if (owner !== undefined) checkOwner(owner);
  if (renew !== undefined && typeof renew !== "boolean") {
    throw new TypeError(`renew must be true or false: ${inspect(renew)}`);
  }
  // A signal of another library or realm fits, too.
  if (signal === undefined) return;
  const { aborted, addEventListener } = (signal ?? {}) as Record<string, unknown>;
  if (typeof aborted !== "boolean" || typeof addEventListener !== "function") {
    throw new TypeError(`signal must be an AbortSignal: ${inspect(signal, { depth: 0 })}`);
  }
}

/** Refuses values that cannot be a lock's token. */
export function checkToken(token: unknown): void {
  if (!(Number.isSafeInteger(token) && (token as number) >= 1)) {
    throw new TypeError(`token must be a whole number, 1 or more, as hold.token: ${inspect(token)}`);
  }
}

export function checkLogger(logger: unknown): void {
  if (logger === undefined) return;
  if (typeof logger !== "object" || logger === null) {
    throw new TypeError(`logger must be an object, as console: ${inspect(logger)}`);
  }
  for (const level of ["debug", "info", "warn", "error"]) {
    checkCallback(`logger.${level}`, (logger as Record<string, unknown>)[level], false);
  }
}

const LOGIN_OPTIONS = ["username", "password", "database", "tls"];

/** Refuses an invalid login. It contains a secret, so the message does not show it. */
export function checkLogin(login: unknown): void {
  if (login === undefined) return;
  checkOptions(login, LOGIN_OPTIONS);
  const { username, password, database, tls } = login as Record<string, unknown>;
  for (const [name, value] of Object.entries({ username, password })) {
    if (value !== undefined && typeof value !== "string") throw new TypeError(`login.${name} must be a string`);
  }
  if (database !== undefined && !(Number.isInteger(database) && (database as number) >= 0)) {
    throw new TypeError(`login.database must be a whole number, 0 or more: ${inspect(database)}`);
  }
  if (tls !== undefined && (typeof tls !== "object" || tls === null)) {
    throw new TypeError("login.tls must be an object: the options of tls.connect");
  }
}

const HOOKS = [
  ...["requested", "waiting", "granted", "timedOut", "failed"],
  ...["released", "detached", "adopted", "lost", "forgotten", "renewalFailed", "reconnected"],
];

/** An object of the program's own may have more members than the hooks. */
export function checkHooks(hooks: unknown): void {
  if (typeof hooks !== "object" || hooks === null) throw new TypeError(`hooks must be an object: ${inspect(hooks)}`);
  for (const name of HOOKS) checkCallback(`the hook ${name}`, (hooks as Record<string, unknown>)[name], true);
}
