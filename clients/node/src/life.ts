/** What is known of a hold besides itself: so one that its user has forgotten can be collected. */

import { deadlineOf, now } from "./clock.js";
import { ConnectionFailedError, isOverwritten, LockError, type LockLostError, mayPass, meaningOf } from "./errors.js";
import type { Hold } from "./hold.js";
import { SHORTEST_LEASE_MS } from "./rules.js";
import { type Entry, pause, scheduler } from "./scheduler.js";
import { within } from "./stop.js";

/** What a hold asks of the servers. All of it can be repeated. */
export interface Keeper {
  readonly names: readonly string[];
  readonly owner: string;
  /** Renews; false if the hold is over. Rejects if the servers could not be asked, as in earlier attempts. */
  renew(lease: number, token: number, attempt: number): Promise<boolean>;
  /**
   * Gives up; the lock stays taken for `rest` milliseconds more, if there are any. False if the hold was over. Rejects if
   * the servers could not be asked, as in earlier attempts.
   */
  release(token: number, attempt: number, rest: number): Promise<boolean>;
  /** Makes repeated releases heed that the owner asks for the same anew; returns how to say that no release comes. */
  loosen(): () => void;
  /** How often a driver may have repeated a request unasked. */
  readonly cuts: number;
  /** Which servers are asked, for messages. */
  readonly where: string;
  /** Whether no server can be asked any more, because the user has closed the client. */
  readonly isClosed: boolean;
  /** The ticket of `detach` for this token; undefined where no other process can go on. */
  readonly ticket: ((token: number) => string) | undefined;
  /** Lets `told` be called when the servers say that the hold is over; returns how to stop. */
  listen(token: number, told: () => void): () => void;
}

/** A grant: its token, and when the request that its lease is counted from was sent. */
export interface Grant {
  readonly token: number;
  readonly sentAt: number;
}

export interface Terms {
  /** The lease of the grant, and that of renewals. */
  readonly first: number;
  readonly lease: number;
  readonly renew: boolean;
  readonly minHold: number | undefined;
  readonly maxHold: number | undefined;
}

/** What a hold tells its maker. */
export interface Told {
  /** `isWatched`: the program asks for the loss, or is told of it by the hold. */
  lost(hold: Hold, error: LockLostError, isWatched: boolean): void;
  /** A renewal has failed; `failures`: how many have in a row. */
  renewalFailed(hold: Hold, error: Error, failures: number): void;
  /** A renewal has succeeded after that many failed ones. */
  renewedAgain(hold: Hold, failures: number): void;
  /** The holder has given it up, or another process continues with it. */
  ended(hold: Hold, how: "released" | "detached"): void;
  /** Nothing refers to the hold any more, and it was not given up. */
  forgotten(life: Life): void;
  /** Work that goes on after its caller has left. */
  background(work: Promise<unknown>): void;
}

/** How long one release may stay unanswered until it is repeated. */
const ANSWER_MS = 2000;
/** The shortest pause between two attempts to renew. */
export const RENEW_PAUSE_MS = 20;

/**
 * What the scheduler, the servers' pushes and the locks know of a hold. They refer to the hold through this alone: so
 * one that its user has forgotten can be collected, once this refers to it weakly.
 */
export class Life {
  readonly token: number;
  #kept: Hold | undefined;
  #weak: WeakRef<Hold> | undefined;
  deadline: number;
  /** Until when the lock stays taken, whatever happens to its holder. */
  readonly parkedUntil: number;
  entry: Entry | undefined;
  stopListening: (() => void) | undefined;

  constructor(
    hold: Hold,
    readonly keeper: Keeper,
    readonly told: Told,
    grant: Grant,
    { first, minHold = 0 }: Terms,
  ) {
    this.#kept = hold;
    this.token = grant.token;
    this.deadline = deadlineOf(grant.sentAt, first);
    this.parkedUntil = now() + minHold;
  }

  /** The hold, unless it was forgotten. */
  get hold(): Hold | undefined {
    return this.#kept ?? this.#weak?.deref();
  }

  /** Lets the hold last only as long as something else refers to it. */
  loosen(hold: Hold): void {
    this.#kept = undefined;
    this.#weak = new WeakRef(hold);
    forgotten.register(hold, this, this);
  }

  /** Keeps the hold until its end: somebody is told of its loss, or works under it. */
  keep(hold: Hold): void {
    this.#kept = hold;
  }

  /** Ends all that is done for it. */
  stop(): void {
    if (this.#weak !== undefined) forgotten.unregister(this);
    scheduler.cancel(this.entry);
    this.stopListening?.();
    this.stopListening = undefined;
  }

  /** Sets the timer for what comes next. */
  plan(at: number, due: (hold: Hold) => void): void {
    scheduler.cancel(this.entry);
    this.entry = scheduler.at(at, () => {
      const { hold } = this;
      if (hold !== undefined) due(hold);
    });
  }

  /** Asks the servers until one attempt is final, or until the lease is over anyway. */
  async giveUp(attempts: number): Promise<void> {
    const { cuts } = this.keeper;
    const settle = this.keeper.loosen();
    for (let attempt = attempts; !isFinal(await this.tryRelease(attempt, cuts)) && now() < this.deadline; attempt++) {
      if (this.keeper.isClosed) break;
      await pause(releasePause(attempt));
    }
    settle();
  }

  /** Asks the servers once. */
  async tryRelease(attempt: number, cuts: number, until = Number.POSITIVE_INFINITY): Promise<Verdict> {
    const late = () => new ConnectionFailedError(`no reply from ${this.keeper.where} to a release`);
    const left = Math.ceil(this.parkedUntil - now());
    const rest = left > 0 ? Math.max(left, SHORTEST_LEASE_MS) : 0;
    try {
      const held = await within(this.keeper.release(this.token, attempt, rest), Math.min(now() + ANSWER_MS, until), late);
      // A repeated release finds nothing if the first one's reply was lost.
      return held || attempt > 0 || this.keeper.cuts !== cuts ? "held" : "gone";
    } catch (error) {
      const meaning = meaningOf(error);
      if (isOverwritten(meaning)) return "gone";
      return meaning instanceof ConnectionFailedError ? "again" : meaning;
    }
  }
}

/** Ends the renewal of what was forgotten: nobody can give it up any more, and it would lock out all others. */
const forgotten = new FinalizationRegistry<Life>((life) => {
  life.stop();
  life.told.forgotten(life);
});

/** What came of a release: an answer, what the server refused, or neither. */
export type Verdict = "held" | "gone" | "again" | LockError;

/** Whether another attempt would end as this one. */
export const isFinal = (verdict: Verdict): boolean =>
  verdict instanceof LockError ? !mayPass(verdict) : verdict !== "again";

/** The pause after this attempt. */
export const releasePause = (attempt: number): number => RENEW_PAUSE_MS * 2 ** Math.min(attempt, 5);
