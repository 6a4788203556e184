/**
 * An in-process server for tests of programs that use locks: `new Locks(new Server())`.
 *
 * It answers a client's requests in memory as a server with the module does. Everything else is the client's own code,
 * so a test sees the same waits, renewals, losses and errors. It has no quarantine, no replicas and no queue limits,
 * and cannot serve `Redlock`.
 */

import { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import { setImmediate as turn } from "node:timers/promises";

import { moveClock, now } from "./clock.js";
import { Driver } from "./driver.js";
import type { Endpoint } from "./line.js";
import { Decoder, Push, ReplyError } from "./resp.js";
import { checked } from "./rules.js";
import { type Entry, scheduler } from "./scheduler.js";
import { type Answer, type Peer, Table } from "./table.js";

/** The event-loop turns that a client takes at most to finish all that a due entry starts. */
const TURNS = 50;
/** The shortest step of the clock, and the time after which a hold subscribes to its loss. */
const STEP_MS = 10;
const LISTENS_MS = 60;

export class Server {
  /** @internal */
  readonly redislockDriver: Driver;
  readonly #table = new Table();
  #entry: Entry | undefined;

  constructor() {
    this.redislockDriver = new MemoryDriver(this, (words) => this.#send(words));
  }

  /** Moves the clock of all locks of the process. Renewed leases last; other leases and waits end on the way. */
  async advance(ms: number): Promise<void> {
    checked("ms", ms, 0);
    await this.#settle();
    for (let left = ms; left > 0; ) {
      const due = Math.min(scheduler.nextDue, this.#table.nextDue) - now();
      const step = Math.min(left, Math.max(due, STEP_MS));
      moveClock(step);
      left -= step;
      await this.#settle();
    }
  }

  /** Ends all holds of this lock, as DEL by an operator does. Resolves when their holders know it. */
  async lose(name: string): Promise<void> {
    await this.advance(LISTENS_MS);
    this.#table.del(name);
    await this.#settle();
  }

  /** Lets the clients do all that is due. */
  async #settle(): Promise<void> {
    for (let number = 0; number < TURNS; number++) {
      this.#table.tick();
      scheduler.look();
      await turn();
    }
  }

  /** @internal Executes a command that a connection sends. */
  answer(peer: Peer, words: readonly string[]): void {
    this.#table.answer(peer, words);
    scheduler.cancel(this.#entry);
    const due = this.#table.nextDue;
    // Leases and waits end when their time comes.
    this.#entry = due < Number.POSITIVE_INFINITY ? scheduler.at(due, () => this.#table.tick()) : undefined;
  }

  /** @internal Ends the waits that depend on this connection. */
  left(peer: Peer): void {
    this.#table.left(peer);
  }

  /** Asks as the user's client does. */
  #send(words: readonly string[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const send = (reply: Answer) => setImmediate(() => (reply instanceof ReplyError ? reject(reply) : resolve(reply)));
      this.answer({ tracks: false, send }, words);
    });
  }
}

class MemoryDriver extends Driver {
  readonly state = "ready";

  constructor(
    readonly memory: Server,
    readonly ask: (words: readonly string[]) => Promise<unknown>,
  ) {
    super();
  }

  override get server(): string {
    return this.where();
  }

  where(): string {
    return "testing:0";
  }

  send(_key: string, words: readonly string[]): Promise<unknown> {
    return this.ask(words);
  }

  async endpoint(): Promise<Endpoint> {
    return { host: "testing", socket: () => new Pipe(this.memory) as unknown as Socket };
  }
}

/** The part of a socket that a line uses. */
class Pipe extends EventEmitter implements Peer {
  tracks = false;
  readonly #decoder = new Decoder();
  #isDestroyed = false;

  constructor(readonly server: Server) {
    super();
  }

  write(text: string): void {
    for (const words of this.#decoder.feed(Buffer.from(text))) this.server.answer(this, words as string[]);
  }

  send(reply: Answer): void {
    setImmediate(() => this.#isDestroyed || this.emit("data", Buffer.from(packed(reply))));
  }

  destroy(): void {
    if (this.#isDestroyed) return;
    this.#isDestroyed = true;
    this.server.left(this);
  }

  setNoDelay(): void {
    // Nothing is delayed.
  }

  setKeepAlive(): void {
    // Nothing is lost.
  }

  unref(): void {
    // Nothing keeps the process alive.
  }
}

/** Encodes a reply in RESP3. */
function packed(value: Answer): string {
  if (value === null) return "_\r\n";
  if (typeof value === "number") return `:${value}\r\n`;
  if (typeof value === "string") return `$${Buffer.byteLength(value)}\r\n${value}\r\n`;
  if (value instanceof ReplyError) return `-${value.message}\r\n`;
  const all = (values: readonly unknown[]) => values.map((each) => packed(each as Answer)).join("");
  if (value instanceof Push) return `>${value.items.length}\r\n${all(value.items)}`;
  if (Array.isArray(value)) return `*${value.length}\r\n${all(value)}`;
  const entries = Object.entries(value);
  return `%${entries.length}\r\n${all(entries.flat())}`;
}
