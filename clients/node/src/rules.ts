/** What is refused before any server is asked. Programs without types may give anything. Pure. */

import { inspect } from "node:util";

/** It leaves time for a renewal, and a user who writes 30 means seconds. */
export const SHORTEST_LEASE_MS = 100;
/** The longest owner that the server takes. */
const LONGEST_OWNER = 256;

/** Refuses what is no whole number of milliseconds, from `least` on. */
export function checked(name: string, value: unknown, least: number): void {
  if (!(Number.isInteger(value) && (value as number) >= least)) {
    throw new TypeError(`${name} must be a whole number of milliseconds, ${least} or more: ${inspect(value)}`);
  }
}

/** Refuses what is no whole number from 1 on. Infinity is none. */
export function checkCount(name: string, value: unknown): void {
  if (!(Number.isInteger(value) && (value as number) >= 1)) {
    throw new TypeError(`${name} must be a whole number, 1 or more: ${inspect(value)}`);
  }
}

export const checkLease = (lease: unknown): void => checked("lease", lease, SHORTEST_LEASE_MS);

/** The server would make up an owner for `*`, another one in each repetition: nobody would know of the hold. */
export function checkOwner(owner: unknown): void {
  const length = typeof owner === "string" ? Buffer.byteLength(owner) : 0;
  if (length < 1 || length > LONGEST_OWNER || owner === "*") {
    throw new TypeError(`owner must be a string of 1 to ${LONGEST_OWNER} bytes, and not '*': ${inspect(owner)}`);
  }
}

export function checkName(name: unknown): void {
  if (typeof name !== "string") throw new TypeError(`a name must be a string: ${inspect(name)}`);
  if (name === "") throw new TypeError("a name must not be empty");
}

export function checkNames(names: unknown): void {
  if (!Array.isArray(names)) throw new TypeError(`the names must be an array of strings: ${inspect(names)}`);
  for (const name of names) checkName(name);
}

/** Refuses a name that no option has: the option that was meant would silently keep its default. */
export function checkOptions(options: unknown, names: readonly string[]): void {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`the options must be an object: ${inspect(options)}`);
  }
  const unknown = Object.keys(options).find((option) => !names.includes(option));
  if (unknown !== undefined) throw new TypeError(`there is no option ${unknown}; there are ${names.join(", ")}`);
}

/** Refuses what is no function; a callback that may be left out can be undefined. */
export function checkCallback(name: string, value: unknown, isOptional: boolean): void {
  if (typeof value === "function" || (isOptional && value === undefined)) return;
  throw new TypeError(`${name} must be a function: ${inspect(value)}`);
}

const HOOKS = ["granted", "waiting", "timedOut", "lost", "released", "forgotten"];

/** An object of the program's own may have more than the hooks. */
export function checkHooks(hooks: unknown): void {
  if (typeof hooks !== "object" || hooks === null) throw new TypeError(`hooks must be an object: ${inspect(hooks)}`);
  for (const name of HOOKS) checkCallback(`the hook ${name}`, (hooks as Record<string, unknown>)[name], true);
}
