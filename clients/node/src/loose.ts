/**
 * Loose ends: requests and holds that are over, but may be granted or released yet. If their owner asks for the same
 * names anew, what they have is the new request's, and a release of theirs would end it.
 */

/** The names that such a request or hold must touch no more. */
export type Taken = Set<string>;

export class LooseEnds {
  #byOwner = new Map<string, Set<{ readonly taken: Taken }>>();

  /** Adds one; returns how to say that it is settled. */
  add(owner: string, taken: Taken): () => void {
    const all = this.#byOwner.get(owner) ?? new Set();
    const end = { taken };
    this.#byOwner.set(owner, all.add(end));
    return () => {
      if (all.delete(end) && all.size === 0 && this.#byOwner.get(owner) === all) this.#byOwner.delete(owner);
    };
  }

  /** Notes that this owner asks for these names anew; returns whether it has any loose ends. */
  take(owner: string, names: readonly string[]): boolean {
    const all = this.#byOwner.get(owner);
    for (const { taken } of all ?? []) {
      for (const name of names) taken.add(name);
    }
    return all !== undefined;
  }
}
