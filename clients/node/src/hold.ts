/** A lock that is held: its deadline, its renewals, and its loss, which is told once. */

import { allowance, deadlineOf, now, renewalOf } from "./clock.js";
import {
  ConnectionFailedError,
  isOverwritten,
  LockError,
  LockLostError,
  type LossReason,
  meaningOf,
  ownOf,
} from "./errors.js";
import { isReply, quoted } from "./journal.js";
import { type Grant, isFinal, type Keeper, Life, releasePause, RENEW_PAUSE_MS, type Terms, type Told } from "./life.js";
import { checkLease, SHORTEST_LEASE_MS } from "./rules.js";
import { awake, pause } from "./scheduler.js";
import { onAbort } from "./signals.js";
import { within } from "./stop.js";

/** A hold that lasts longer than this listens for the server's pushes; most are over by then. */
const LISTEN_AFTER_MS = 50;
/** How long release() waits for the servers; then it goes on in the background, to the end of the lease. */
const RELEASE_MS = 5000;
/** For how long a renewal that was not answered may still reach the server. */
const LATE_MS = 30_000;

/** @internal What the locks keep of a hold. */
export let lifeOf: (hold: Hold) => Life;

export class Hold implements AsyncDisposable {
  readonly token: number;
  readonly owner: string;
  readonly names: readonly string[];
  /** The moment of the grant, by `performance.now()`. */
  readonly heldSince: number = performance.now();
  #life: Life;
  #keeper: Keeper;
  #terms: Terms;
  #told: Told;
  #renewAt: number;
  #listenAt = now() + LISTEN_AFTER_MS;
  /** Whether it lasts until its end, though nothing refers to it. */
  #isKept: boolean;
  #renewing: Promise<boolean> | undefined;
  /** What renewals ask for. */
  #lease: number;
  /** Renewals that failed in a row, and how the last one did. */
  #failures = 0;
  #trouble: unknown;
  /** When the longest hold is over. */
  readonly #end: number;
  /** Whether the program is told of a loss, or asks for it. */
  #isWatched = false;
  #abort: AbortController | undefined;
  #loss: LockLostError | undefined;
  #releasing: Promise<boolean> | undefined;
  /** Until when a renewal may come late that was not answered. */
  #lateUntil = 0;
  #isDetached = false;
  /** Whether renewals wait for what `detach` comes to. */
  #isDetaching = false;
  #isOfLeader = false;

  // Private, so that nobody prints or serializes the client of the driver with a hold.
  static {
    lifeOf = (hold) => hold.#life;
  }

  /** @internal */
  constructor(keeper: Keeper, grant: Grant, terms: Terms, told: Told) {
    this.#keeper = keeper;
    this.#terms = terms;
    this.#told = told;
    this.token = grant.token;
    this.owner = keeper.owner;
    this.names = keeper.names;
    this.#lease = terms.lease;
    this.#end = grant.sentAt + (terms.maxHold ?? Number.POSITIVE_INFINITY);
    this.#life = new Life(this, keeper, told, grant, terms);
    // What is not renewed is over soon. All else can be forgotten as soon as it has lasted for a moment.
    this.#isKept = !terms.renew;
    this.#renewAt = terms.renew ? renewalOf(grant.sentAt, terms.first) : Number.POSITIVE_INFINITY;
    this.#plan();
  }

  /** The first, or only, name. */
  get name(): string {
    return this.names[0] ?? "";
  }

  /** For how many milliseconds more it is surely held, unless it is renewed; 0 if it is lost or released. */
  get remaining(): number {
    return this.#isOver ? 0 : Math.max(this.#life.deadline - now(), 0);
  }

