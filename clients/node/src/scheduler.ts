/** One timer for all deadlines of the process. */

import { now } from "./clock.js";

/** A callback that is due at a time. cancel() is safe at any moment. */
export interface Entry {
  readonly at: number;
  readonly run: () => void;
}

/** The longest time that the timer is set for: it stops while the machine sleeps. */
const NAP_MS = 1000;

export class Scheduler {
  /** The entries to come, ordered by time. */
  readonly #entries: Entry[] = [];
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  /** Calls `run` at that time of the monotonic clock. The process does not stay alive for it: see `awake`. */
  at(at: number, run: () => void): Entry {
    const entry: Entry = { at, run };
    this.#entries.splice(this.#countUntil(at), 0, entry);
    // A timer that fires too early only looks again, so only earlier entries need a new one.
    if (at < this.#timerAt) this.#arm();
    return entry;
  }

  /** Cancels it, if it has not run. */
  cancel(entry: Entry | undefined): void {
    if (entry === undefined) return;
    // The timer stays as it is: one that finds nothing due costs less than a new one for each lock.
    let place = this.#countUntil(entry.at) - 1;
    while (this.#entries[place] !== entry && this.#entries[place]?.at === entry.at) place--;
    if (this.#entries[place] === entry) this.#entries.splice(place, 1);
  }

  /** The time of the next entry. */
  get nextDue(): number {
    return this.#entries[0]?.at ?? Number.POSITIVE_INFINITY;
  }

  /** Reads the clock again, after a test has moved it. */
  look(): void {
    this.#fire();
  }

  /** The number of entries to come. */
  get size(): number {
    return this.#entries.length;
  }

  #arm(): void {
    clearTimeout(this.#timer);
    this.#timerAt = Number.POSITIVE_INFINITY;
    if (this.size === 0) return;
    const time = now();
    this.#timerAt = Math.min(this.nextDue, time + NAP_MS);
    this.#timer = setTimeout(() => this.#fire(), Math.max(Math.ceil(this.#timerAt - time), 0));
    this.#timer.unref();
  }

  #fire(): void {
    // Entries that are added while these run are left to the next timer, so that the loop ends.
    const due = this.#entries.splice(0, this.#countUntil(now()));
    this.#arm();
    for (const { run } of due) run();
  }

  /** The number of entries that are due by then. */
  #countUntil(time: number): number {
    let [least, most] = [0, this.#entries.length];
    while (least < most) {
      const middle = (least + most) >> 1;
      if ((this.#entries[middle]?.at ?? 0) <= time) least = middle + 1;
      else most = middle;
    }
    return least;
  }
}

/** The scheduler of the process. */
export const scheduler = new Scheduler();

/** The number of promises that callers await, and the timer that keeps the process alive for them. It is made once. */
let awaited = 0;
let vigil: NodeJS.Timeout | undefined;
const VIGIL_MS = 2 ** 30;

/** Keeps the process alive, because a caller awaits something, until `mayEnd` has been called as often. */
export function stayAlive(): void {
  if (awaited++ === 0) vigil = vigil?.ref() ?? setInterval(() => undefined, VIGIL_MS);
}

export function mayEnd(): void {
  if (--awaited === 0) vigil?.unref();
}

/** Returns the work's outcome. Keeps the process alive until then, because a caller awaits it. */
export async function awake<T>(work: () => Promise<T>): Promise<T> {
  stayAlive();
  try {
    return await work();
  } finally {
    mayEnd();
  }
}

/** Resolves after `ms` milliseconds. */
export const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    scheduler.at(now() + ms, resolve);
  });
