/**
 * Loose ends: requests and holds that have ended, but that may still be granted or released. If their owner asks for
 * the same names again, their grants belong to the new request, and a late release would end it.
 */

/** The names that an ended request or hold must not touch. */
export type Taken = Set<string>;

export class LooseEnds {
  #byOwner = new Map<string, Set<{ readonly taken: Taken; readonly mayHold: () => boolean }>>();

  /** Adds one. Returns a function that marks it as settled. `mayHold`: the owner may hold a lock by it. */
  add(owner: string, taken: Taken, mayHold = () => true): () => void {
    const all = this.#byOwner.get(owner) ?? new Set();
    const end = { taken, mayHold };
    this.#byOwner.set(owner, all.add(end));
    return () => {
      if (all.delete(end) && all.size === 0 && this.#byOwner.get(owner) === all) this.#byOwner.delete(owner);
    };
  }

  /**
   * Records that this owner asks for these names again. Returns undefined if it has no loose ends, else true if it may
   * hold a lock by one of them. False means that one may have kept a queue position at most.
   */
  take(owner: string, names: readonly string[]): boolean | undefined {
    const all = this.#byOwner.get(owner);
    if (all === undefined) return undefined;
    for (const { taken } of all) {
      for (const name of names) taken.add(name);
    }
    return [...all].some(({ mayHold }) => mayHold());
  }
}