  /** Whether it is lost, or was given up. */
  get #isOver(): boolean {
    return this.#loss !== undefined || this.#releasing !== undefined;
  }

  /** Aborted when the lock is lost; its reason is the `LockLostError`. Not aborted by a release. */
  get signal(): AbortSignal {
    this.keep();
    this.#notice();
    return this.#controller().signal;
  }

  /** @internal Makes it last for the leader that it is of, which does not hand it on. */
  lead(): void {
    this.#isOfLeader = true;
    this.keep();
  }

  /** @internal Makes it last until its end, though nothing may refer to it. */
  keep(): void {
    this.#isKept = this.#isWatched = true;
    this.#life.keep(this);
  }

  /** @internal Lets another signal abort this one, too; returns how to stop that. */
  follow(signal: AbortSignal): () => void {
    const own = this.#controller();
    const abort = () => own.abort(signal.reason);
    if (signal.aborted) abort();
    return onAbort(signal, abort);
  }

  /** Why it is lost; undefined while it is not. */
  get loss(): LockLostError | undefined {
    this.#isWatched = true;
    this.#notice();
    return this.#loss;
  }

  /** Throws `LockLostError` if the lock is held no more, also if it was given up. Asks no server. */
  check(): void {
    this.#isWatched = true;
    this.#notice();
    if (this.#loss !== undefined) throw this.#loss;
    if (this.#isDetached) throw new LockLostError(`the hold of ${quoted(this.names)} was detached`, "detached");
    if (this.#isOver) throw new LockLostError(`the hold of ${quoted(this.names)} was given up`, "release");
  }

  /** Whether the deadline is that of the longest hold. */
  get #isLast(): boolean {
    return this.#life.deadline >= this.#end - allowance(Math.max(this.#terms.first, this.#lease));
  }

  /** Notices that the lease is over. The timer may be late, where the program is busy. */
  #notice(): void {
    if (!this.#isOver && now() >= this.#life.deadline) this.#expire();
  }

  #expire(): void {
    if (this.#isLast) this.#lose("max_hold", "its longest hold (maxHold) is over");
    else this.#lose("deadline", "its lease ended before it could be renewed", this.#trouble);
  }

  /**
   * Begins a lease of that many milliseconds now; later renewals ask for it, too. Rejects with `LockLostError` if the hold
   * is over, and with `ConnectionFailedError` if no server answers within 5 s: then the hold counts on the shorter of both
   * leases.
   */
  async extend(lease: number): Promise<void> {
    checkLease(lease);
    this.check();
    this.#checkEnd(lease);
    await awake(async () => {
      const until = now() + RELEASE_MS;
      await this.#renewing;
      this.#lease = lease;
      while (!(await this.#renewNow())) {
        this.check();
        if (now() >= until) throw this.#trouble;
        await pause(releasePause(this.#failures));
      }
    });
  }

  #checkEnd(lease: number): void {
    const left = Math.floor(this.#end - now());
    if (lease > left) throw new TypeError(`lease must be at most what is left of maxHold, ${left} milliseconds: ${lease}`);
  }

  /**
   * Renews the lease once more, ends the hold here, and resolves with a ticket. That is text with which another process
   * goes on, by `locks.adopt(ticket)` of this library or of that for Python. Give it to one process alone. Rejects with
   * `ConnectionFailedError`, and the hold goes on here, unless each renewal was answered: a late one would cut the lease.
   */
  async detach(lease?: number): Promise<string> {
    if (lease !== undefined) checkLease(lease);
    this.check();
    const { ticket } = this.#keeper;
    if (ticket === undefined || this.#isOfLeader) {
      throw new TypeError("a hold of a leader or of independent servers cannot be detached");
    }
    if (lease !== undefined) this.#checkEnd(lease);
    this.#isDetaching = true;
    try {
      return await awake(async () => {
        await this.#renewing;
        if (lease !== undefined) this.#lease = lease;
        const { cuts } = this.#keeper;
        const isRenewed = await this.#renewNow();
        this.check();
        if (now() < this.#lateUntil || this.#keeper.cuts !== cuts) {
          throw new ConnectionFailedError(`a renewal of ${quoted(this.names)} went unanswered, and may still come late`);
        }
        if (!isRenewed) throw this.#trouble;
        this.#isDetached = true;
        this.#releasing = Promise.resolve(false);
        this.#life.stop();
        this.#told.ended(this, "detached");
        return ticket(this.token);
      });
    } finally {
      this.#isDetaching = false;
      if (!this.#isOver) this.#plan();
    }
  }

  /**
   * Gives the lock up. True if it was held until now; false if it was lost before, or no server could be asked.
   * Rejects with what a server refuses. What may pass goes on in the background until the lease is over.
   * Calling it again changes nothing. A program that does not await it is not told of a refusal.
   */
  release(): Promise<boolean> {
    if (this.#releasing === undefined) {
      this.#releasing = awake(() => this.#release());
      // A rejection that nobody handles would end the process.
      this.#releasing.catch(() => undefined);
    }
    return this.#releasing;
  }

  /** @internal Gives the lock up where nobody asks whether a server has refused that. */
  async letGo(): Promise<void> {
    await this.release().catch(() => undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.letGo();
  }

  /** @internal Gives the lock up because its locks are closed, and tells the holder. A body that works gives it up itself. */
  close(isWorkedUnder = false): Promise<void> {
    if (this.#releasing !== undefined) return this.letGo();
    this.#lose("close", "its locks were closed");
    if (isWorkedUnder) return Promise.resolve();
    this.#releasing = Promise.resolve(false);
    return this.#life.giveUp(0);
  }

  /** Made when somebody asks for it: most holds are over before that. */
  #controller(): AbortController {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      if (this.#loss !== undefined) this.#abort.abort(this.#loss);
    }
    return this.#abort;
  }

  async #release(): Promise<boolean> {
    const life = this.#life;
    this.#life.stop();
    // The timer may be late, where the program was busy until now.
    if (now() >= life.deadline) this.#expire();
    if (this.#loss !== undefined) {
      // The names that were not lost, and what the server still counts as held.
      this.#told.background(life.giveUp(0));
      return false;
    }
    const { cuts } = this.#keeper;
    const until = now() + RELEASE_MS;
    const settle = this.#keeper.loosen();
    let attempt = 0;
    let verdict = await life.tryRelease(attempt, cuts, until);
    while (verdict === "again" && !this.#keeper.isClosed && now() < Math.min(until, life.deadline)) {
      await pause(releasePause(attempt));
      verdict = await life.tryRelease(++attempt, cuts, until);
    }
    if (!isFinal(verdict)) this.#told.background(life.giveUp(attempt + 1));
    settle();
    if (verdict === "gone") this.#lose("release", "it had ended before its release");
    else this.#told.ended(this, "released");
    if (verdict instanceof LockError) throw verdict;
    return verdict === "held";
  }

  /** Sets the timer for what comes next. */
  #plan(): void {
    const { deadline } = this.#life;
    const isFree = this.#renewing === undefined && !this.#isDetaching;
    this.#life.plan(Math.min(deadline, isFree ? this.#renewAt : deadline, this.#listenAt), Hold.#due);
  }

  // Static, as what the servers call: neither may refer to the hold.
  static #due(hold: Hold): void {
    const time = now();
    if (time >= hold.#life.deadline) {
      hold.#expire();
      return;
    }
    if (time >= hold.#listenAt) {
      hold.#listenAt = Number.POSITIVE_INFINITY;
      hold.#life.stopListening = hold.#keeper.listen(hold.token, Hold.#push(hold.#life));
      if (!hold.#isKept) hold.#life.loosen(hold);
    }
    if (time >= hold.#renewAt && !hold.#isDetaching) void hold.#renewNow();
    hold.#plan();
  }

  static #push(life: Life): () => void {
    return () => {
      const { hold } = life;
      if (hold !== undefined) hold.#lose("push", "the server says that it has ended");
    };
  }

  /** Renews, unless that is underway. Resolves with whether it has succeeded. */
  #renewNow(): Promise<boolean> {
    this.#renewing ??= this.#renew().finally(() => {
      this.#renewing = undefined;
      if (!this.#isOver) this.#plan();
    });
    return this.#renewing;
  }

  async #renew(): Promise<boolean> {
    const sentAt = now();
    const wished = Math.max(this.#lease, Math.ceil(this.#life.parkedUntil - sentAt));
    // The last lease ends with the longest hold.
    const lease = Math.min(wished, Math.floor(this.#end - sentAt));
    this.#renewAt = Number.POSITIVE_INFINITY;
    if (lease < SHORTEST_LEASE_MS) {
      this.#trouble ??= new ConnectionFailedError("its longest hold (maxHold) is about to be over");
      return false;
    }
    // From now on the server may have this lease, though it is shorter.
    this.#life.deadline = Math.min(this.#life.deadline, deadlineOf(sentAt, lease));
    // A reply that is lost must leave time for another attempt.
    const until = sentAt + Math.max(lease / 6, RENEW_PAUSE_MS);
    const late = () => {
      const seconds = ((now() - sentAt) / 1000).toFixed(1);
      return new ConnectionFailedError(`no reply from ${this.#keeper.where} for ${seconds} s`);
    };
    try {
      const held = await within(this.#keeper.renew(lease, this.token, this.#failures), until, late);
      if (!held) this.#lose("renewal", "the server says that it has ended");
      if (this.#isOver) return false;
      if (this.#failures > 0) this.#told.renewedAgain(this, this.#failures);
      this.#failures = 0;
      this.#trouble = undefined;
      this.#life.deadline = deadlineOf(sentAt, lease);
      if (this.#terms.renew && !this.#isLast) this.#renewAt = renewalOf(sentAt, lease);
      return true;
    } catch (error) {
      if (!isReply(error) || this.names.length > 1) this.#lateUntil = now() + LATE_MS;
      const meaning = meaningOf(error);
      if (isOverwritten(meaning)) this.#lose("renewal", "another value was written over it", meaning);
      if (this.#isOver) return false;
      this.#failures++;
      const trouble = ownOf(error, this.#keeper.where);
      this.#trouble = trouble;
      this.#told.renewalFailed(this, trouble, this.#failures);
      this.#renewAt = Math.max(now() + RENEW_PAUSE_MS, Math.min(sentAt + lease / 12, now() + 1000));
      return false;
    }
  }

  /** Remembers and tells the loss, once. */
  #lose(reason: LossReason, why: string, cause?: unknown): void {
    if (this.#loss !== undefined || (this.#releasing !== undefined && reason !== "release")) return;
    const because = cause instanceof Error ? `: ${cause.message}` : "";
    this.#loss = new LockLostError(`lost ${quoted(this.names)}: ${why}${because}`, reason, cause);
    this.#life.stop();
    this.#abort?.abort(this.#loss);
    this.#told.lost(this, this.#loss, this.#isWatched);
  }
}
