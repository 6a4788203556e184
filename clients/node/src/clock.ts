/** Deadlines, in milliseconds of a clock that nobody sets and that goes on while the machine sleeps. */

import os from "node:os";

/** What tells the time, in milliseconds. */
export interface Sources {
  /** It may stand still while the machine sleeps. */
  monotonic(): number;
  /** Anybody may set it. */
  wall(): number;
  /** It goes on while the machine sleeps. Asking takes long, and it may tell no more than whole seconds. */
  boot(): number;
}

/** A wall clock that has gone on by this much more than the monotonic one was set, or the machine has slept. */
const LEAP_MS = 10;
/** How often the boot clock is asked though the wall clock shows nothing: somebody may have set it back meanwhile. */
const LOOK_MS = 100;

/** The monotonic clock, and what the machine has slept. */
export class Clock {
  readonly #sources: Sources;
  /** What the boot clock may leave out, and a millisecond for what rounding may. */
  readonly #tick: number;
  /** By how much the boot clock is ahead of the monotonic one: no less and no more than this. */
  #least: number;
  #most: number;
  #slept = 0;
  #lookedAt = Number.NEGATIVE_INFINITY;
  #wallAhead = 0;

  constructor(sources: Sources) {
    this.#sources = sources;
    this.#tick = sources.boot() % 1000 === 0 ? 1001 : 11;
    [this.#least, this.#most] = this.#ahead();
  }

  now(): number {
    const time = this.#sources.monotonic();
    const wallAhead = this.#sources.wall() - time;
    if (Math.abs(wallAhead - this.#wallAhead) > LEAP_MS || time - this.#lookedAt > LOOK_MS) {
      this.#lookedAt = time;
      this.#wallAhead = wallAhead;
      this.#look();
    }
    return time + this.#slept;
  }

  /** Counts a sleep if there surely was one, and then as long as it can have been: no hold is counted on for longer. */
  #look(): void {
    const [least, most] = this.#ahead();
    if (least > this.#most) {
      this.#slept += most - this.#least;
      [this.#least, this.#most] = [least, most];
    } else {
      this.#least = Math.max(this.#least, least);
      this.#most = Math.min(this.#most, most);
    }
  }

  #ahead(): [least: number, most: number] {
    const before = this.#sources.monotonic();
    const boot = this.#sources.boot();
    return [boot - this.#sources.monotonic(), boot + this.#tick - before];
  }
}

const monotonic = () => performance.now();
const clock = new Clock({ monotonic, wall: () => Date.now(), boot: () => os.uptime() * 1000 });

/** Only Linux has a monotonic clock that stands still and a boot clock that nobody sets. */
const untouched: () => number = ["linux", "android"].includes(process.platform) ? () => clock.now() : monotonic;
/** By how much a test has moved the clock. */
let ahead = 0;

/** Milliseconds of that clock. */
export const now = (): number => untouched() + ahead;

/** Lets the clock be ahead by that, for tests. */
export function moveClock(ms: number): void {
  ahead += ms;
}

/** What two clocks may differ by over a lease: 1 % of it, and 2 ms for their ticks. */
export const allowance = (lease: number): number => lease / 100 + 2;

/** Until when a lease surely lasts on the server, if the request for it was sent at `sentAt`. */
export const deadlineOf = (sentAt: number, lease: number): number => sentAt + lease - allowance(lease);

/** When the next renewal is due: a third of the lease after the last one was sent, or up to a tenth less at random. */
export const renewalOf = (sentAt: number, lease: number): number => sentAt + (lease / 3) * (1 - Math.random() / 10);

/** How long to pause before another attempt: 50 ms, doubled each time, 1 s at most. */
export const pauseBefore = (attempt: number): number => Math.min(50 * 2 ** Math.min(attempt, 5), 1000);
