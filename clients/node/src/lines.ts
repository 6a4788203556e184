/** A pool of at most `most` waiting connections, each for one request, given out in order. */

import { now } from "./clock.js";
import { Line } from "./line.js";
import type { Route } from "./route.js";
import { within } from "./stop.js";

/** The time for which an abandoned request may stay unanswered before its connection is closed. */
const SETTLE_MS = 2000;

export class Lines {
  #open = new Set<Line>();
  #busy = 0;
  /** Each waiter gets a place that was reserved for it. */
  #queue: (() => void)[] = [];

  constructor(
    readonly route: Route,
    readonly most: number,
  ) {}

  /**
   * Returns a connection to the primary that has this key, within `limit` milliseconds. Call it when there is `room`.
   */
  async take(key: string, limit: number): Promise<Line> {
    try {
      const line = await Line.open(await this.route.endpoint(key), limit, this.route.journal);
      if (line.isOpen) this.#open.add(line);
      line.onEnd = () => this.#open.delete(line);
      return line;
    } catch (error) {
      this.#leave();
      throw error;
    }
  }

  /**
   * Resolves when a connection is available, which is reserved for the caller. `stop` gives it up, before or after
   * that; `hurry` skips the wait.
   */
  room(): { ready: Promise<void>; stop: () => void; hurry: () => void } {
    let resolve = (): void => undefined;
    const ready = new Promise<void>((done) => {
      resolve = done;
    });
    this.#queue.push(resolve);
    this.#next();
    /** Returns true if the caller was still waiting. */
    const unqueue = () => {
      const place = this.#queue.indexOf(resolve);
      return place >= 0 && this.#queue.splice(place, 1).length > 0;
    };
    const stop = () => {
      if (!unqueue()) this.#leave();
    };
    const hurry = () => {
      if (!unqueue()) return;
      this.#busy++;
      resolve();
    };
    return { ready, stop, hurry };
  }

  /** Takes a connection back and closes it. */
  give(line: Line): void {
    line.close();
    this.#leave();
  }

  /** Takes a connection back once its request is answered, or when that takes too long. */
  async settle(line: Line, reply: Promise<unknown>): Promise<void> {
    await within(reply, now() + SETTLE_MS, () => new Error("unanswered")).catch(() => undefined);
    this.give(line);
  }

  /** Closes all connections. */
  close(): void {
    for (const line of [...this.#open]) line.close();
  }

  #leave(): void {
    this.#busy--;
    this.#next();
  }

  #next(): void {
    if (this.#busy >= this.most) return;
    const first = this.#queue.shift();
    if (first === undefined) return;
    this.#busy++;
    first();
  }
}
