/**
 * Receives the server's pushes. One connection to each server reports changed keys (CLIENT TRACKING). Reading the
 * lock's token subscribes to its next change, and returns its state now.
 */

import { now, pauseBefore } from "./clock.js";
import { fenceCommand } from "./commands.js";
import { codeOf, meaningOf, ServerRefusedError } from "./errors.js";
import { textOf } from "./journal.js";
import { type Endpoint, Line, nameOf, placeOf } from "./line.js";
import type { Push, Reply } from "./resp.js";
import type { Route } from "./route.js";
import { type Entry, pause, scheduler } from "./scheduler.js";

/** A caller that wants to know of changes of a lock. */
export interface Listener {
  readonly name: string;
  /** The hold to watch. Without it, any change of the lock is reported. */
  readonly token?: number | undefined;
  /** Called when the hold has ended, or the lock has changed. */
  readonly told: () => void;
}

/** The time limit of a connection attempt. */
const OPEN_MS = 5000;
/** The interval of liveness checks: a broken network reports nothing. */
const ALIVE_MS = 5000;

/** One connection, and its listeners. */
class Ear {
  readonly names = new Map<string, Set<Listener>>();
  #entry: Entry | undefined;
  constructor(readonly line: Line) {}

  /** Checks at intervals that the server is alive, until the connection ends. */
  watch(): void {
    if (!this.line.isOpen) return;
    this.#entry = scheduler.at(now() + ALIVE_MS, () => {
      // An error reply is a sign of life, too.
      void this.line
        .askSoon(["PING"])
        .catch(() => undefined)
        .then(() => this.watch());
    });
  }

  stop(): void {
    scheduler.cancel(this.#entry);
  }
}

export class Ears {
  #listeners = new Map<string, Set<Listener>>();
  #ears = new Map<string, Promise<Ear | undefined>>();
  #lines = new Set<Line>();
  #closed = false;

  constructor(readonly route: Route) {}

