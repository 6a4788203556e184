/** One timer for all deadlines of the process: a binary heap, and the next entry's time. */

import { now } from "./clock.js";

/** Something that is to happen at a time; cancel() is safe at any moment. */
export interface Entry {
  at: number;
  run: () => void;
  /** Whether the process stays alive for it. */
  keepsAlive: boolean;
  /** Where it stands in the heap; -1: nowhere. */
  place: number;
}

/** The longest that the timer is set for: it stands still while the machine sleeps. */
const NAP_MS = 1000;

export class Scheduler {
  #heap: Entry[] = [];
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;
  #keepers = 0;

  /** Calls `run` at that time of the monotonic clock. */
  at(at: number, run: () => void, keepsAlive = false): Entry {
    const entry: Entry = { at, run, keepsAlive, place: this.#heap.length };
    this.#heap.push(entry);
    this.#up(entry);
    if (keepsAlive && this.#keepers++ === 0) this.#timer?.ref();
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
    this.#forget(entry);
  }

  /** How many are to come. */
  get size(): number {
    return this.#heap.length;
  }

  #forget(entry: Entry): void {
    entry.place = -1;
    // The timer stays as it is: one that finds nothing due costs less than a new one for each lock.
    if (entry.keepsAlive && --this.#keepers === 0) this.#timer?.unref();
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
    if (this.#keepers === 0) this.#timer.unref();
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

/** Resolves after `ms` milliseconds; the process stays alive until then. */
export const sleep = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    scheduler.at(now() + ms, resolve, true);
  });

/** Resolves after `ms` milliseconds, unless the process ends before: it does not stay alive for that. */
export const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    scheduler.at(now() + ms, resolve);
  });

/**
 * The promise's outcome, or `late()` thrown when the time is over. What the promise becomes later is for its
 * maker to look at. The process does not stay alive for the time, only for what the promise waits for.
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
