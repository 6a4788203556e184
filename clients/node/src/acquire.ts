/**
 * One attempt to get a lock: ask, wait, ask again, until it is granted, refused, too late or cancelled.
 *
 * The first request goes over the user's client and keeps a position in the queue (QUEUE), so that requests are served
 * in the order of the calls. Then the attempt waits. As long as there are connections for it, its request takes over
 * the position on a connection of its own (BLOCK). Otherwise it keeps the position, and the server says when to ask
 * again.
 */

import { now, pauseBefore } from "./clock.js";
import { acquireCommand, freshOwner, type How, type Request, releaseCommand, routingKey, tokenOf } from "./commands.js";
import type { Driver } from "./driver.js";
import {
  Cancelled,
  ConnectionFailed,
  codeOf,
  highestFor,
  LockError,
  LockTimeout,
  mayPass,
  meaningOf,
  ofLease,
  Quarantine,
} from "./errors.js";
import type { Grant } from "./hold.js";
import type { Line } from "./line.js";
import { type LineUp, Seat } from "./line-up.js";
import type { Lines } from "./lines.js";
import type { LooseEnds, Taken } from "./loose.js";
import { pause, scheduler, sleep } from "./scheduler.js";
import { onAbort } from "./signals.js";

/** How long a place in line is kept after the last request, and how often it is asked for. */
const PLACE_MS = 5000;
const PLACE_AGAIN_MS = PLACE_MS / 3;
/** How long one BLOCK request is believed in; then the place is asked for anew. */
const BELIEVED_MS = 15_000;
/** What a reply may take, beside the time that the request waits by itself. */
const MARGIN_MS = 2000;
/** A token that no hold ever has: a release with it ends a wait, and no hold. */
const NOBODYS = 1;

/** What all attempts of one `Locks` share. */
export interface Context {
  readonly driver: Driver;
  readonly lines: Lines;
  readonly lineUp: LineUp;
  /** How long a server may be out of reach, where the caller does not wait. */
  readonly timeout: number;
  readonly attempts: Set<Attempt>;
  readonly loose: LooseEnds;
  readonly waits: (request: Request) => void;
  /** Whether the program has a hold of this owner and token. */
  readonly holds: (owner: string, token: number) => boolean;
  readonly background: (work: Promise<unknown>) => void;
  /** The longest that the server accepts, where its settings say less than we ask. */
  readonly most: { queue: number; block: number };
}

export class Attempt {
  readonly #context: Context;
  #request: Request;
  readonly #key: string;
  readonly #began = now();
  /** When the caller's wait is over. */
  readonly #until: number;
  readonly #waits: boolean;
  /** Why it was stopped, and who is to be told. */
  #stopError: Error | undefined;
  #onStop: ((error: Error) => void) | undefined;
  /** Whether a grant may be tied to the connection that waited for it. */
  #tied = false;
  /** Whether the server may know of this owner. */
  #known = false;
  #isGranted = false;
  #hasWaited = false;
  /** Whether a server may keep a place in line for it. */
  #hasPlace = false;
  #seat: Seat | undefined;
  /** Whether its request over a waiting connection was not answered in time, and may still keep its place. */
  #isSilent = false;
  /** While such a request may be done after a later one: whether it is answered after all. */
  #overtaken: Promise<boolean> | undefined;
  /** The one request that the server may have granted, if all before it were answered. */
  #underway: Promise<unknown> | undefined;
  /** Since when no server answers, and whether that was told. */
  #unheardSince: number | undefined;
  #isTold = false;
  /** Why the last request failed: what a caller is told if the wait was in vain. */
  #trouble: unknown;
  /** Replies that nobody waits for any more, until they have come and what they grant is given up. */
  readonly #late = new Set<Promise<unknown>>();
  readonly #taken: Taken = new Set();
  #settle: (() => void) | undefined;

  constructor(
    context: Context,
    request: Request,
    wait: number | undefined,
    readonly troubled: (error: Error) => void,
  ) {
    this.#context = context;
    this.#request = request;
    this.#key = routingKey(request.names);
    this.#waits = wait !== 0;
    this.#until = this.#began + (wait ?? Number.POSITIVE_INFINITY);
  }

  /** What was asked last. */
  get request(): Request {
    return this.#request;
  }

  /** Ends the attempt, which then fails with this error. */
  stop(error: Error): void {
    this.#stopError ??= error;
    this.#loosen();
    this.#onStop?.(this.#stopError);
  }

