/** The waiters by a place in line (QUEUE), in the order of arrival: the first one is told when the lock changes. */

import type { Ears } from "./ears.js";

/** Somebody's place. It remembers that its turn may have come while its owner was asking. */
export class Seat {
  #hasTurn = false;
  #wake: (() => void) | undefined;

  constructor(readonly name: string) {}

  /** Whether `next` resolves at once. */
  get hasTurn(): boolean {
    return this.#hasTurn;
  }

  turn(): void {
    this.#hasTurn = true;
    this.#wake?.();
  }

  /** Resolves when the turn may have come since the last call; at once if it has. */
  async next(): Promise<void> {
    if (!this.#hasTurn) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    this.#hasTurn = false;
  }
}

interface Row {
  readonly seats: Set<Seat>;
  stop: () => void;
}

export class LineUp {
  #rows = new Map<string, Row>();

  constructor(readonly ears: Ears) {}

  join(seat: Seat): void {
    const row = this.#rows.get(seat.name);
    if (row !== undefined) {
      row.seats.add(seat);
      return;
    }
    const seats = new Set([seat]);
    const first: Row = { seats, stop: () => undefined };
    this.#rows.set(seat.name, first);
    first.stop = this.ears.listen({ name: seat.name, told: () => this.#turn(seat.name) });
  }

  /** Leaves; the next one may have its turn, too, where several hold a lock together. */
  leave(seat: Seat): void {
    const row = this.#rows.get(seat.name);
    if (!row?.seats.delete(seat)) return;
    if (row.seats.size > 0) {
      this.#turn(seat.name);
      return;
    }
    this.#rows.delete(seat.name);
    row.stop();
  }

  #turn(name: string): void {
    const [first] = this.#rows.get(name)?.seats ?? [];
    first?.turn();
  }
}
