/** Locks on one server, a primary that Sentinel watches, or a cluster. */

import { inspect } from "node:util";

import { Attempt, type Context } from "./acquire.js";
import { type AcquireOptions, Base, type BaseOptions, Lock, type Troubled, type Wanted } from "./base.js";
import { now, pauseBefore } from "./clock.js";
import { fenceCommand, freshOwner, type Request, releaseCommand, renewCommand } from "./commands.js";
import type { Client, Driver, IoredisClient, NodeRedisClient } from "./driver.js";
import { Ears } from "./ears.js";
import { ConnectionFailed, Fenced, meaningOf } from "./errors.js";
import type { Grant, Keeper } from "./hold.js";
import { overIoredis } from "./ioredis.js";
import { type Endpoint, Line } from "./line.js";
import { LineUp } from "./line-up.js";
import { Lines } from "./lines.js";
import { LooseEnds, type Taken } from "./loose.js";
import { overNodeRedis } from "./node-redis.js";
import { checkCount, checkNames } from "./rules.js";
import { sleep, within } from "./scheduler.js";

export interface LocksOptions extends BaseOptions {
  /**
   * How many connections may wait at most: a whole number, 1 or more. A caller that finds none free waits over a
   * shared one. Default: 16.
   */
  readonly waitingConnections?: number | undefined;
  /** How to log in at the primary: needed for node-redis's Sentinel client alone, which does not tell. */
  readonly login?: Pick<Endpoint, "username" | "password" | "database" | "tls"> | undefined;
}

/** Which driver a client is of. */
export function driverOf(client: Client, login: Endpoint = {}): Driver {
  if (typeof (client as IoredisClient | undefined)?.call === "function") return overIoredis(client as IoredisClient);
  const { sendCommand } = (client ?? {}) as { sendCommand?: unknown };
  if (typeof sendCommand !== "function") {
    throw new TypeError(`a client of ioredis or node-redis is needed: ${inspect(client, { depth: 0 })}`);
  }
  if ("totalClients" in client) {
    // Requests over several connections overtake each other, and a pool does not say where its server is.
    throw new TypeError("a client of node-redis is needed, not a pool of them: many tasks can use one client");
  }
  return overNodeRedis(client as NodeRedisClient, login);
}

/** Asks the servers for one hold. */
class ServerKeeper implements Keeper {
  readonly #taken: Taken = new Set();

  constructor(
    readonly attempt: Attempt,
    readonly driver: Driver,
    readonly ears: Ears,
    readonly loose: LooseEnds,
  ) {}

  get cuts(): number {
    return this.driver.cuts;
  }

  get names(): readonly string[] {
    return this.attempt.request.names;
  }

  get owner(): string {
    return this.attempt.request.owner;
  }

  renew(lease: number, token: number, attempt: number): Promise<boolean> {
    return this.#each((name) => renewCommand(name, this.owner, lease, token), attempt);
  }

  release(token: number, attempt: number): Promise<boolean> {
    const isTaken = (name: string) => attempt > 0 && this.#taken.has(name);
    return this.#each((name) => (isTaken(name) ? undefined : releaseCommand(name, this.owner, token)), attempt);
  }

