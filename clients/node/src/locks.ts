/** Locks on one server, a primary that Sentinel watches, or a cluster. */

import { inspect } from "node:util";

import { Attempt, type Context } from "./acquire.js";
import { type AcquireOptions, Base, type BaseOptions, Lock, type Troubled, type Wanted } from "./base.js";
import { now, pauseBefore } from "./clock.js";
import { fenceCommand, freshOwner, type Request, releaseCommand, renewCommand, routingKey } from "./commands.js";
import type { Client, Driver, IoredisClient, NodeRedisClient } from "./driver.js";
import { Ears } from "./ears.js";
import { ConnectionFailed, Fenced, meaningOf, ownOf } from "./errors.js";
import type { Grant, Keeper } from "./hold.js";
import { overIoredis } from "./ioredis.js";
import type { Endpoint } from "./line.js";
import { LineUp } from "./line-up.js";
import { Lines } from "./lines.js";
import { LooseEnds, type Taken } from "./loose.js";
import { overNodeRedis } from "./node-redis.js";
import { isNotMe, Route } from "./route.js";
import { checkCount, checkLogin, checkName, checkNames, checkOwner, checkToken, MOST_PERMITS } from "./rules.js";
import { awake, pause, within } from "./scheduler.js";

export interface LocksOptions extends BaseOptions {
  /**
   * How many connections may wait at most: a whole number, 1 or more. A caller that finds none free waits over a
   * shared one. Default: 16.
   */
  readonly waitingConnections?: number | undefined;
  /** How to log in at the primary: needed for node-redis's Sentinel client alone, which does not tell. */
  readonly login?: Pick<Endpoint, "username" | "password" | "database" | "tls"> | undefined;
}

/** Which driver a client is of. An object that only looks like a client would fail later, in each request. */
export function driverOf(client: Client, login: Endpoint = {}): Driver {
  const { call, status, sendCommand, connect, isOpen } = (client ?? {}) as unknown as Record<string, unknown>;
  if (typeof call === "function" && typeof status === "string") return overIoredis(client as IoredisClient);
  if (typeof client === "object" && "totalClients" in client) {
    // Requests over several connections overtake each other, and a pool does not say where its server is.
    throw new TypeError("a client of node-redis is needed, not a pool of them: many tasks can use one client");
  }
  if (typeof sendCommand === "function" && typeof connect === "function" && typeof isOpen === "boolean") {
    return overNodeRedis(client as NodeRedisClient, login);
  }
  const hint = "as new Redis() or createClient() gives it, not legacy() or a pipeline of it";
  throw new TypeError(`a client of ioredis or node-redis is needed, ${hint}: ${inspect(client, { depth: 0 })}`);
}

/** Asks the servers for one hold. */
class ServerKeeper implements Keeper {
  readonly #taken: Taken = new Set();

  constructor(
    readonly attempt: Attempt,
    readonly route: Route,
    readonly ears: Ears,
    readonly loose: LooseEnds,
  ) {}

  get cuts(): number {
    return this.route.driver.cuts;
  }

  get where(): string {
    return this.route.where(routingKey(this.names));
  }

  get isClosed(): boolean {
    return this.route.isClosed;
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
  async #each(command: (name: string) => readonly string[] | undefined, attempt: number): Promise<boolean> {
    const send = (name: string) => this.route.send(name, () => command(name), attempt);
    const [only] = this.names;
    if (this.names.length === 1 && only !== undefined) return isOne(await send(only));
    return (await Promise.all(this.names.map(send))).every(isOne);
  }
}

const isOne = (reply: unknown): boolean => Number(reply) === 1;

/** How long a server may take to say who holds a lock. */
const HOLDER_MS = 2000;
const WAITING_CONNECTIONS = 16;
const PLACE_MS = 5000;
/** How long a question may take at most, and one attempt to ask it. */
const ASKED_MS = 8000;
const ANSWER_MS = 2000;

export class Locks extends Base {
  readonly #route: Route;
  readonly #ears: Ears;
  readonly #loose = new LooseEnds();
  readonly #context: Context;

