/** The data of a hold, apart from the hold itself, so that a forgotten hold can be garbage-collected. */

import { deadlineOf, now } from "./clock.js";
import { isOne } from "./commands.js";
import { ConnectionFailedError, isOverwritten, LockError, type LockLostError, mayPass, meaningOf } from "./errors.js";
import type { Hold } from "./hold.js";
import { SHORTEST_LEASE_MS } from "./rules.js";
import { type Entry, pause, scheduler } from "./scheduler.js";
import { within } from "./stop.js";

/** The requests that a hold makes to the servers. All of them can be repeated. */
export interface Keeper {
  readonly names: readonly string[];
  readonly owner: string;
  /**
   * Renews the lease; false if the hold has ended. Rejects if the servers could not be asked, as in earlier attempts.
   */
  renew(lease: number, token: number, attempt: number): Promise<boolean>;
  /**
   * Releases the lock, which stays taken for `rest` more milliseconds if `rest` is not 0. Resolves with 1 or true, or
   * with something else if the hold had ended. Rejects if the servers could not be asked, as in earlier attempts.
   */
  release(token: number, attempt: number, rest: number): Promise<unknown>;
  /**
   * Makes repeated releases stop if the owner asks for the same names again. Returns a function to call if there is no
   * release.
   */
  loosen(): () => void;
  /** The number of times that a driver may have repeated a request of its own accord. */
  readonly cuts: number;
  /** The servers' addresses, for messages. */
  readonly where: string;
  /** True if no server can be asked because the user has closed the client. */
  readonly isClosed: boolean;
  /** Makes the ticket of `detach` for this token; undefined if no other process can adopt the hold. */
  readonly ticket: ((token: number) => string) | undefined;
  /** Calls `told` when the servers report that the hold has ended. Returns a function that stops it. */
  listen(token: number, told: () => void): () => void;
}

/** A grant: its token, and the time when the request that starts its lease was sent. */
export interface Grant {
  readonly token: number;
  readonly sentAt: number;
}

export interface Terms {
  /** The lease of the grant, and the lease of renewals. */
  readonly first: number;
  readonly lease: number;
  readonly renew: boolean;
  readonly minHold: number | undefined;
  readonly maxHold: number | undefined;
}

/** The events that a hold reports to its maker. */
export interface Told {
  /** `isWatched`: the program asks for the loss, or the hold notifies it. */
  lost(hold: Hold, error: LockLostError, isWatched: boolean): void;
  /** A renewal has failed; `failures` is the number of consecutive failures. */
  renewalFailed(hold: Hold, error: Error, failures: number): void;
  /** A renewal has succeeded after this number of failures. */
  renewedAgain(hold: Hold, failures: number): void;
  /** The holder has released it, or another process continues with it. */
  ended(hold: Hold, how: "released" | "detached"): void;
  /** The hold is unreachable, and was not released. */
  forgotten(life: Life): void;
  /** Tracks work that continues after its caller has left. */
  background(work: Promise<unknown>): void;
}

/** The time after which an unanswered release is repeated. */
const ANSWER_MS = 2000;
/** The shortest pause between two attempts to renew. */
export const RENEW_PAUSE_MS = 20;

/**
 * The part of a hold that the scheduler, the servers' pushes and the locks refer to. It later refers to the hold
 * weakly, so that a forgotten hold can be garbage-collected.
 */
export class Life {
  readonly token: number;
  #kept: Hold | undefined;
  #weak: WeakRef<Hold> | undefined;
  deadline: number;
  /** The time until which the lock stays taken, whatever happens to its holder. */
  readonly parkedUntil: number;
  entry: Entry | undefined;
  stopListening: (() => void) | undefined;

  constructor(
    hold: Hold,
    readonly keeper: Keeper,
    readonly told: Told,
    grant: Grant,
    { first, minHold = 0 }: Terms,
    began: number,
  ) {
    this.#kept = hold;
    this.token = grant.token;
    this.deadline = deadlineOf(grant.sentAt, first);
    this.parkedUntil = began + minHold;
  }

  /** The hold, unless it was garbage-collected. */
  get hold(): Hold | undefined {
    return this.#kept ?? this.#weak?.deref();
  }

  /** Refers to the hold weakly from now on. */
  loosen(hold: Hold): void {
    this.#kept = undefined;
    this.#weak = new WeakRef(hold);
    forgotten.register(hold, this, this);
  }

  /** Keeps the hold until its end, for code that is notified of its loss or works under it. */
  keep(hold: Hold): void {
    this.#kept = hold;
  }

  /** Stops all timers and subscriptions for it. */
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

  /** Asks the servers until one attempt is final, or until the lease has expired. */
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
  tryRelease(attempt: number, cuts: number, until = Number.POSITIVE_INFINITY, sentAt = now()): Promise<Verdict> {
    const late = () => new ConnectionFailedError(`no reply from ${this.keeper.where} to a release`);
    const left = Math.ceil(this.parkedUntil - sentAt);
    const rest = left > 0 ? Math.max(left, SHORTEST_LEASE_MS) : 0;
    const asking = this.keeper.release(this.token, attempt, rest);
    return within(asking, Math.min(sentAt + ANSWER_MS, until), late).then(
      // If the first reply was lost, a repeated release finds no hold.
      (reply) => (isOne(reply) || attempt > 0 || this.keeper.cuts !== cuts ? "held" : "gone"),
      (error: unknown) => {
        const meaning = meaningOf(error);
        if (isOverwritten(meaning)) return "gone";
        return meaning instanceof ConnectionFailedError ? "again" : meaning;
      },
    );
  }
}

/** Ends the renewals of a forgotten hold. Nothing can release it, so it would lock out everyone else. */
const forgotten = new FinalizationRegistry<Life>((life) => {
  life.stop();
  life.told.forgotten(life);
});

/** The outcome of a release: an answer, a server's refusal, or neither. */
export type Verdict = "held" | "gone" | "again" | LockError;

/** Returns true if another attempt would have the same outcome. */
export const isFinal = (verdict: Verdict): boolean =>
  verdict instanceof LockError ? !mayPass(verdict) : verdict !== "again";

/** The pause after this attempt. */
export const releasePause = (attempt: number): number => RENEW_PAUSE_MS * 2 ** Math.min(attempt, 5);
