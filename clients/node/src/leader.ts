/** Leadership: of all candidates for one name, one leads at any time. */

import { inspect } from "node:util";

import type { AcquireOptions, Lock } from "./base.js";
import { now, pauseBefore } from "./clock.js";
import { ConnectionFailedError, isAbort, LocksClosedError, type LossReason } from "./errors.js";
import type { Hold } from "./hold.js";
import { checkCallback, checkLease, checkOptions, checkOwner } from "./rules.js";
import { awake, scheduler } from "./scheduler.js";
import { onAbort } from "./signals.js";

export interface LeaderOptions extends Pick<AcquireOptions, "lease" | "owner"> {
  /**
   * Called when this process becomes the leader. `hold.token` is the leader's fencing token. If this throws, or its
   * promise is rejected, the lock is released, and the process stands for election again after a pause. It stays the
   * leader when the promise is fulfilled.
   */
  readonly onElected: (hold: Hold) => unknown;
  /**
   * Called when this process has lost the leadership. It stands for election again, and does not wait for a promise.
   */
  readonly onDeposed?: ((reason: LossReason) => unknown) | undefined;
  /**
   * Called with errors: a callback that failed, or one call for an outage that outlasts the `serverTimeout` of the
   * locks. The leader keeps trying.
   */
  readonly onError?: ((error: unknown) => unknown) | undefined;
}

const OPTIONS = ["onElected", "onDeposed", "onError", "lease", "owner"];

/** Refuses options with which it could never lead: it would acquire and release the lock in an endless loop. */
export function checkLeader(options: LeaderOptions): void {
  checkOptions(options, OPTIONS);
  const { onElected, onDeposed, onError, lease, owner } = options;
  checkCallback("onElected", onElected, false);
  checkCallback("onDeposed", onDeposed, true);
  checkCallback("onError", onError, true);
  if (lease !== undefined) checkLease(lease);
  if (owner !== undefined) checkOwner(owner);
}

export class Leader implements AsyncDisposable {
  #options: LeaderOptions;
  #lock: Lock;
  #stop = new AbortController();
  #hold: Hold | undefined;
  #running: Promise<void>;
  /** True once the outage was reported. */
  #isCutOff = false;

  /** @internal */
  constructor(lock: Lock, options: LeaderOptions, resigned: () => void) {
    this.#lock = lock;
    this.#options = options;
    this.#running = this.#run().finally(resigned);
  }

  /** The hold, while this process leads. */
  get hold(): Hold | undefined {
    return this.isLeading ? this.#hold : undefined;
  }

  get isLeading(): boolean {
    return (this.#hold?.remaining ?? 0) > 0;
  }

  /** Resigns for good. Resolves when another candidate can lead. */
  async resign(): Promise<void> {
    this.#stop.abort();
    await awake(async () => {
      await this.#hold?.letGo();
      await this.#running;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.resign();
  }

  async #run(): Promise<void> {
    const { lease, owner, onDeposed } = this.#options;
    const { signal } = this.#stop;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const hold = await this.#lock.stand({ lease, owner, signal }, (error) => this.#tell(error));
        this.#hold = hold;
        this.#isCutOff = false;
        hold.lead();
        if (signal.aborted) break;
        await this.#lead(hold);
        failures = 0;
        const yielding = this.#yield();
        if (hold.loss !== undefined && !signal.aborted) this.#watch(onDeposed?.(hold.loss.reason));
        await yielding;
      } catch (error) {
        // Without a hold, the request was cancelled. With one, it is a callback's own error.
        const isOver = signal.aborted || (this.#hold === undefined && error instanceof LocksClosedError);
        // A callback of the program may have failed. A leader that keeps the lock without it would shut out the others.
        const yielding = this.#yield();
        const isKnown = this.#isCutOff && error instanceof ConnectionFailedError;
        this.#isCutOff = error instanceof ConnectionFailedError;
        if (!isOver && !isKnown) this.#tell(error);
        await yielding;
        if (isOver) break;
        await aborted(after(pauseBefore(failures++)), signal);
      }
    }
    await this.#yield();
  }

  /** Leads until the hold is lost or the leader resigns. Throws if the program's work fails. */
  async #lead(hold: Hold): Promise<void> {
    const failed = new AbortController();
    const work = (async () => this.#options.onElected(hold))();
    work.catch((error: unknown) => {
      if (hold.loss === undefined) failed.abort(error);
      else if (error !== hold.loss && !isAbort(error)) this.#tell(error);
    });
    await aborted(hold.signal, this.#stop.signal, failed.signal);
    if (failed.signal.aborted) throw failed.signal.reason;
  }

  /** The callback's promise is not awaited, but its error is reported. */
  #watch(promise: unknown): void {
    Promise.resolve(promise).catch((error: unknown) => this.#tell(error));
  }

  #tell(error: unknown): void {
    if (this.#stop.signal.aborted) return;
    // It stands for election again, even if that fails.
    const warn = (failure: unknown) => {
      process.emitWarning(`onError of a leader has failed: ${inspect(failure)}`, "RedislockWarning");
    };
    try {
      Promise.resolve(this.#options.onError?.(error)).catch(warn);
    } catch (failure) {
      warn(failure);
    }
  }

  /** Releases the hold, if there is one. */
  async #yield(): Promise<void> {
    const hold = this.#hold;
    this.#hold = undefined;
    await hold?.letGo();
  }
}

/** Returns a signal that is aborted after `ms` milliseconds. */
function after(ms: number): AbortSignal {
  const controller = new AbortController();
  scheduler.at(now() + ms, () => controller.abort());
  return controller.signal;
}

/** Resolves when one of them is aborted. */
function aborted(...signals: AbortSignal[]): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      for (const stop of stops) stop();
      resolve();
    };
    const stops = signals.map((signal) => onAbort(signal, done));
    if (signals.some((signal) => signal.aborted)) done();
  });
}