  loosen(): () => void {
    return this.loose.add(this.owner, this.#taken);
  }

  listen(token: number, told: () => void): () => void {
    const stops = this.names.map((name) => this.ears.listen({ name, token, told }));
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** Sends a command for each name, unless there is none by then; whether all were answered with 1. */
  #each(command: Command, attempt: number): Promise<boolean> {
    const { names } = this;
    const [only] = names;
    if (names.length === 1 && only !== undefined) return this.#send(only, command, attempt).then(isOne);
    const replies = Promise.all(names.map((name) => this.#send(name, command, attempt)));
    return replies.then((all) => all.every(isOne));
  }

  /** Every second attempt goes over a connection of its own: the client's may be silent for long. */
  async #send(name: string, command: Command, attempt: number): Promise<unknown> {
    if (attempt % 2 === 1) return sendOnce(this.driver, name, command);
    const words = command(name);
    return words === undefined ? 1 : this.driver.send(name, words);
  }
}

/** What is to be sent for a name. It is asked just before that. */
type Command = (name: string) => string[] | undefined;

const isOne = (reply: unknown): boolean => Number(reply) === 1;

/** Sends one command over a fresh connection. */
async function sendOnce(driver: Driver, name: string, command: Command): Promise<unknown> {
  const line = await Line.open(await driver.endpoint(name), ONCE_MS);
  try {
    const words = command(name);
    if (words === undefined) return 1;
    return await within(line.ask(words), now() + ONCE_MS, () => new ConnectionFailed("no answer in time"));
  } finally {
    line.close();
  }
}

/** How long a connection for one command may take to open, and its reply to come. */
const ONCE_MS = 2000;
const WAITING_CONNECTIONS = 16;
const PLACE_MS = 5000;

export class Locks extends Base {
  readonly #driver: Driver;
  readonly #ears: Ears;
  readonly #loose = new LooseEnds();
  readonly #context: Context;

  /** Takes a client of ioredis or node-redis that you have made, and that stays yours. */
  constructor(client: Client, options: LocksOptions = {}) {
    super(options, ["waitingConnections", "login"]);
    const waitingConnections = options.waitingConnections ?? WAITING_CONNECTIONS;
    checkCount("waitingConnections", waitingConnections);
    this.#driver = driverOf(client, options.login);
    this.#ears = new Ears(this.#driver);
    this.#context = {
      driver: this.#driver,
      lines: new Lines(this.#driver, waitingConnections),
      lineUp: new LineUp(this.#ears),
      timeout: this.timeout,
      attempts: new Set(),
      loose: this.#loose,
      waits: ({ names, owner }) => this.waits(names, owner),
      holds: (owner, token) => this.holds(owner, token),
      background: (work) => this.background(work),
      most: { queue: PLACE_MS, block: Number.POSITIVE_INFINITY },
    };
  }

  /** The lock of this name, to hold beside other readers. */
  read(name: string): Lock {
    return new Lock(this, { names: [name], kind: "read" });
  }

  /** The lock of this name, to hold alone, beside no reader. */
  write(name: string): Lock {
    return new Lock(this, { names: [name], kind: "write" });
  }

  /** One of `limit` permits of this name. All who use the name must say the same limit. */
  semaphore(name: string, limit: number): Lock {
    return new Lock(this, { names: [name], kind: "semaphore", limit });
  }

  /** All of these locks or none, with one token. In a cluster they must be in one slot. */
  many(names: readonly string[]): Lock {
    checkNames(names);
    if (names.length === 0) throw new TypeError("many needs a name");
    return new Lock(this, { names: [...names], kind: "exclusive" });
  }

  /** Throws `Fenced` unless the token is that of a live hold of the lock. */
  async fence(name: string, token: number): Promise<void> {
    const reply = await this.#asked(() => this.#driver.send(name, fenceCommand(name, token)));
    if (Number(reply) !== 1) throw new Fenced(`the token ${token} is not that of a live hold of ${name}`);
  }

  /** The names of all locks that this owner holds, on all primaries of a cluster. */
  async heldBy(owner: string): Promise<string[]> {
    const replies = await this.#asked(() => this.#driver.sendToAll(["LOCK.HELDBY", owner]));
    // A client of node-redis may give bytes in place of text.
    const rows = (replies as unknown[][]).flat() as [unknown, unknown][];
    return rows.filter(([, state]) => String(state) === "held").map(([name]) => String(name));
  }

  protected request(wanted: Wanted, lease: number, options: AcquireOptions, troubled: Troubled) {
    const { owner = freshOwner(), wait, signal } = options;
    const { names, kind, limit } = wanted;
    const request: Request = { names, kind, limit, owner, isNamed: options.owner !== undefined, lease };
    const attempt = new Attempt(this.#context, request, wait, troubled);
    const keeper: Keeper = new ServerKeeper(attempt, this.#driver, this.#ears, this.#loose);
    const granting: Promise<Grant> = attempt.run(signal);
    return { keeper, granting };
  }

  protected stopAttempts(error: Error): void {
    for (const attempt of [...this.#context.attempts]) attempt.stop(error);
  }

  protected closeConnections(): void {
    this.#context.lines.close();
    this.#ears.close();
  }

  /** The reply. Asks again while no server answers, until the `timeout` of the locks is over. */
  async #asked<T>(ask: () => Promise<T>): Promise<T> {
    const driver = this.#driver;
    const until = now() + this.timeout;
    for (let attempt = 0; ; attempt++) {
      let trouble: unknown;
      try {
        return await within(ask(), until, () => new ConnectionFailed(`no answer; the client is ${driver.state}`));
      } catch (error) {
        const meaning = meaningOf(error, driver.server !== undefined);
        if (meaning !== "again" && !(meaning instanceof ConnectionFailed)) throw meaning;
        trouble = error;
      }
      await sleep(Math.min(pauseBefore(attempt), Math.max(until - now(), 0)));
      if (now() < until) continue;
      const why = trouble instanceof Error ? trouble.message : String(trouble);
      throw new ConnectionFailed(`no server answered in time: ${why}`, trouble);
    }
  }
}
