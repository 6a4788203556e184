/** Leadership: of all who stand for one name, one leads at any time. */

import type { AcquireOptions, Lock } from "./base.js";
import { now, pauseBefore } from "./clock.js";
import { Cancelled, type LossReason } from "./errors.js";
import type { Hold } from "./hold.js";
import { scheduler } from "./scheduler.js";

export interface LeaderOptions extends Pick<AcquireOptions, "lease" | "owner"> {
  /**
   * This process leads from now on. `hold.token` is the leader's fencing token. If this throws, the lock is given up,
   * and it stands for election again after a pause.
   */
  readonly onElected: (hold: Hold) => void;
  /** It leads no more, against its will. It stands for election again. */
  readonly onDeposed?: ((reason: LossReason) => void) | undefined;
  /** What went wrong, as a server that is away or a callback that has thrown. It goes on trying. */
  readonly onError?: ((error: unknown) => void) | undefined;
}

export class Leader implements AsyncDisposable {
  #options: LeaderOptions;
  #lock: Lock;
  #stop = new AbortController();
  #hold: Hold | undefined;
  #running: Promise<void>;

  /** @internal */
  constructor(lock: Lock, options: LeaderOptions, resigned: () => void) {
    this.#lock = lock;
    this.#options = options;
    this.#running = this.#run().finally(resigned);
  }

  /** The hold, while this process leads. */
  get hold(): Hold | undefined {
    return this.#hold;
  }

  get isLeading(): boolean {
    return (this.#hold?.remaining ?? 0) > 0;
  }

  /** Gives up, for good. Resolves when somebody else can lead. */
  async resign(): Promise<void> {
    this.#stop.abort();
    await this.#hold?.letGo();
    await this.#running;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.resign();
  }

  async #run(): Promise<void> {
    const { lease, owner, onElected, onDeposed, onError } = this.#options;
    const { signal } = this.#stop;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const hold = await this.#lock.acquire({ lease, owner, signal });
        this.#hold = hold;
        hold.keep();
        if (signal.aborted) break;
        onElected(hold);
        failures = 0;
        await aborted(hold.signal, signal);
        const yielding = this.#yield();
        if (hold.loss !== undefined && !signal.aborted) onDeposed?.(hold.loss.reason);
        await yielding;
      } catch (error) {
        // A callback of the program may have failed: a leader without it would lock out the others.
        const yielding = this.#yield();
        const isOver = signal.aborted || error instanceof Cancelled;
        if (!isOver) onError?.(error);
        await yielding;
        if (isOver) break;
        await aborted(after(pauseBefore(failures++)), signal);
      }
    }
    await this.#yield();
  }

  /** Gives up the hold, if there is one. */
  async #yield(): Promise<void> {
    const hold = this.#hold;
    this.#hold = undefined;
    await hold?.letGo();
  }
}

/** Aborted after so many milliseconds. */
function after(ms: number): AbortSignal {
  const controller = new AbortController();
  scheduler.at(now() + ms, () => controller.abort());
  return controller.signal;
}

/** Resolves when one of them is aborted. */
function aborted(...signals: AbortSignal[]): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      for (const signal of signals) signal.removeEventListener("abort", done);
      resolve();
    };
    if (signals.some((signal) => signal.aborted)) {
      resolve();
      return;
    }
    for (const signal of signals) signal.addEventListener("abort", done);
  });
}
