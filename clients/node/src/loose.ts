/**
 * Loose ends: requests and holds that have ended, but that may still be granted or released. If their owner asks for
 * the same names again, their grants belong to the new request, and a late release would end it.
 */

/** The names that an ended request or hold must not touch. Nearly always there are none, and then it has no set. */
export class Taken {
  #names: Set<string> | undefined;

  add(names: readonly string[]): void {
    this.#names = new Set([...(this.#names ?? []), ...names]);
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
  #byOwner = new Map<string, readonly LooseEnd[]>();

  /** Adds one. Returns a function that marks it as settled. `mayHold`: the owner may hold a lock by it. */
  add(owner: string, taken: Taken, mayHold = always): () => void {
    const end = { taken, mayHold };
    this.#byOwner.set(owner, [...(this.#byOwner.get(owner) ?? []), end]);
    return () => {
      const rest = this.#byOwner.get(owner)?.filter((each) => each !== end) ?? [];
      if (rest.length === 0) this.#byOwner.delete(owner);
      else this.#byOwner.set(owner, rest);
    };
  }

  /**
   * Records that this owner asks for these names again. Returns undefined if it has no loose ends, else true if it may
   * hold a lock by one of them. False means that one may have kept a queue position at most.
   */
  take(owner: string, names: readonly string[]): boolean | undefined {
    const all = this.#byOwner.get(owner);
    if (all === undefined) return undefined;
    for (const { taken } of all) taken.add(names);
    return all.some(({ mayHold }) => mayHold());
  }
}
