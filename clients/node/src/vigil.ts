/** Logs a long wait, with the holder of the lock. */

import { type Journal, quoted } from "./journal.js";
import { type Entry, scheduler } from "./scheduler.js";

/** The wait after which it is logged that this very process holds the lock. */
const OWN_MS = 1000;
/** The wait after which any wait is logged; then again at each doubling. */
const LONG_MS = 30_000;

/** Sources of the holder's name. */
interface Sources {
  /** The owner of a hold of these same locks, if there is one. */
  ownHold(): string | undefined;
  /** The server's answer; undefined if it gives none. */
  holder(name: string): Promise<string | undefined>;
}

export class Vigil {
  #entry: Entry | undefined;
  #isOver = false;

  constructor(
    readonly journal: Journal,
    readonly names: readonly string[],
    /** The time since which it waits. */
    readonly began: number,
    readonly sources: Sources,
  ) {}

  /** Called when the lock was not granted at once, or no reply has come for a while. */
  start(): void {
    this.#entry ??= scheduler.at(this.began + OWN_MS, () => {
      const owner = this.sources.ownHold();
      if (owner !== undefined) {
        const why = "a task that waits for what it holds itself waits for ever";
        this.journal.log("info", `waiting for ${quoted(this.names)}, which this very Locks holds (${owner}): ${why}`);
      }
      this.#next(LONG_MS);
    });
  }

  end(): void {
    this.#isOver = true;
    scheduler.cancel(this.#entry);
  }

  #next(after: number): void {
    this.#entry = scheduler.at(this.began + after, () => {
      void this.#report(after);
      this.#next(2 * after);
    });
  }

  async #report(after: number): Promise<void> {
    let held = "";
    for (const name of this.names) {
      // Any of several names may be the one that is held.
      const holder = await this.sources.holder(name).catch(() => undefined);
      if (holder !== undefined) held = `: '${name}' is held by ${holder}`;
      if (this.#isOver) return;
      if (held !== "") break;
    }
    this.journal.log("warn", `waiting for ${quoted(this.names)} for ${after / 1000} s${held}`);
  }
}
