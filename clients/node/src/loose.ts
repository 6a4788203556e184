/**
 * Loose ends: requests and holds that are over, but may be granted or released yet. If their owner asks for the same
 * names anew, what they have is the new request's, and a release of theirs would end it.
 */

/** The names that such a request or hold must touch no more. */
export type Taken = Set<string>;

export class LooseEnds {
  #byOwner = new Map<string, Set<{ readonly taken: Taken; readonly mayHold: () => boolean }>>();

  /** Adds one; returns how to say that it is settled. `mayHold`: whether the owner may hold a lock by it. */
  add(owner: string, taken: Taken, mayHold = () => true): () => void {
    const all = this.#byOwner.get(owner) ?? new Set();
    const end = { taken, mayHold };
    this.#byOwner.set(owner, all.add(end));
    return () => {
      if (all.delete(end) && all.size === 0 && this.#byOwner.get(owner) === all) this.#byOwner.delete(owner);
    };
  }

  /**
   * Notes that this owner asks for these names again. Returns undefined if it has no loose ends, else whether it may
   * hold a lock by one of them. If not, one may only have kept a place in the queue.
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
