/** Records the failures of one attempt, and makes the error for its caller if it fails. */

import { now } from "./clock.js";
import type { Request } from "./commands.js";
import { codeOf, ConnectionFailedError, LateReplyError, type LockError, LockTimeoutError, QuarantineError } from "./errors.js";
import { isReply, type Journal, quoted, textOf } from "./journal.js";
import type { Route } from "./route.js";

/** The functions that it needs of the locks. */
interface Sources {
  readonly route: Route;
  readonly journal: Journal;
}

export class Trouble {
  /** The time of a server's last reply. */
  #heardAt: number;
  /** The error of the last request, and a server's last refusal. */
  #last: unknown;
  #refusal: Error | undefined;

  constructor(
    readonly sources: Sources,
    readonly names: Request["names"],
    readonly key: string,
    readonly began: number,
  ) {
    this.#heardAt = began;
  }

  /** Records that a server has replied. */
  heard(at = now()): void {
    this.#heardAt = at;
  }

  /** Records that the last request was answered. */
  answered(at: number): void {
    this.heard(at);
    this.#last = this.#refusal = undefined;
  }

  /**
   * Records that a request has failed, and what the error means. A late reply replaces no earlier error, because that
   * one says more about the cause.
   */
  failed(error: unknown, meaning: LockError | "again"): void {
    if (!(error instanceof LateReplyError) || this.#last === undefined) this.#last = meaning === "again" ? error : meaning;
    if (!isReply(error)) return;
    this.heard();
    this.#refusal = error;
  }

  /** Takes over the failures of another attempt for the same lock. */
  learn(other: Trouble): void {
    this.#heardAt = other.#heardAt;
    this.#last = other.#last;
    this.#refusal = other.#refusal;
  }

  /** The time without a reply from any server, in milliseconds. */
  get silence(): number {
    return now() - this.#heardAt;
  }

  /** Logs a server's temporary refusal. */
  report<T>(answer: T): T {
    const said = textOf(this.#refusal);
    const { journal } = this.sources;
    journal.once(`${this.#where} ${codeOf(said)}`, `still asking for ${quoted(this.names)}: ${this.#where} says: ${said}`);
    return answer;
  }

  /** The error for a wait that has timed out. */
  tooLate(): Error {
    if (this.#last instanceof QuarantineError) return this.#last;
    return new LockTimeoutError(this.#inVain, this.#last);
  }

  /** The error for a client that the user has closed. */
  closedClient(): Error {
    return new ConnectionFailedError(`${this.#inVain}: the client of ${this.#where} is closed, or was never connected`);
  }

  /** The error if no server has replied. A server's refusal takes precedence, since it will not change. */
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
    return `could not acquire ${quoted(this.names)} within ${((now() - this.began) / 1000).toFixed(1)} s`;
  }
}
