/**
 * The route to the primary: over the user's client, or around it, by a connection of the library's own. Requests go
 * around while the client is silent, closed, or connected to a server that is not the primary at its address any
 * longer.
 */

import { now, pauseBefore } from "./clock.js";
import type { Driver } from "./driver.js";
import { codeOf, ConnectionFailedError, LockError } from "./errors.js";
import { isReply, type Journal, textOf } from "./journal.js";
import { type Endpoint, Line, nameOf, placeOf } from "./line.js";
import { within } from "./stop.js";

/** Makes the command just before it is sent. Nothing is sent if it returns undefined. */
export type Command = () => readonly string[] | undefined;

/** The time for which the client may leave a request unanswered before others go around it. */
const SILENT_MS = 1000;
/** The time limit for opening a connection of the library's own, for a reply over it, and for the client's login. */
const ANSWER_MS = 2000;
/** The time for which a connection is reused after its last use. */
const IDLE_MS = 5000;
/**
 * The time for which requests go around a client whose server is not the primary. Then a request tries the client
 * again.
 */
const ASTRAY_MS = 5000;

/** Errors that mean: another server is the primary, or will be. QUARANTINE may come from an old primary. */
const NOT_ME = new Set(["READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "QUARANTINE"]);

/** Returns true if the error may come from a server that its address does not lead to any longer. */
export const isNotMe = (error: unknown): boolean => error instanceof Error && NOT_ME.has(codeOf(error.message) ?? "");

interface Own {
  readonly opening: Promise<Line>;
  usedAt: number;
}

export class Route {
  /** The unanswered requests over the client, in the order in which they were sent. */
  readonly #unanswered: { readonly sentAt: number }[] = [];
  /** True if the last request over the client failed without a reply. */
  #hasFailed = false;
  #astrayUntil: number | undefined;
  readonly #own = new Map<string, Own>();
  /** Consecutive failed attempts to connect, and why and until when no further one is made. */
  #failures = 0;
  #failure: { readonly error: unknown; readonly until: number } | undefined;
  #isClosed = false;

  constructor(
    readonly driver: Driver,
    readonly journal: Journal,
  ) {}

  /** True if the user has closed the client, or never connected it. */
  get isClosed(): boolean {
    return ["end", "closed"].includes(this.driver.state);
  }

  /** True if the client seems to lead to the primary. A cluster's client has many servers, and finds them itself. */
  get isFit(): boolean {
    const { state, isCluster } = this.driver;
    if (this.isClosed) return false;
    if (isCluster) return true;
    const [oldest] = this.#unanswered;
    const isSilent = oldest !== undefined && now() - oldest.sentAt > SILENT_MS;
    return !isSilent && !(this.#hasFailed && state !== "ready") && !this.#isAstray;
  }

  get #isAstray(): boolean {
    return this.#astrayUntil !== undefined && now() < this.#astrayUntil;
  }

  /**
   * The time for which the client may leave a request unanswered before it also goes around it: less while it connects.
   */
  get patience(): number {
    return this.driver.state === "ready" ? SILENT_MS : SILENT_MS / 2;
  }

  /** The address of the server that has this key, for messages. */
  where(key: string): string {
    return this.driver.where(key);
  }

  /** Sends a command to the primary that has this key. Every second attempt goes around the client. */
  send(key: string, command: Command, attempt = 0): Promise<unknown> {
    return attempt % 2 === 0 && this.isFit ? this.over(key, command) : this.around(key, command);
  }

  /** Sends a command over the client, or around it if its server is not the primary. */
  over(key: string, command: Command, sentAt = now()): Promise<unknown> {
    const request = { sentAt };
    const failed = (error: unknown): Promise<unknown> => {
      this.#answered(request);
      return this.#afterFailure(error, key, command);
    };
    let isMade = false;
    // Each request passes here, so this is no async function: that would create a promise more.
    try {
      const words = command();
      if (words === undefined) return Promise.resolve(1);
      isMade = true;
      this.#unanswered.push(request);
      return this.driver.send(key, words).then((value) => {
        this.#answered(request);
        this.#hasFailed = false;
        if (this.journal.hasLost) this.journal.found(this.where(key));
        return value;
      }, failed);
    } catch (error) {
      // A client may throw at once, too.
      return isMade ? failed(error) : Promise.reject(error);
    }
  }

  /** Returns the reply of another server, if the client's one is not the primary. Throws the error otherwise. */
  async #afterFailure(error: unknown, key: string, command: Command): Promise<unknown> {
    this.#hasFailed = !isReply(error);
    if (this.#hasFailed) this.journal.lost(this.where(key));
    if (!isNotMe(error)) throw error;
    if (!(error as Error).message.startsWith("QUARANTINE")) this.driver.stale();
    // Only a single address can lead to another server meanwhile. Sentinel and clusters say where the primary is.
    if (this.driver.server === undefined) throw error;
    const reply = await this.around(key, command).catch(() => {
      throw error;
    });
    this.#astrayUntil = now() + ASTRAY_MS;
    const said = textOf(error);
    this.journal.once(`astray ${this.where(key)}`, `${this.where(key)} leads to another server now, not to: ${said}`);
    return reply;
  }

  /** Sends a command over a connection of the library's own. */
  async around(key: string, command: Command): Promise<unknown> {
    const line = await this.#line(key);
    const words = command();
    if (words === undefined) return 1;
    const reply = line.askSoon(words);
    reply.catch((error: unknown) => {
      // Its address now leads to another server: the next request connects by the address again.
      if (isNotMe(error)) line.close();
    });
    return reply;
  }

  /** Like `around`, but accepts only a primary's answer: a replica that is just synchronizing knows of no locks. */
  async ofPrimary(key: string, command: Command): Promise<unknown> {
    const line = await this.#line(key);
    await line.seePrimary();
    return this.around(key, command);
  }

  /** The address of the primary that has this key, and the login there. */
  async endpoint(key: string): Promise<Endpoint> {
    const where = this.where(key);
    try {
      const late = () => new ConnectionFailedError(`${where}: the client does not say in time how to connect`);
      return await within(this.driver.endpoint(key), now() + ANSWER_MS, late);
    } catch (error) {
      if (error instanceof LockError) throw error;
      throw new ConnectionFailedError(`${where}: the client does not say how to connect: ${textOf(error)}`, error);
    }
  }

  close(): void {
    this.#isClosed = true;
    for (const { opening } of this.#own.values()) void opening.then((line) => line.close(), () => undefined);
  }

  /** Replies arrive in order: earlier requests get none any longer. */
  #answered(request: { readonly sentAt: number }): void {
    this.#unanswered.splice(0, this.#unanswered.indexOf(request) + 1);
  }

  /** The connection to the primary of this key, shared by all requests that go around the client. */
  async #line(key: string): Promise<Line> {
    const endpoint = await this.endpoint(key);
    const place = placeOf(endpoint);
    const own = this.#own.get(place);
    if (own !== undefined && now() - own.usedAt < IDLE_MS) {
      own.usedAt = now();
      return own.opening;
    }
    void own?.opening.then((line) => line.close(), () => undefined);
    if (this.#isClosed) throw new ConnectionFailedError("the locks were closed");
    if (this.#failure !== undefined && now() < this.#failure.until) throw this.#failure.error;
    const opening = this.#open(endpoint, () => {
      if (this.#own.get(place)?.opening === opening) this.#own.delete(place);
    });
    this.#own.set(place, { opening, usedAt: now() });
    return opening;
  }

  async #open(endpoint: Endpoint, ended: () => void): Promise<Line> {
    try {
      const line = await Line.open(endpoint, ANSWER_MS, this.journal);
      this.#failures = 0;
      this.#failure = undefined;
      line.onEnd = ended;
      if (!line.isOpen) ended();
      if (this.#isClosed) line.close();
      return line;
    } catch (error) {
      ended();
      // A server that refuses this connection need not refuse the client.
      const isFinal = !(error instanceof ConnectionFailedError) && !isNotMe(error);
      const failure = isFinal ? new ConnectionFailedError(`${nameOf(endpoint)}: ${textOf(error)}`, error) : error;
      this.#failure = { error: failure, until: now() + pauseBefore(this.#failures++) };
      throw failure;
    }
  }
}
