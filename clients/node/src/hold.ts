/** A lock that is held: its deadline, its renewals, and its loss, which is reported once. */

import { allowance, deadlineOf, now, renewalOf } from "./clock.js";
import {
  ConnectionFailedError,
  isOverwritten,
  LockError,
  LockLostError,
  type LossReason,
  mayPass,
  meaningOf,
  ofLease,
  ownOf,
} from "./errors.js";
import { isReply, quoted } from "./journal.js";
import { type Grant, isFinal, type Keeper, Life, releasePause, RENEW_PAUSE_MS, type Terms, type Told, type Verdict } from "./life.js";
import { checkLease, SHORTEST_LEASE_MS } from "./rules.js";
import { awake, mayEnd, pause, stayAlive } from "./scheduler.js";
import { onAbort } from "./signals.js";
import { within } from "./stop.js";

/** A hold that lasts longer than this subscribes to the server's pushes; most end earlier. */
const LISTEN_AFTER_MS = 50;
/** The time for which release() waits for the servers. It then continues in the background until the lease expires. */
const RELEASE_MS = 5000;
/** The time for which an unanswered renewal may still reach the server. */
const LATE_MS = 30_000;

/** @internal Returns the data that the locks keep of a hold. */
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
  #listenAt: number;
  /** True if the hold must not be garbage-collected before it ends. */
  #isKept: boolean;
  #renewing: Promise<boolean | LockError> | undefined;
  /** The lease that renewals ask for. */
  #lease: number;
  /** The number of consecutive failed renewals, and the last error. */
  #failures = 0;
  #trouble: unknown;
  /** The end of the longest hold (`maxHold`). */
  readonly #end: number;
  /** True if the program is notified of a loss, or asks for it. */
  #isWatched = false;
  #abort: AbortController | undefined;
  #loss: LockLostError | undefined;
  #releasing: Promise<boolean | LockError> | undefined;
  /** The time until which an unanswered renewal may still take effect. */
  #lateUntil = 0;
  #isDetached = false;
  /** True while renewals wait for the outcome of `detach`. */
  #isDetaching = false;
  #isOfLeader = false;

  // Private, so that the driver's client is never printed or serialized with a hold.
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
    const time = now();
    this.#life = new Life(this, keeper, told, grant, terms, time);
    this.#listenAt = time + LISTEN_AFTER_MS;
    // A hold without renewals ends soon. Any other can be forgotten once it has lasted for a moment.
    this.#isKept = !terms.renew;
    this.#renewAt = terms.renew ? renewalOf(grant.sentAt, terms.first) : Number.POSITIVE_INFINITY;
    this.#plan();
  }

  /** The first, or only, name. */
  get name(): string {
    return this.names[0] ?? "";
  }

  /** The time in milliseconds for which it is certainly held, unless it is renewed; 0 once it is lost or released. */
  get remaining(): number {
    return this.#isOver ? 0 : Math.max(this.#life.deadline - now(), 0);
  }

  /** True if it is lost or was released. */
  get #isOver(): boolean {
    return this.#loss !== undefined || this.#releasing !== undefined;
  }

  /** Aborted when the lock is lost; the reason is the `LockLostError`. Not aborted by a release. */
  get signal(): AbortSignal {
    this.keep();
    this.#notice();
    return this.#controller().signal;
  }

  /** @internal Keeps the hold alive for its leader, which does not expose it. */
  lead(): void {
    this.#isOfLeader = true;
    this.keep();
  }

  /** @internal Keeps the hold from being garbage-collected until it ends. */
  keep(): void {
    this.#isKept = this.#isWatched = true;
    this.#life.keep(this);
  }

  /** @internal Lets another signal abort this one, too. Returns a function that stops that. */
  follow(signal: AbortSignal): () => void {
    const own = this.#controller();
    const abort = () => own.abort(signal.reason);
    if (signal.aborted) abort();
    return onAbort(signal, abort);
  }

  /** The error that says why it was lost; undefined while it is not. */
  get loss(): LockLostError | undefined {
    this.#isWatched = true;
    this.#notice();
    return this.#loss;
  }

  /** Throws `LockLostError` if the lock is not held, including after a release. Contacts no server. */
  check(): void {
    this.#isWatched = true;
    this.#notice();
    if (this.#loss !== undefined) throw this.#loss;
    if (this.#isDetached) throw new LockLostError(`the hold of ${quoted(this.names)} was detached`, "detached");
    if (this.#isOver) throw new LockLostError(`the hold of ${quoted(this.names)} was given up`, "release");
  }

  /** True if the deadline is the end of the longest hold. */
  get #isLast(): boolean {
    return this.#life.deadline >= this.#end - allowance(Math.max(this.#terms.first, this.#lease));
  }

  /** Notices that the lease has expired. The timer may be late if the program is busy. */
  #notice(): void {
    if (!this.#isOver && now() >= this.#life.deadline) this.#expire();
  }

  #expire(): void {
    if (this.#isLast) this.#lose("max_hold", "its longest hold (maxHold) is over");
    else this.#lose("deadline", "its lease ended before it could be renewed", this.#trouble);
  }

  /**
   * Starts a lease of this many milliseconds now; later renewals ask for it, too. Rejects with `LockLostError` if the
   * hold has ended. Rejects with `ServerRefusedError` if a server refuses the lease: the hold keeps its own. Rejects
   * with `ConnectionFailedError` if no server answers within 5 s: the hold then relies on the shorter of both leases.
   */
  async extend(lease: number): Promise<void> {
    checkLease(lease);
    this.check();
    this.#checkEnd(lease);
    await awake(async () => {
      const until = now() + RELEASE_MS;
      while (!(await this.#renewFor(lease))) {
        this.check();
        if (now() >= until) throw this.#trouble;
        await pause(releasePause(this.#failures));
      }
    });
  }

  /**
   * Renews with this lease, for which later renewals ask once a server has granted it. Until then they ask for the
   * shorter one: a request that went unanswered may still come. Throws what a server refuses for good.
   */
  async #renewFor(lease: number): Promise<boolean> {
    // A renewal in flight may be for another lease.
    while (this.#renewing !== undefined) await this.#renewing;
    if (this.#isOver) return false;
    this.#lease = Math.min(this.#lease, lease);
    const outcome = await this.#renewNow(lease);
    if (outcome instanceof LockError) throw outcome;
    return outcome;
  }

  #checkEnd(lease: number): void {
    const left = Math.floor(this.#end - now());
    if (lease > left) throw new TypeError(`lease must be at most what is left of maxHold, ${left} milliseconds: ${lease}`);
  }

  /**
   * Renews the lease once more, ends the hold here, and resolves with a ticket. The ticket is text. Another process
   * adopts the hold with it, by `locks.adopt(ticket)` of this library or of the one for Python. Give it to one process
   * only. Rejects with `ConnectionFailedError`, and keeps the hold, unless each renewal was answered: a late one would
   * shorten the lease.
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
        const { cuts } = this.#keeper;
        const isRenewed = await this.#renewFor(lease ?? this.#lease);
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
   * Releases the lock. True if it was held until now; false if it was lost before, or no server could be asked. Rejects
   * if a server refuses. If a failure may be temporary, the release is retried in the background until the lease
   * expires. Further calls do nothing. A program that does not await it learns of no refusal.
   */
  release(): Promise<boolean> {
    this.#releasing ??= this.#release();
    const outcome = this.#releasing.then((verdict) => {
      if (verdict instanceof LockError) throw verdict;
      return verdict;
    });
    // An unhandled rejection would end the process.
    outcome.catch(() => undefined);
    return outcome;
  }

  /** @internal Releases the lock when no caller waits for the server's answer. */
  letGo(): Promise<unknown> {
    this.#releasing ??= this.#release();
    return this.#releasing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.letGo();
  }

  /**
   * @internal Releases the lock because its locks are closed, and notifies the holder. A running body releases it
   * itself.
   */
  close(isWorkedUnder = false): Promise<unknown> {
    if (this.#releasing !== undefined) return this.letGo();
    this.#lose("close", "its locks were closed");
    if (isWorkedUnder) return Promise.resolve();
    this.#releasing = Promise.resolve(false);
    return this.#life.giveUp(0);
  }

  /** Created on first use: most holds end without it. */
  #controller(): AbortController {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      if (this.#loss !== undefined) this.#abort.abort(this.#loss);
    }
    return this.#abort;
  }

  /** Releases the lock, once. Never rejects: a server's refusal is returned. */
  #release(): Promise<boolean | LockError> {
    const life = this.#life;
    life.stop();
    // The timer may be late if the program was busy until now.
    const time = now();
    if (time >= life.deadline) this.#expire();
    if (this.#loss !== undefined) {
      // Releases the names that were not lost, and those that the server still counts as held.
      this.#told.background(life.giveUp(0));
      return Promise.resolve(false);
    }
    const { cuts } = this.#keeper;
    const until = time + RELEASE_MS;
    const settle = this.#keeper.loosen();
    stayAlive();
    const end = (verdict: Verdict, attempts: number) => {
      mayEnd();
      if (!isFinal(verdict)) this.#told.background(life.giveUp(attempts));
      settle();
      if (verdict === "gone") this.#lose("release", "it had ended before its release");
      else this.#told.ended(this, "released");
      return verdict instanceof LockError ? verdict : verdict === "held";
    };
    const again = async () => {
      let verdict: Verdict = "again";
      let attempt = 0;
      while (verdict === "again" && !this.#keeper.isClosed && now() < Math.min(until, life.deadline)) {
        await pause(releasePause(attempt));
        verdict = await life.tryRelease(++attempt, cuts, until);
      }
      return end(verdict, attempt + 1);
    };
    // Each release passes here, so this is no async function: that would create a promise more.
    return life.tryRelease(0, cuts, until, time).then((verdict) => (verdict === "again" ? again() : end(verdict, 1)));
  }

  /** Sets the timer for what comes next. */
  #plan(): void {
    const { deadline } = this.#life;
    const isFree = this.#renewing === undefined && !this.#isDetaching;
    this.#life.plan(Math.min(deadline, isFree ? this.#renewAt : deadline, this.#listenAt), Hold.#due);
  }

  // Static, like the functions that the servers call: neither may refer to the hold.
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

  /** Renews, unless a renewal is in flight. Resolves with true if it has succeeded, or with a refusal that is final. */
  #renewNow(asked = this.#lease): Promise<boolean | LockError> {
    this.#renewing ??= this.#renew(asked).finally(() => {
      this.#renewing = undefined;
      if (!this.#isOver) this.#plan();
    });
    return this.#renewing;
  }

  async #renew(asked: number): Promise<boolean | LockError> {
    const sentAt = now();
    const wished = Math.max(asked, Math.ceil(this.#life.parkedUntil - sentAt));
    // The last lease ends with the longest hold.
    const lease = Math.min(wished, Math.floor(this.#end - sentAt));
    this.#renewAt = Number.POSITIVE_INFINITY;
    if (lease < SHORTEST_LEASE_MS) {
      this.#trouble ??= new ConnectionFailedError("its longest hold (maxHold) is about to be over");
      return false;
    }
    // From now on the server may have this lease, even a shorter one.
    this.#life.deadline = Math.min(this.#life.deadline, deadlineOf(sentAt, lease));
    // If the reply is lost, time must remain for another attempt.
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
      this.#lease = asked;
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
      if (this.#terms.renew) this.#renewAt = Math.max(now() + RENEW_PAUSE_MS, Math.min(sentAt + this.#lease / 12, now() + 1000));
      return meaning === "again" || mayPass(meaning) ? false : ofLease(meaning, lease);
    }
  }

  /** Records and reports the loss, once. */
  #lose(reason: LossReason, why: string, cause?: unknown): void {
    if (this.#loss !== undefined || (this.#releasing !== undefined && reason !== "release")) return;
    const because = cause instanceof Error ? `: ${cause.message}` : "";
    this.#loss = new LockLostError(`lost ${quoted(this.names)}: ${why}${because}`, reason, cause);
    this.#life.stop();
    this.#abort?.abort(this.#loss);
    this.#told.lost(this, this.#loss, this.#isWatched);
  }
}