  /** Notifies this listener from now on. Returns a function that stops it. */
  listen(listener: Listener): () => void {
    const all = this.#listeners.get(listener.name) ?? new Set();
    this.#listeners.set(listener.name, all.add(listener));
    void this.#place(listener.name, [listener], 0);
    return () => {
      all.delete(listener);
      if (all.size === 0 && this.#listeners.get(listener.name) === all) this.#listeners.delete(listener.name);
    };
  }

  close(): void {
    this.#closed = true;
    for (const line of [...this.#lines]) line.close();
  }

  /**
   * Finds the server that has this name, and subscribes there. Repeats that until it succeeds or no listener is left.
   */
  async #place(name: string, listeners: Iterable<Listener>, attempt: number): Promise<void> {
    for (let number = attempt; !this.#closed; number++) {
      const wanting = [...listeners].filter((each) => this.#listeners.get(name)?.has(each));
      if (wanting.length === 0) return;
      try {
        const ear = await this.#ear(name);
        if (ear === undefined) return;
        ear.names.set(name, this.#listeners.get(name) ?? new Set());
        this.#check(ear, name, wanting);
        return;
      } catch {
        // The server is unreachable or not a primary. Meanwhile the deadline reports a loss.
        await pause(pauseBefore(number));
      }
    }
  }

  /** Returns the connection to the server of this name, or undefined if it does not let us track keys. */
  async #ear(name: string): Promise<Ear | undefined> {
    const endpoint = await this.route.endpoint(name);
    const where = placeOf(endpoint);
    let opening = this.#ears.get(where);
    if (opening === undefined) {
      opening = Line.open(endpoint, OPEN_MS, this.route.journal).then(
        (line) => this.#track(line, where),
        (error: unknown) => this.#unheard(endpoint, error),
      );
      this.#ears.set(where, opening);
      opening.catch(() => this.#ears.delete(where));
    }
    return opening;
  }

  /** A server or proxy without RESP3 will not learn it. Throws errors that may pass. */
  #unheard(endpoint: Endpoint, error: unknown): undefined {
    if (!(error instanceof ServerRefusedError) || !error.message.includes("HELLO")) throw error;
    this.route.journal.log("warn", `losses at ${nameOf(endpoint)} are noticed by renewals alone: ${error.message}`);
    return undefined;
  }

  async #track(line: Line, where: string): Promise<Ear | undefined> {
    if (this.#closed) line.close();
    const ear = new Ear(line);
    this.#lines.add(line);
    line.onPush = (push) => this.#pushed(ear, push);
    line.onEnd = () => {
      ear.stop();
      if (!this.#closed) this.route.journal.lost(nameOf(line.endpoint));
      this.#lines.delete(line);
      this.#ears.delete(where);
      for (const [name, listeners] of ear.names) void this.#place(name, [...listeners], 0);
    };
    try {
      await line.askSoon(["CLIENT", "TRACKING", "ON"]);
      ear.watch();
      this.route.journal.found(nameOf(line.endpoint));
      return ear;
    } catch (error) {
      const isRefused = line.isOpen && meaningOf(error) !== "again";
      // If tracking is not allowed, renewals and deadlines detect losses, and waiters poll.
      if (isRefused) line.onEnd = () => this.#lines.delete(line);
      line.close();
      if (!isRefused) throw error;
      const server = nameOf(line.endpoint);
      this.route.journal.log("info", `losses at ${server} are noticed by renewals alone: ${textOf(error)}`);
      return undefined;
    }
  }

  /** The server names the keys that have changed, or none if all have. */
  #pushed(ear: Ear, push: Push): void {
    const [kind, names] = push.items;
    if (kind !== "invalidate") return;
    const changed: Iterable<Reply> = Array.isArray(names) ? names : [...ear.names.keys()];
    for (const name of changed) {
      if (typeof name !== "string") continue;
      const listeners = this.#listeners.get(name);
      if (listeners === undefined) ear.names.delete(name);
      else this.#check(ear, name, listeners);
    }
  }

  /** Reads the lock's state for each of these. The server then reports the next change. */
  #check(ear: Ear, name: string, listeners: Iterable<Listener>): void {
    const tokens = new Map<number | undefined, Listener[]>();
    for (const each of listeners) {
      const same = tokens.get(each.token);
      if (same === undefined) tokens.set(each.token, [each]);
      else same.push(each);
    }
    for (const [token, same] of tokens) {
      ear.line.askSoon(fenceCommand(name, token)).then(
        (reply) => {
          if (token === undefined) this.#tell(name, same);
          else if (reply === 0) void this.#confirm(ear, name, token, same);
        },
        (error: unknown) => this.#refused(ear, name, same, error),
      );
    }
  }

  #tell(name: string, listeners: readonly Listener[]): void {
    for (const each of listeners) if (this.#listeners.get(name)?.has(each)) each.told();
  }

  /** Only a primary knows that a hold has ended: a replica that is just synchronizing knows of none. */
  async #confirm(ear: Ear, name: string, token: number, listeners: readonly Listener[]): Promise<void> {
    try {
      await ear.line.seePrimary();
      if ((await ear.line.askSoon(fenceCommand(name, token))) === 0) this.#tell(name, listeners);
    } catch {
      // When it ends, all listeners look for the primary by the address.
      ear.line.close();
    }
  }

  #refused(ear: Ear, name: string, listeners: Listener[], error: unknown): void {
    const code = error instanceof Error ? codeOf(error.message) : undefined;
    if (code === "WRONGTYPE") {
      this.#tell(name, listeners);
    } else if (meaningOf(error) === "again" && ear.line.isOpen) {
      // The slot has moved, or the server is loading. If the connection ends, its onEnd handles that.
      void pause(pauseBefore(0)).then(() => this.#place(name, listeners, 1));
    }
  }
}
