/** Limits how many attempts of this process stand in the server's queue of a lock. The others wait here, in order. */

import { Seat } from "./line-up.js";

/** The attempts for one lock: the number of those that may stand in the server's queue, and the others. */
interface Row {
  admitted: number;
  waiting?: Set<Seat>;
}

/** What an attempt has of the row. It has a seat if it must wait for its turn. */
export interface Entry {
  readonly key: string;
  readonly seat: Seat | undefined;
}

export class Admission {
  readonly #rows = new Map<string, Row>();

  /** `most` is the number of attempts of one lock that may stand in the server's queue. */
  constructor(readonly most: number) {}

  join(key: string): Entry {
    let row = this.#rows.get(key);
    if (row === undefined) this.#rows.set(key, (row = { admitted: 0 }));
    if (row.admitted < this.most) {
      row.admitted++;
      return { key, seat: undefined };
    }
    const seat = new Seat(key);
    (row.waiting ??= new Set()).add(seat);
    return { key, seat };
  }

  /** Leaves, granted or not. The next one may join the server's queue. */
  leave({ key, seat }: Entry): void {
    const row = this.#rows.get(key);
    if (row === undefined || (seat !== undefined && row.waiting?.delete(seat))) return;
    const [next] = row.waiting ?? [];
    if (next !== undefined) {
      row.waiting?.delete(next);
      next.turn();
    } else if (--row.admitted === 0) this.#rows.delete(key);
  }
}
