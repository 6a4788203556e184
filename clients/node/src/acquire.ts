/**
 * One attempt to acquire a lock: it asks, waits and asks again until it is granted, refused, timed out or cancelled.
 *
 * The request for one lock goes over the user's client and keeps a position in the queue (QUEUE), so that requests are
 * served in the order of the calls. The server says when to ask again. Several locks have no such position: their request
 * waits over a connection of its own (BLOCK).
 */

import type { Admission } from "./admission.js";
import type { Call } from "./base.js";
import { deadlineOf, now, pauseBefore } from "./clock.js";
import { acquireCommand, type Request, routingKey, tokenOf } from "./commands.js";
import {
  abortOf,
  ConnectionFailedError,
  highestFor,
  LateReplyError,
  LockError,
  mayPass,
  meaningOf,
  ofLease,
  QuarantineError,
  Stopped,
} from "./errors.js";
import { givingUp } from "./give-up.js";
import type { Grant } from "./life.js";
import { isReply, type Journal } from "./journal.js";
import type { Line } from "./line.js";
import { type LineUp, Seat } from "./line-up.js";
import type { Lines } from "./lines.js";
import { type LooseEnds, Taken } from "./loose.js";
import type { Command, Route } from "./route.js";
import { pause, scheduler } from "./scheduler.js";
import { onAbort } from "./signals.js";
import { Stop } from "./stop.js";
import { Trouble } from "./trouble.js";

/** The time for which the server keeps a queue position after the last request, and the interval between requests. */
const PLACE_MS = 5000;
const PLACE_AGAIN_MS = PLACE_MS / 3;
/** The time after which a BLOCK request is repeated, because its connection may have died silently. */
const BELIEVED_MS = 8000;
/** The time allowed for the reply to a BLOCK request, in addition to the time that the request waits. */
const MARGIN_MS = 1000;
/** The time by which an attempt may outlast its wait, and the limit of an attempt that does not wait. */
const OVERTIME_MS = 1900;
/** A token that no hold ever has. A release with it ends a wait but no hold. */
const NOBODYS = 1;

const lateReply = (): Error => new LateReplyError("no answer in time");

/** The result of a request: a grant, a grant whose lease has expired or is short, a wait, or a failure. */
type Answer = Grant | "over" | "taken" | "failed";

/** State that all attempts of one `Locks` share. */
export interface Context {
  readonly route: Route;
  readonly lines: Lines;
  readonly lineUp: LineUp;
  readonly admission: Admission;
  /** The time without a reply after which an unbounded wait fails. */
  readonly serverTimeout: number;
  readonly attempts: Set<Attempt>;
  readonly loose: LooseEnds;
  readonly waits: (request: Request) => void;
  /** Returns true if the program has a hold of this owner, with this token if one is given. */
  readonly holds: (owner: string, token?: number) => boolean;
  /** Each is called when a hold begins. */
  readonly begins: Set<() => void>;
  readonly journal: Journal;
  readonly background: (work: Promise<unknown>) => void;
  /** The longest times that the server accepts, if its settings allow less than we ask for. */
  readonly most: { queue: number; block: number };
}

export class Attempt {
  readonly #context: Context;
  readonly #key: string;
  /** The end of the caller's wait, and the end of the attempt in any case. */
  readonly #until: number;
  readonly #end: number;
  readonly #waits: boolean;
  readonly #stop = new Stop();
  /** True if the server may know of this owner. */
  #known = false;
  #isGranted = false;
  #hasWaited = false;
  /** True if a server may keep a queue position for it. */
  #hasPlace = false;
  #seat: Seat | undefined;
  /** True if it was granted with a short lease, which must be renewed. */
  #isPromised = false;
  /** True while it waits for permission to join the server's queue. */
  #isOutside = false;
  /** True if its request over a waiting connection timed out and may still keep its position. */
  #isSilent = false;
  /** The one request that the server may have granted, if all earlier ones were answered. */
  #underway: Promise<unknown> | undefined;
  /** True if its owner may have other requests in flight over the client, which it must not overtake. */
  #isBound = false;
  /** True once it has reported that no server replies. */
  #isReported = false;
  readonly #trouble: Trouble;
  /** Replies that no caller waits for. Each stays here until it arrives and its grant is released. */
  #late: Set<Promise<unknown>> | undefined;
  readonly #taken = new Taken();
  #settle: (() => void) | undefined;

  constructor(
    context: Context,
    readonly request: Request,
    wait: number | undefined,
    /** If it has `troubled`, that is called once when no server replies. Otherwise, the attempt fails then. */
    readonly call: Call,
  ) {
    this.#context = context;
    this.#key = routingKey(request.keys);
    this.#trouble = new Trouble(context, request.names, this.#key, call.began);
    this.#waits = wait !== 0;
    this.#until = call.began + (wait ?? Number.POSITIVE_INFINITY);
    this.#end = this.#until + (this.#waits ? OVERTIME_MS : Math.min(context.serverTimeout, OVERTIME_MS));
  }

