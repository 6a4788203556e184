/** Deadlines, in milliseconds of a clock that cannot be set and that keeps counting while the machine sleeps. */

import os from "node:os";

/** The clocks of the machine, in milliseconds. */
export interface Sources {
  /** May stop while the machine sleeps. */
  monotonic(): number;
  /** May be set at any time. */
  wall(): number;
  /** Keeps counting while the machine sleeps. It is slow to read, and may be accurate only to a second. */
  boot(): number;
}

/** A wall clock that advanced this much more than the monotonic one was set, or the machine has slept. */
const LEAP_MS = 10;
/**
 * The interval at which the boot clock is read though the wall clock shows no sleep: it may have been set back
 * meanwhile.
 */
const LOOK_MS = 100;

/** The monotonic clock plus the time that the machine has slept. */
export class Clock {
  readonly #sources: Sources;
  /** The resolution of the boot clock, and a millisecond for rounding. */
  readonly #tick: number;
  /** The lower and the upper bound of the boot clock's lead over the monotonic one. */
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

  /** Counts a sleep only if one is certain, and then at its longest, so that no hold is trusted for too long. */
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

/** Only Linux has both a monotonic clock that stops during sleep and a boot clock that cannot be set. */
const untouched: () => number = ["linux", "android"].includes(process.platform) ? () => clock.now() : monotonic;
/** The amount by which a test has advanced the clock. */
let ahead = 0;

/** Milliseconds of that clock. */
export const now = (): number => untouched() + ahead;

/** Advances the clock by this amount, for tests. */
export function moveClock(ms: number): void {
  ahead += ms;
}

/** The most that two clocks may differ over a lease: 1 % of it, and 2 ms for their ticks. */
export const allowance = (lease: number): number => lease / 100 + 2;

/** The time until which a lease certainly lasts on the server, if its request was sent at `sentAt`. */
export const deadlineOf = (sentAt: number, lease: number): number => sentAt + lease - allowance(lease);

/** The time of the next renewal: a third of the lease after the last one was sent, less up to a tenth at random. */
export const renewalOf = (sentAt: number, lease: number): number => sentAt + (lease / 3) * (1 - Math.random() / 10);

/** The pause before another attempt: 50 ms, doubled each time, at most 1 s. */
export const pauseBefore = (attempt: number): number => Math.min(50 * 2 ** Math.min(attempt, 5), 1000);
