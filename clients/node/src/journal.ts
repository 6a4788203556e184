/** The library's own messages: log lines for the program's logger or `NODE_DEBUG=redislock`, and process warnings. */

import { debuglog } from "node:util";

import { now } from "./clock.js";
import { codeOf } from "./errors.js";
import { shown, versionOf } from "./info.js";

/**
 * Calls a hook or logger of the program. Its failure must not cost any caller a lock. It may be an async function, whose
 * rejection has no handler.
 */
export function guarded(call: () => unknown): void {
  try {
    const result = call();
    if (result !== undefined) Promise.resolve(result).catch(() => undefined);
  } catch {
    // See above.
  }
}

/** Receives a line for each event. `console` fits, and so do the loggers of pino, winston and others. */
export interface Logger {
  debug(message: string): void;
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

/** The oldest module that has everything this library needs, in the form that HELLO reports versions: 300 is 0.3.0. */
export const MODULE_VERSION_MIN = 300;
const debug = debuglog("redislock");
/** The time for which a line is not repeated that many requests would log. */
const AGAIN_MS = 10_000;
/** The number of these lines that are remembered. */
const MOST_SAID = 100;

export class Journal {
  /** The servers whose connection was lost and has not come back. */
  readonly #lost = new Set<string>();
  readonly #said = new Map<string, number>();
  /** The servers whose module was found too old. */
  readonly #outdated = new Set<string>();

  constructor(
    readonly logger: Logger | undefined,
    /** Called when a server replies again. */
    readonly reconnected: (address: string) => void,
  ) {}

  log(level: keyof Logger, message: string): void {
    const line = `redislock: ${message}`;
    debug("%s: %s", level, line);
    guarded(() => this.logger?.[level](line));
  }

  /** Logs what the program would not learn otherwise. Without a logger, it emits a process warning. */
  alarm(level: "warn" | "error", message: string): void {
    this.log(level, message);
    if (this.logger === undefined) process.emitWarning(message, "RedislockWarning");
  }

  /** Logs a warning, but not again within a short time. */
  once(topic: string, message: string): void {
    if (now() - (this.#said.get(topic) ?? Number.NEGATIVE_INFINITY) < AGAIN_MS) return;
    if (this.#said.size >= MOST_SAID) this.#said.clear();
    this.#said.set(topic, now());
    this.log("warn", message);
  }

  /** Logs once per server that its module is too old. A missing module is reported by the first request. */
  greeted(address: string, greeting: unknown): void {
    const old = versionOf(greeting);
    if (old === undefined || old >= MODULE_VERSION_MIN || this.#outdated.has(address)) return;
    this.#outdated.add(address);
    const need = `this client needs ${shown(MODULE_VERSION_MIN)} or later: upgrade the module`;
    this.log("warn", `the module redislock on ${address} is version ${shown(old)}, and ${need}`);
  }

  /** Records that the connection to this server was lost. */
  lost(address: string): void {
    this.#lost.add(address);
  }

  /** True if a server's connection was lost and has not come back. */
  get hasLost(): boolean {
    return this.#lost.size > 0;
  }

  /** Records that this server replies. Logs one line for each outage. */
  found(address: string): void {
    if (!this.#lost.delete(address)) return;
    this.log("info", `reconnected to ${address}`);
    this.reconnected(address);
  }
}

/**
 * Returns the message of an error. For one without a message, such as an AggregateError of ioredis, its class and code.
 */
export function textOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code } = error as { code?: unknown };
  return error.message || (typeof code === "string" ? code : error.name);
}

/** The names of locks in a message. */
export const quoted = (names: readonly string[]): string => names.map((name) => `'${name}'`).join(", ");

/** Returns true if a server has sent this error. */
export const isReply = (error: unknown): error is Error =>
  error instanceof Error && codeOf(error.message) !== undefined;