  async run(signal: AbortSignal | undefined): Promise<Grant> {
    const cancel = () => this.stop(new Cancelled("the request was cancelled", signal?.reason));
    if (signal?.aborted) throw new Cancelled("the request was cancelled", signal.reason);
    const detach = signal && onAbort(signal, cancel);
    this.#context.attempts.add(this);
    const { names, owner } = this.#request;
    if (this.#context.loose.take(owner, names)) this.#known = true;
    try {
      const answer = await this.#ask();
      const grant = typeof answer === "object" ? answer : await this.#untilGranted(answer);
      this.#isGranted = true;
      return grant;
    } finally {
      detach?.();
      this.#context.attempts.delete(this);
      if (this.#seat !== undefined) this.#context.lineUp.leave(this.#seat);
      if (!this.#isGranted && (this.#known || this.#hasPlace)) {
        this.#withdraw();
        this.#loosen();
      }
      void this.#untilSettled();
    }
  }

  /** Ends the wait, and what was granted. What a named owner holds by another request stays. */
  #withdraw(): void {
    const underway = this.#request.isNamed ? this.#underway : undefined;
    this.#giveUp(this.#known && underway === undefined ? undefined : NOBODYS);
    // Its reply says what was granted, which is given up by its token. Without a reply nobody knows that.
    underway?.catch((error: unknown) => {
      const isReply = error instanceof Error && codeOf(error.message) !== undefined;
      if (!isReply) this.#giveUp();
    });
  }

  /** Notes that the request may be granted from now on although nobody waits for that. */
  #loosen(): void {
    this.#settle ??= this.#context.loose.add(this.#request.owner, this.#taken);
  }

  async #untilSettled(): Promise<void> {
    while (this.#late.size > 0) await Promise.allSettled(this.#late);
    this.#settle?.();
  }

