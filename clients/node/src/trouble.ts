/** What went wrong so far for one attempt, and the errors that its caller gets if it was in vain. */

import { now } from "./clock.js";
import type { Request } from "./commands.js";
import { codeOf, ConnectionFailedError, type LockError, LockTimeoutError, QuarantineError } from "./errors.js";
import { isReply, type Journal, quoted, textOf } from "./journal.js";
import type { Route } from "./route.js";

/** What it needs of the locks. */
interface Sources {
  readonly route: Route;
  readonly journal: Journal;
}

export class Trouble {
  readonly #began = now();
  /** When a server replied last. */
  #heardAt = now();
  /** Why the last request failed, and what a server refused last. */
  #last: unknown;
  #refusal: Error | undefined;

  constructor(
    readonly sources: Sources,
    readonly names: Request["names"],
    readonly key: string,
  ) {}

  /** A server has replied. */
  heard(): void {
    this.#heardAt = now();
  }

  /** The last request was answered. */
  answered(): void {
    this.heard();
    this.#last = this.#refusal = undefined;
  }

  /** A request has failed, which means this. */
  failed(error: unknown, meaning: LockError | "again"): void {
    this.#last = meaning === "again" ? error : meaning;
    if (!isReply(error)) return;
    this.heard();
    this.#refusal = error;
  }

  /** What another attempt for the same lock has found. */
  learn(other: Trouble): void {
    this.#heardAt = other.#heardAt;
    this.#last = other.#last;
    this.#refusal = other.#refusal;
  }

  /** For how many milliseconds no server has replied. */
  get silence(): number {
    return now() - this.#heardAt;
  }

  /** Logs what a server refuses for now. */
  report<T>(answer: T): T {
    const said = textOf(this.#refusal);
    const { journal } = this.sources;
    journal.once(`${this.#where} ${codeOf(said)}`, `still asking for ${quoted(this.names)}: ${this.#where} says: ${said}`);
    return answer;
  }

  /** The wait is over. */
  tooLate(): Error {
    if (this.#last instanceof QuarantineError) return this.#last;
    return new LockTimeoutError(this.#inVain, this.#last);
  }

  /** The user has closed the client. */
  closedClient(): Error {
    return new ConnectionFailedError(`${this.#inVain}: the client of ${this.#where} is closed, or was never connected`);
  }

  /** No server has replied. What one has refused comes first, for it will not change by itself. */
  unreached(): Error {
    if (this.#refusal !== undefined) {
      return new ConnectionFailedError(`${this.#refusal.message}: ${this.#inVain} at ${this.#where}`, this.#refusal);
    }
    const why = `no reply from ${this.#where} for ${(this.silence / 1000).toFixed(1)} s: ${textOf(this.#last)}`;
    const { state } = this.sources.route.driver;
    return new ConnectionFailedError(`${this.#inVain}: ${why}; the client is ${state}`, this.#last);
  }

  get #where(): string {
    return this.sources.route.where(this.key);
  }

  get #inVain(): string {
    return `could not acquire ${quoted(this.names)} within ${((now() - this.#began) / 1000).toFixed(1)} s`;
  }
}