  /** Takes a client of ioredis or node-redis that you have made, and that stays yours. */
  constructor(client: Client, options: LocksOptions = {}) {
    super(options, ["waitingConnections", "login"]);
    const waitingConnections = options.waitingConnections ?? WAITING_CONNECTIONS;
    checkCount("waitingConnections", waitingConnections);
    checkLogin(options.login);
    this.#route = new Route(driverOf(client, options.login), this.journal);
    this.#ears = new Ears(this.#route);
    this.#context = {
      route: this.#route,
      journal: this.journal,
      lines: new Lines(this.#route, waitingConnections),
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
    checkName(name);
    return new Lock(this, { names: [name], kind: "read" });
  }

  /** The lock of this name, to hold alone, beside no reader. */
  write(name: string): Lock {
    checkName(name);
    return new Lock(this, { names: [name], kind: "write" });
  }

  /** One of `limit` permits of this name. All who use the name must say the same limit. */
  semaphore(name: string, limit: number): Lock {
    checkName(name);
    checkCount("limit", limit, MOST_PERMITS);
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
    checkName(name);
    checkToken(token);
    const route = this.#route;
    const words = () => fenceCommand(name, token);
    let reply = await this.#asked(name, (attempt) => route.send(name, words, attempt));
    // A replica answers, too, and knows of no locks while it is synchronized.
    if (Number(reply) !== 1 && route.driver.server !== undefined) {
      reply = await awake(() => route.ofPrimary(name, words)).catch((error: unknown) => {
        if (isNotMe(error)) throw ownOf(error, route.where(name));
        return reply;
      });
    }
    if (Number(reply) !== 1) throw new Fenced(`the token ${token} is not that of a live hold of '${name}'`);
  }

  /** The names of all locks that this owner holds, on all primaries of a cluster. */
  async heldBy(owner: string): Promise<string[]> {
    checkOwner(owner);
    const replies = await this.#asked("", () => this.#route.driver.sendToAll(["LOCK.HELDBY", owner]));
    // A client of node-redis may give bytes in place of text.
    const rows = (replies as unknown[][]).flat() as [unknown, unknown][];
    return rows.filter(([, state]) => String(state) === "held").map(([name]) => String(name));
  }

  protected request(wanted: Wanted, lease: number, options: AcquireOptions, troubled?: Troubled) {
    const { owner = freshOwner(), wait, signal } = options;
    const { names, kind, limit } = wanted;
    const request: Request = { names, kind, limit, owner, isNamed: options.owner !== undefined, lease };
    const attempt = new Attempt(this.#context, request, wait, troubled);
    const keeper: Keeper = new ServerKeeper(attempt, this.#route, this.#ears, this.#loose);
    const granting: Promise<Grant> = attempt.run(signal);
    return { keeper, granting };
  }

  protected stopAttempts(error: Error): void {
    for (const attempt of [...this.#context.attempts]) attempt.stop(error);
  }

  protected closeConnections(): void {
    this.#context.lines.close();
    this.#ears.close();
    this.#route.close();
  }

  protected async holderOf(name: string): Promise<string | undefined> {
    const asking = this.#route.send(name, () => ["LOCK.INFO", name]);
    const info = await within(asking, now() + HOLDER_MS, () => new ConnectionFailed("no answer in time"));
    const [first] = fieldOf(info, "holders") as unknown[];
    return `${String(fieldOf(first, "owner"))} for ${Number(fieldOf(first, "held-ms")) / 1000} s`;
  }

  /** The reply. Asks again while no server answers, until the `timeout` of the locks is over, 8 s at most. */
  #asked<T>(key: string, ask: (attempt: number) => Promise<T>): Promise<T> {
    return awake(async () => {
      const route = this.#route;
      const until = now() + Math.min(this.timeout, ASKED_MS);
      for (let attempt = 0; ; attempt++) {
        let trouble: unknown;
        try {
          const late = () => new ConnectionFailed(`no reply from ${route.where(key)}; the client is ${route.driver.state}`);
          return await within(ask(attempt), Math.min(until, now() + ANSWER_MS), late);
        } catch (error) {
          const meaning = meaningOf(error, route.driver.server !== undefined);
          if (meaning !== "again" && !(meaning instanceof ConnectionFailed)) throw meaning;
          trouble = error;
        }
        if (!route.isClosed) await pause(Math.min(pauseBefore(attempt), Math.max(until - now(), 0)));
        if (now() >= until || route.isClosed) throw ownOf(trouble, route.where(key));
      }
    });
  }
}

/** A field of a reply, which is a map in RESP3 and an array in RESP2. */
function fieldOf(reply: unknown, field: string): unknown {
  if (Array.isArray(reply)) return reply[reply.findIndex((each) => String(each) === field) + 1];
  if (reply instanceof Map) return reply.get(field);
  return (reply as Record<string, unknown>)[field];
}