  /** Ends the attempt with this error. */
  stop(error: Error): void {
    this.#loosen();
    this.#stop.because(error);
  }

  async run(signal: AbortSignal | undefined): Promise<Grant> {
    if (signal?.aborted) throw abortOf(signal);
    const detach = signal && onAbort(signal, () => this.stop(abortOf(signal)));
    this.#context.attempts.add(this);
    const { keys, owner, isNamed } = this.request;
    // The server detects deadlocks of an owner that the program names, so such a request joins the server's queue at
    // once.
    const entry = keys.length === 1 && this.#waits && !isNamed ? this.#context.admission.join(this.#key) : undefined;
    try {
      if (entry?.seat !== undefined) await this.#enter(entry.seat);
      const mayHold = this.#context.loose.take(owner, keys);
      this.#isBound = this.#hasPlace = mayHold !== undefined;
      this.#known = mayHold === true;
      const answer = await this.#ask(0, entry?.seat === undefined ? this.call.began : now());
      const grant = typeof answer === "object" ? answer : await this.#untilGranted(answer);
      this.#isGranted = true;
      return grant;
    } finally {
      detach?.();
      this.#context.attempts.delete(this);
      if (entry !== undefined) this.#context.admission.leave(entry);
      if (this.#seat !== undefined) this.#context.lineUp.leave(this.#seat);
      if (!this.#isGranted && (this.#known || this.#hasPlace)) {
        this.#withdraw();
        this.#loosen();
      }
      if (this.#late !== undefined) void this.#untilSettled(this.#late);
      else this.#settle?.();
    }
  }

  /** Waits until it may join the server's queue. */
  async #enter(seat: Seat): Promise<void> {
    this.#isOutside = this.#hasWaited = true;
    this.call.vigil?.start();
    this.#context.waits(this.request);
    await this.#inTime(seat.next(), this.#until, () => this.#trouble.tooLate());
    this.#isOutside = false;
    this.#trouble.heard();
  }

  /** Ends the wait, and releases what was granted. A named owner keeps what it holds by another request. */
  #withdraw(): void {
    const underway = this.request.isNamed ? this.#underway : undefined;
    this.#giveUp(this.#known && underway === undefined ? undefined : NOBODYS);
    // The reply says what was granted, which is then released by its token. Without a reply, the grant is unknown.
    underway?.catch((error: unknown) => {
      if (!isReply(error)) this.#giveUp();
    });
  }

