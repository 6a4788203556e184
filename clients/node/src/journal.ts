/** What the library says of itself: log lines by the program's logger or `NODE_DEBUG=redislock`, and warnings. */

import { debuglog } from "node:util";

import { now } from "./clock.js";
import { codeOf } from "./errors.js";
import { shown, versionOf } from "./info.js";

/** Gets a line for each event. `console` fits, and so do the loggers of pino, winston and others. */
export interface Logger {
  debug(message: string): void;
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

/** The oldest module that has all that this library asks for, as HELLO tells versions: 300 is 0.3.0. */
export const MODULE_VERSION_MIN = 300;
const debug = debuglog("redislock");
/** For how long a line is not repeated that many requests would log. */
const AGAIN_MS = 10_000;
/** How many of these lines are remembered at most. */
const MOST_SAID = 100;

export class Journal {
  /** The servers whose connection was lost and is not back yet. */
  readonly #lost = new Set<string>();
  readonly #said = new Map<string, number>();
  /** The servers whose module was found too old. */
  readonly #outdated = new Set<string>();

  constructor(
    readonly logger: Logger | undefined,
    /** Called when a server answers again. */
    readonly reconnected: (address: string) => void,
  ) {}

  log(level: keyof Logger, message: string): void {
    const line = `redislock: ${message}`;
    debug("%s: %s", level, line);
    try {
      this.logger?.[level](line);
    } catch {
      // A logger that fails must not cost anybody a lock.
    }
  }

  /** Logs what nobody else reports to the program; warns by the process if the program has no logger. */
  alarm(level: "warn" | "error", message: string): void {
    this.log(level, message);
    if (this.logger === undefined) process.emitWarning(message, "RedislockWarning");
  }

  /** Logs a warning, but not again soon. */
  once(topic: string, message: string): void {
    if (now() - (this.#said.get(topic) ?? Number.NEGATIVE_INFINITY) < AGAIN_MS) return;
    if (this.#said.size >= MOST_SAID) this.#said.clear();
    this.#said.set(topic, now());
    this.log("warn", message);
  }

  /** Logs once for a server that its module is too old. One that is missing is reported by the first request. */
  greeted(address: string, greeting: unknown): void {
    const old = versionOf(greeting);
    if (old === undefined || old >= MODULE_VERSION_MIN || this.#outdated.has(address)) return;
    this.#outdated.add(address);
    const need = `this client needs ${shown(MODULE_VERSION_MIN)} or later: upgrade the module`;
    this.log("warn", `the module redislock on ${address} is version ${shown(old)}, and ${need}`);
  }

  /** The connection to this server was lost. */
  lost(address: string): void {
    this.#lost.add(address);
  }

  /** This server answers. Logs one line for each outage. */
  found(address: string): void {
    if (!this.#lost.delete(address)) return;
    this.log("info", `reconnected to ${address}`);
    this.reconnected(address);
  }
}

/** The message of an error; the class and code of one that has none, as an AggregateError of ioredis. */
export function textOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code } = error as { code?: unknown };
  return error.message || (typeof code === "string" ? code : error.name);
}

/** The names of locks in a message. */
export const quoted = (names: readonly string[]): string => names.map((name) => `'${name}'`).join(", ");

/** Whether a server has sent this error. */
export const isReply = (error: unknown): error is Error =>
  error instanceof Error && codeOf(error.message) !== undefined;
