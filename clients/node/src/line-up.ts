/**
 * Waiters with a position in the queue (QUEUE), in order of arrival. The first one is notified when the lock changes.
 */

import type { Ears } from "./ears.js";

/** A waiter's place. It remembers a turn that came while its owner was asking. */
export class Seat {
  #hasTurn = false;
  #wake: (() => void) | undefined;

  constructor(readonly name: string) {}

  /** True if `next` resolves at once. */
  get hasTurn(): boolean {
    return this.#hasTurn;
  }

  turn(): void {
    this.#hasTurn = true;
    this.#wake?.();
  }

  /** Resolves when its turn may have come since the last call. */
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

  /** Leaves. The next waiter may have its turn, too, if several can hold the lock together. */
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
