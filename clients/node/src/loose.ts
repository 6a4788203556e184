/**
 * Loose ends: requests and holds that have ended, but that may still be granted or released. If their owner asks for
 * the same names again, their grants belong to the new request, and a late release would end it.
 */

/** The names that an ended request or hold must not touch. Nearly always there are none, and then it has no set. */
export class Taken {
  #names: Set<string> | undefined;

  add(names: readonly string[]): void {
    this.#names ??= new Set();
    for (const name of names) this.#names.add(name);
  }

  has(name: string): boolean {
    return this.#names?.has(name) ?? false;
  }
}

interface LooseEnd {
  readonly taken: Taken;
  readonly mayHold: () => boolean;
}

const always = (): boolean => true;

export class LooseEnds {
  // An owner that the program names may have thousands, and nearly any other has one.
  #byOwner = new Map<string, LooseEnd | Set<LooseEnd>>();

  /** Adds one. Returns a function that marks it as settled. `mayHold`: the owner may hold a lock by it. */
  add(owner: string, taken: Taken, mayHold = always): () => void {
    const end = { taken, mayHold };
    const all = this.#byOwner.get(owner);
    if (all instanceof Set) all.add(end);
    else this.#byOwner.set(owner, all === undefined ? end : new Set([all, end]));
    return () => {
      const rest = this.#byOwner.get(owner);
      const isLast = rest instanceof Set ? rest.delete(end) && rest.size === 0 : rest === end;
      if (isLast) this.#byOwner.delete(owner);
    };
  }

  /**
   * Records that this owner asks for these names again. Returns undefined if it has no loose ends, else true if it may
   * hold a lock by one of them. False means that one may have kept a queue position at most.
   */
  take(owner: string, names: readonly string[]): boolean | undefined {
    const all = this.#byOwner.get(owner);
    if (all === undefined) return undefined;
    const ends = all instanceof Set ? [...all] : [all];
    for (const { taken } of ends) taken.add(names);
    return ends.some(({ mayHold }) => mayHold());
  }
}
