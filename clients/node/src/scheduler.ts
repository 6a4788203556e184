/** One timer for all deadlines of the process: a binary heap, and the next entry's time. */

import { now } from "./clock.js";

/** Something that is to happen at a time; cancel() is safe at any moment. */
export interface Entry {
  at: number;
  run: () => void;
  /** Where it stands in the heap; -1: nowhere. */
  place: number;
}

/** The longest that the timer is set for: it stands still while the machine sleeps. */
const NAP_MS = 1000;

export class Scheduler {
  #heap: Entry[] = [];
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  /** Calls `run` at that time of the monotonic clock. The process does not stay alive for it: see `awake`. */
  at(at: number, run: () => void): Entry {
    const entry: Entry = { at, run, place: this.#heap.length };
    this.#heap.push(entry);
    this.#up(entry);
    // A timer that is due too early only looks again: so a new one is needed for earlier entries alone.
    if (at < this.#timerAt) this.#arm();
    return entry;
  }

  /** Forgets it, if it has not run. */
  cancel(entry: Entry | undefined): void {
    if (entry === undefined || entry.place < 0) return;
    const { place } = entry;
    const last = this.#heap.pop();
    if (last !== undefined && last !== entry) {
      this.#heap[place] = last;
      last.place = place;
      this.#down(last);
      this.#up(last);
    }
    // The timer stays as it is: one that finds nothing due costs less than a new one for each lock.
    entry.place = -1;
  }

  /** When the next one is due. */
  get nextDue(): number {
    return this.#heap[0]?.at ?? Number.POSITIVE_INFINITY;
  }

  /** Looks at the clock again, which a test has moved. */
  look(): void {
    this.#fire();
  }

  /** How many are to come. */
  get size(): number {
    return this.#heap.length;
  }

  #arm(): void {
    const first = this.#heap[0];
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#timerAt = Number.POSITIVE_INFINITY;
    if (first === undefined) return;
    const time = now();
    this.#timerAt = Math.min(first.at, time + NAP_MS);
    this.#timer = setTimeout(() => this.#fire(), Math.max(Math.ceil(this.#timerAt - time), 0));
    this.#timer.unref();
  }

  #fire(): void {
    this.#timerAt = Number.POSITIVE_INFINITY;
    const time = now();
    // What is added while this runs is looked at by the next timer, so that the loop ends.
    const due: Entry[] = [];
    for (let first = this.#heap[0]; first !== undefined && first.at <= time; first = this.#heap[0]) {
      this.cancel(first);
      due.push(first);
    }
    this.#arm();
    for (const entry of due) entry.run();
  }

  #up(entry: Entry): void {
    while (entry.place > 0) {
      const parent = this.#heap[(entry.place - 1) >> 1];
      if (parent === undefined || parent.at <= entry.at) return;
      this.#swap(parent, entry);
    }
  }

  #down(entry: Entry): void {
    for (;;) {
      const left = this.#heap[2 * entry.place + 1];
      const right = this.#heap[2 * entry.place + 2];
      const least = right !== undefined && left !== undefined && right.at < left.at ? right : left;
      if (least === undefined || least.at >= entry.at) return;
      this.#swap(entry, least);
    }
  }

  /** Lets `child`, which stands below `parent`, change places with it. */
  #swap(parent: Entry, child: Entry): void {
    const { place } = parent;
    this.#heap[child.place] = parent;
    this.#heap[place] = child;
    parent.place = child.place;
    child.place = place;
  }
}

/** The process's. */
export const scheduler = new Scheduler();

/** How many promises a caller awaits, and what keeps the process alive for them. */
let awaited = 0;
let vigil: NodeJS.Timeout | undefined;
const VIGIL_MS = 2 ** 30;

/** The work's outcome. Keeps the process alive until then, because a caller awaits it. */
export async function awake<T>(work: () => Promise<T>): Promise<T> {
  if (awaited++ === 0) vigil = setInterval(() => undefined, VIGIL_MS);
  try {
    return await work();
  } finally {
    if (--awaited === 0) clearInterval(vigil);
  }
}

/** Resolves after `ms` milliseconds. */
export const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    scheduler.at(now() + ms, resolve);
  });

/**
 * The promise's outcome, or `late()` thrown when the time is over. What the promise becomes later is for its
 * maker to look at.
 */
export function within<T>(promise: Promise<T>, at: number, late: () => Error): Promise<T> {
  if (at === Number.POSITIVE_INFINITY) return promise;
  return new Promise<T>((resolve, reject) => {
    const entry = scheduler.at(at, () => reject(late()));
    const done = () => scheduler.cancel(entry);
    promise.then(
      (value) => {
        done();
        resolve(value);
      },
      (error: unknown) => {
        done();
        reject(error);
      },
    );
  });
}