  /** Records that the request may be granted from now on although no caller waits for it. */
  #loosen(): void {
    this.#settle ??= this.#context.loose.add(this.request.owner, this.#taken, () => this.#known);
  }

  async #untilSettled(late: Set<Promise<unknown>>): Promise<void> {
    while (late.size > 0) await Promise.allSettled(late);
    this.#settle?.();
  }

  /** Asks and waits until the lock is granted, given the first answer. */
  async #untilGranted(first: Answer): Promise<Grant> {
    this.call.vigil?.start();
    for (let answer = first, failures = 0; ; answer = await this.#ask(failures)) {
      if (typeof answer === "object") return answer;
      if (answer === "failed") {
        if (this.#trouble.silence >= this.#context.serverTimeout) this.#unheard();
        await this.#pause(failures++);
        continue;
      }
      failures = 0;
      if (answer === "over") continue;
      if (this.#left() <= 0) throw this.#trouble.tooLate();
      if (!this.#hasWaited) this.#context.waits(this.request);
      this.#hasWaited = true;
      await this.#wait();
    }
  }

  /** No server has replied for a long time. Unbounded waits fail, except those that only want to be notified. */
  #unheard(): void {
    for (const each of this.#context.attempts) {
      if (each.#isOutside && each.#key === this.#key) each.#unheardOutside(this.#trouble);
    }
    if (this.#mayFail) throw this.#trouble.unreached();
    if (!this.#isReported) this.call.troubled?.(this.#trouble.unreached());
    this.#isReported = true;
  }

  /**
   * Passes the failure to an attempt that has not asked yet. It would otherwise fail only after all attempts ahead of
   * it.
   */
  #unheardOutside(trouble: Trouble): void {
    this.#trouble.learn(trouble);
    if (this.#mayFail) this.stop(new Stopped(this.#trouble.unreached()));
  }

  get #mayFail(): boolean {
    return this.call.troubled === undefined && this.#until === Number.POSITIVE_INFINITY;
  }

  #left(): number {
    return this.#until - now();
  }

  /** Asks over the user's client, or over another route: see `Route`. */
  #ask(failures: number, sentAt = now()): Promise<Answer> {
    const { route, most, serverTimeout } = this.#context;
    if (route.isClosed) throw this.#trouble.closedClient();
    const isQueued = this.request.names.length === 1 && this.#waits && this.#until > sentAt;
    // The short lease limits the harm of a client that dies just after a queued grant. Later requests ask for the whole
    // lease.
    const isShort = isQueued && this.#seat !== undefined && !this.#isPromised && this.request.lease > PLACE_MS;
    const request = isShort ? { ...this.request, lease: PLACE_MS } : this.request;
    const words = acquireCommand(request, isQueued ? { queue: most.queue } : {});
    // A request that does not wait has this time for all its repetitions.
    const until = this.#waits ? Math.min(sentAt + serverTimeout, this.#end) : this.#end;
    const before = this.#known;
    this.#known = true;
    const command = () => this.#unstopped(words);
    const isOver = this.#isBound || (route.isFit && !(route.driver.isCluster && failures % 2 === 1));
    const asking = isOver ? route.over(this.#key, command, sentAt) : route.around(this.#key, command);
    this.#underway = before ? undefined : asking;
    const mayGoAround = isOver && !this.#isBound && !route.driver.isCluster;
    const patience = Math.min(until, sentAt + route.patience);
    const answered = (reply: unknown): Answer => {
      const token = tokenOf(reply);
      const time = now();
      this.#underway = undefined;
      this.#trouble.answered(time);
      this.#isReported = false;
      this.#isPromised = isShort && token !== undefined;
      if (token === undefined) {
        // A request without QUEUE keeps the position of an earlier one, and cannot settle whether an unanswered one was
        // granted.
        this.#known = before;
        this.#hasPlace ||= isQueued;
        return "taken";
      }
      // The reply took as long as the lease. The server may still hold the lock for us, so the same owner asks again.
      const isOverdue = this.#waits && time >= deadlineOf(sentAt, this.request.lease) && this.#until > time;
      return isShort || isOverdue ? "over" : { token, sentAt };
    };
    const failed = (error: unknown): Answer => {
      this.#heedLater(asking);
      if (!(error instanceof Stopped)) this.#underway = undefined;
      // A refused request grants nothing, and a release would end what the owner holds by another request.
      if (!(error instanceof LockError) && !mayPass(meaningOf(error))) this.#known = before;
      return this.#failed(error);
    };
    const silent = (): Error | Promise<unknown> => {
      this.call.vigil?.start();
      if (now() >= until) return lateReply();
      return mayGoAround ? this.#orAround(asking, command, until) : this.#inTime(asking, until);
    };
    return this.#inTime(asking, patience, silent).then((reply) => {
      try {
        return answered(reply);
      } catch (error) {
        return failed(error);
      }
    }, failed);
  }

  /** Sends nothing once the caller has left. */
  #unstopped<T>(words: T): T {
    if (this.#stop.error !== undefined) throw this.#stop.error;
    if (!this.#context.attempts.has(this)) throw new ConnectionFailedError("the request has ended");
    return words;
  }

  /** Returns the first reply. The client is silent, so the request also goes over another route. */
  #orAround(asking: Promise<unknown>, command: Command, until: number): Promise<unknown> {
    const { route } = this.#context;
    const around = route.around(this.#key, command);
    this.#heedLater(asking);
    this.#heedLater(around);
    const first = Promise.race([
      asking.catch(() => around),
      // A client that is still connecting cannot reply yet.
      around.catch((error: unknown) => {
        if (route.driver.state !== "ready") throw error;
        return asking;
      }),
    ]);
    return this.#inTime(first, until);
  }

  /** Throws final errors. Otherwise returns whether to repeat the request ("failed") or to wait ("taken"). */
  #failed(error: unknown): "taken" | "failed" {
    if (error instanceof Stopped) throw error;
    const { most, route } = this.#context;
    const meaning = meaningOf(error, route.driver.server !== undefined);
    this.#trouble.failed(error, meaning);
    const queue = highestFor("QUEUE", error);
    const block = highestFor("BLOCK", error);
    // Another request may have learned either limit first.
    if (queue !== undefined) most.queue = Math.min(most.queue, queue);
    else if (block !== undefined) most.block = Math.min(most.block, block);
    else if (meaning instanceof QuarantineError && this.#waits) return this.#trouble.report("taken");
    else if (meaning !== "again" && !(meaning instanceof ConnectionFailedError)) throw ofLease(meaning, this.request.lease);
    else if (this.#waits && isReply(error)) return this.#trouble.report("failed");
    return "failed";
  }

  /** Pauses before the request is repeated. Throws if no time is left for that. */
  async #pause(failures: number): Promise<void> {
    const until = this.#waits ? this.#until : this.#end;
    const left = until - now();
    if (left <= 0) throw this.#trouble.unreached();
    await this.#stop.unless(pause(Math.min(pauseBefore(failures), left)));
    // A request that waits may ask once more after its wait. For any other, no reply would arrive in time.
    if (!this.#waits && until <= now()) throw this.#trouble.unreached();
  }

  /** Waits for a change until it is worth asking again, or until the time is up. */
  async #wait(): Promise<void> {
    const { lines, begins, holds } = this.#context;
    const { names, isNamed, owner } = this.request;
    if (names.length === 1) return this.#sit();
    // It waits for a free connection, but only while its owner holds nothing: the server must see the owner's
    // deadlocks. If it may still have a position, only another BLOCK takes that over.
    const { ready, stop, hurry } = lines.room();
    const look = () => {
      if (this.#isSilent || (isNamed && holds(owner))) hurry();
    };
    look();
    begins.add(look);
    try {
      await this.#inTime(ready, this.#until);
    } catch (error) {
      stop();
      if (error instanceof ConnectionFailedError) return;
      throw error;
    } finally {
      begins.delete(look);
    }
    return this.#block();
  }

  /** Waits by its position in the queue. */
  async #sit(): Promise<void> {
    if (this.#seat === undefined) {
      this.#seat = new Seat(this.#key);
      this.#context.lineUp.join(this.#seat);
    }
    const seat = this.#seat;
    const entry = scheduler.at(Math.min(this.#until, now() + PLACE_AGAIN_MS), () => seat.turn());
    try {
      await this.#stop.unless(seat.next());
    } finally {
      scheduler.cancel(entry);
    }
  }

  /** Waits over a connection of its own, for which there is room. */
  async #block(): Promise<void> {
    const { lines, most, serverTimeout } = this.#context;
    this.#isSilent = false;
    const limit = Math.min(Math.max(this.#left(), 0) + MARGIN_MS, serverTimeout, BELIEVED_MS);
    const taking = lines.take(this.#key, limit);
    let line: Line;
    try {
      line = await this.#stop.unless(taking);
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
    const words = acquireCommand(this.request, { block: Math.max(Math.ceil(block), 1) });
    const before = this.#known;
    this.#known = true;
    const waiting = line.ask(words);
    this.#underway = before ? undefined : waiting;
    const until = now() + Math.min(block + MARGIN_MS, BELIEVED_MS);
    try {
      const reply = await this.#inTime(waiting, until);
      this.#underway = undefined;
      // It had taken over the position, which ended together with it.
      this.#known = tokenOf(reply) !== undefined;
      this.#trouble.heard();
      lines.give(line);
    } catch (error) {
      // An unanswered request is answered soon after another request takes over or gives up its position.
      this.#context.background(lines.settle(line, waiting));
      this.#heedLater(waiting);
      if (error instanceof Stopped) throw error;
      this.#underway = undefined;
      if (error instanceof ConnectionFailedError && line.isOpen) {
        this.#isSilent = true;
        return;
      }
      if (this.#failed(error) === "failed") await this.#pause(0);
    }
  }

  /** Withdraws the request, or releases what was granted. Retries until the lease would have expired. */
  #giveUp(token?: number): void {
    const { route, background } = this.#context;
    for (const work of givingUp(route, this.request, { token, taken: this.#taken, isBound: this.#isBound })) {
      background(work);
      this.#untilDone(work);
    }
  }

  #untilDone(work: Promise<unknown>): void {
    const late = (this.#late ??= new Set());
    const done = work.catch(() => undefined).finally(() => late.delete(done));
    late.add(done);
  }

  /**
   * Returns the promise's outcome. Throws `ConnectionFailedError` if it takes too long, `Stopped` if the caller
   * cancels.
   */
  #inTime<T>(promise: Promise<T>, at: number, late: () => Error | Promise<T> = lateReply): Promise<T> {
    return this.#stop.inTime(promise, at, late);
  }

  /** Releases a grant that arrives after its caller has left. */
  #heedLater(asking: Promise<unknown>): void {
    const heeding = asking.then(async (reply) => {
      const token = tokenOf(reply);
      // A lock that was granted just now becomes a hold first.
      await new Promise((resolve) => setImmediate(resolve));
      const { attempts, holds } = this.#context;
      // The token tells this grant from later ones to the same owner, and from what the owner held before.
      if (token === undefined || attempts.has(this) || holds(this.request.owner, token)) return;
      this.#giveUp(token);
    });
    this.#untilDone(heeding);
  }
}
