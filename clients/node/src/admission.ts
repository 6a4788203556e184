/** Limits how many attempts of this process stand in the server's queue of a lock. The others wait here, in order. */

import { Seat } from "./line-up.js";

export class Admission {
  readonly #rows = new Map<string, Set<Seat>>();

  /** `most` is the number of attempts of one lock that may stand in the server's queue. */
  constructor(readonly most: number) {}

  /** Returns a seat. Its turn has come if the attempt may join the server's queue at once. */
  join(key: string): Seat {
    const seat = new Seat(key);
    const row = this.#rows.get(key) ?? new Set();
    this.#rows.set(key, row.add(seat));
    if (row.size <= this.most) seat.turn();
    return seat;
  }

  /** Leaves, granted or not. The next one may join the server's queue. */
  leave(seat: Seat): void {
    const row = this.#rows.get(seat.name);
    if (!row?.delete(seat)) return;
    if (row.size === 0) this.#rows.delete(seat.name);
    let place = 0;
    for (const next of row) {
      if (++place < this.most) continue;
      next.turn();
      return;
    }
  }
}