  /** Asks and waits until it is granted; the first answer is there. */
  async #untilGranted(first: "taken" | "failed"): Promise<Grant> {
    for (let answer: Grant | "taken" | "failed" = first, failures = 0; ; answer = await this.#ask()) {
      if (typeof answer === "object") return answer;
      if (answer === "failed") {
        if (!this.#isTold && now() - (this.#unheardSince ?? now()) >= this.#context.timeout) {
          this.#isTold = true;
          this.troubled(this.#unreached());
        }
        await this.#pause(failures++);
        continue;
      }
      failures = 0;
      if (this.#left() <= 0) throw this.#tooLate();
      if (!this.#hasWaited) this.#context.waits(this.#request);
      this.#hasWaited = true;
      await this.#wait();
    }
  }

  #left(): number {
    return this.#until - now();
  }

  #tooLate(): Error {
    if (this.#trouble instanceof Quarantine) return this.#trouble;
    const { names } = this.#request;
    const seconds = ((now() - this.#began) / 1000).toFixed(1);
    return new LockTimeout(`${names.join(", ")} was not to be had in ${seconds} s`, this.#trouble);
  }

  /** Asks over the user's client. */
  async #ask(): Promise<Grant | "taken" | "failed"> {
    const single = this.#request.names.length === 1;
    const how: How = {
      queue: single && this.#waits && this.#left() > 0 ? this.#context.most.queue : undefined,
      // A grant over a waiting connection ended with it; this ends the tie.
      ephemeral: this.#tied ? this.#request.lease : undefined,
    };
    const { timeout } = this.#context;
    const sentAt = now();
    // A request that does not wait has this time for all its repetitions together.
    const until = this.#waits
      ? sentAt + Math.min(Math.max(this.#left(), 0) + MARGIN_MS, timeout)
      : this.#began + timeout;
    const before = this.#known;
    this.#known = true;
    const asking = this.#context.driver.send(this.#key, acquireCommand(this.#request, how));
    this.#underway = before ? undefined : asking;
    const overtaken = this.#overtaken;
    let token: number | undefined;
    try {
      token = tokenOf(await this.#inTime(asking, until));
      this.#underway = undefined;
      this.#trouble = undefined;
      this.#unheardSince = undefined;
      this.#isTold = false;
    } catch (error) {
      this.#heedLater(asking);
      if (!(error instanceof Cancelled)) this.#underway = undefined;
      this.#unheardSince ??= sentAt;
      // What is refused is not granted, and a release would end what the owner holds by another request.
      if (!(error instanceof LockError) && !mayPass(meaningOf(error))) this.#known = before;
      return this.#failed(error);
    }
    if (token === undefined) {
      // A request without QUEUE leaves the position that an earlier one has, and the doubt about one without a reply.
      this.#known = before;
      this.#hasPlace ||= how.queue !== undefined;
      return "taken";
    }
    return overtaken === undefined ? { token, sentAt } : this.#askAnew(overtaken);
  }

  /**
   * It was granted, but an older request of it may still be on its way over a waiting connection. The server would tie
   * the grant to that connection, and end it with that. So it asks again when that request is answered. If it is not,
   * another owner asks, whom it does not concern.
   */
  async #askAnew(overtaken: Promise<boolean>): Promise<Grant | "taken" | "failed"> {
    const isAnswered = await this.#unlessStopped(overtaken);
    this.#overtaken = undefined;
    if (!isAnswered && !this.#request.isNamed) {
      this.#giveUp();
      this.#request = { ...this.#request, owner: freshOwner() };
      this.#known = this.#tied = this.#hasPlace = false;
    }
    return this.#ask();
  }

  /** Throws what is final; else says whether to repeat the request ("failed") or to wait ("taken"). */
  #failed(error: unknown): "taken" | "failed" {
    if (error instanceof Cancelled) throw error;
    const meaning = meaningOf(error, this.#context.driver.server !== undefined);
    this.#trouble = meaning === "again" ? error : meaning;
    const { most } = this.#context;
    const queue = highestFor("QUEUE", error);
    const block = highestFor("BLOCK", error);
    if (queue !== undefined && queue < most.queue) most.queue = queue;
    else if (block !== undefined && block < most.block) most.block = block;
    else if (meaning instanceof Quarantine && this.#waits) return "taken";
    else if (meaning !== "again" && !(meaning instanceof ConnectionFailed)) throw ofLease(meaning, this.#request.lease);
    if (error instanceof Error && error.message.startsWith("READONLY ")) this.#context.driver.stale(this.#key);
    return "failed";
  }

  /** Pauses before the request is repeated; throws if there is no time left for that. */
  async #pause(failures: number): Promise<void> {
    const until = this.#waits ? this.#until : this.#began + this.#context.timeout;
    const left = until - now();
    if (left <= 0) throw this.#unreached();
    await this.#unlessStopped(sleep(Math.min(pauseBefore(failures), left)));
    // A request that waits may ask once more when its wait is over. For another one no reply would come in time.
    if (!this.#waits && until <= now()) throw this.#unreached();
  }

  #unreached(): Error {
    const trouble = this.#trouble;
    const why = trouble instanceof Error ? trouble.message : String(trouble);
    return new ConnectionFailed(`${this.#key}: no server answered in time: ${why}`, trouble);
  }

  /** Waits for a change: until it is worth asking again, at the latest when the time is over. */
  async #wait(): Promise<void> {
    const { lines } = this.#context;
    const { names } = this.#request;
    if (this.#isSilent || (this.#seat === undefined && lines.hasRoom)) return this.#block();
    if (names.length === 1) return this.#sit();
    // Places in line are for single names. Others wait for a connection.
    const { ready, stop } = lines.room();
    try {
      await this.#inTime(ready, this.#until);
    } catch (error) {
      stop();
      if (error instanceof ConnectionFailed) return;
      throw error;
    }
    return this.#block(true);
  }

  /** Waits by its place in line. */
  async #sit(): Promise<void> {
    if (this.#seat === undefined) {
      this.#seat = new Seat(this.#key);
      this.#context.lineUp.join(this.#seat);
    }
    const seat = this.#seat;
    const entry = scheduler.at(Math.min(this.#until, now() + PLACE_AGAIN_MS), () => seat.turn(), true);
    try {
      await this.#unlessStopped(seat.next());
    } finally {
      scheduler.cancel(entry);
    }
  }

  /** Waits over a connection of its own, which may be kept for it. */
  async #block(isKept = false): Promise<void> {
    const { lines, most } = this.#context;
    const { names } = this.#request;
    this.#isSilent = false;
    const limit = Math.min(Math.max(this.#left(), 0) + MARGIN_MS, this.#context.timeout);
    const taking = lines.take(this.#key, limit, isKept);
    let line: Line;
    try {
      line = await this.#unlessStopped(taking);
    } catch (error) {
      taking.then(
        (unused) => lines.give(unused),
        () => undefined,
      );
      this.#failed(error);
      return this.#pause(0);
    }
    const left = this.#left();
    if (left <= 0) {
      lines.give(line);
      return;
    }
    const block = Math.min(left, BELIEVED_MS + MARGIN_MS, most.block);
    const words = acquireCommand(this.#request, { block: Math.max(Math.ceil(block), 1), ephemeral: 0 });
    this.#tied = names.length === 1;
    const before = this.#known;
    this.#known = true;
    const waiting = line.ask(words);
    this.#underway = before ? undefined : waiting;
    const until = now() + Math.min(block + MARGIN_MS, BELIEVED_MS);
    try {
      const reply = await this.#inTime(waiting, until);
      this.#underway = undefined;
      // It had taken over the position, which has ended with it.
      this.#known = tokenOf(reply) !== undefined;
      lines.give(line);
    } catch (error) {
      // An unanswered request is answered soon after its place was asked for anew, or given up.
      const settling = lines.settle(line, waiting);
      this.#context.background(settling);
      this.#heedLater(waiting);
      if (error instanceof Cancelled) throw error;
      this.#underway = undefined;
      if (error instanceof ConnectionFailed && line.isOpen) {
        if (this.#tied) this.#await(settling);
        // Several names have no QUEUE. Only another BLOCK takes over their place, before this connection is closed.
        this.#isSilent = names.length > 1;
        return;
      }
      if (this.#failed(error) === "failed") await this.#pause(0);
    }
  }

  /** Notes that this request over a waiting connection may be done after a later one, until it is answered. */
  #await(settling: Promise<boolean>): void {
    const overtaken = settling.then((isAnswered) => {
      if (isAnswered && this.#overtaken === overtaken) this.#overtaken = undefined;
      return isAnswered;
    });
    this.#overtaken = overtaken;
  }

  /** Withdraws the request, or releases what was granted; goes on until the lease would be over. */
  #giveUp(token?: number, request = this.#request): void {
    const { driver, background } = this.#context;
    const { names, owner, lease } = request;
    const until = now() + lease;
    const giveUp = async (name: string) => {
      for (let attempt = 0; !this.#taken.has(name); attempt++) {
        try {
          return await driver.send(name, releaseCommand(name, owner, token));
        } catch (error) {
          if (!mayPass(meaningOf(error)) || now() >= until) return undefined;
          await pause(pauseBefore(attempt));
        }
      }
      return undefined;
    };
    for (const name of names) {
      const givingUp = giveUp(name);
      background(givingUp);
      this.#untilDone(givingUp);
    }
  }

  #untilDone(work: Promise<unknown>): void {
    const done = work.catch(() => undefined).finally(() => this.#late.delete(done));
    this.#late.add(done);
  }

  #unlessStopped<T>(promise: Promise<T>): Promise<T> {
    return this.#inTime(promise, Number.POSITIVE_INFINITY);
  }

  /** The promise's outcome; `ConnectionFailed` if it takes too long, `Cancelled` if the caller cancels. */
  #inTime<T>(promise: Promise<T>, at: number): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      let isOpen = true;
      // True for the first that settles it.
      const close = (): boolean => {
        if (!isOpen) return false;
        isOpen = false;
        this.#onStop = undefined;
        scheduler.cancel(entry);
        return true;
      };
      const leave = (error: Error) => {
        if (close()) reject(error);
      };
      const late = () => leave(new ConnectionFailed(`no answer in time; the client is ${this.#context.driver.state}`));
      const entry = at === Number.POSITIVE_INFINITY ? undefined : scheduler.at(at, late);
      this.#onStop = leave;
      if (this.#stopError !== undefined) leave(this.#stopError);
      promise.then(
        (value) => close() && resolve(value),
        (error: unknown) => close() && reject(error),
      );
    });
  }

  /** Gives up a grant that comes after all, if nobody waits for it any more. */
  #heedLater(asking: Promise<unknown>): void {
    const request = this.#request;
    const heeding = asking.then((reply) => {
      const token = tokenOf(reply);
      const isInVain = request !== this.#request || (!this.#isGranted && !this.#context.attempts.has(this));
      // The token tells it from a later grant to the same owner, and from what the owner held before.
      if (token === undefined || !isInVain || this.#context.holds(request.owner, token)) return;
      this.#giveUp(token, request);
    });
    this.#untilDone(heeding);
  }
}
