/** Locks on one server, a primary that Sentinel watches, or a cluster. */

import { inspect } from "node:util";

import { Attempt, type Context } from "./acquire.js";
import { Admission } from "./admission.js";
import { type AcquireOptions, Base, type BaseOptions, type Call, Lock, type Wanted } from "./base.js";
import { now, pauseBefore } from "./clock.js";
import { fenceCommand, freshOwner, isOne, type Kind, type Request, releaseCommand, renewCommand, routingKey } from "./commands.js";
import type { Client, Driver, IoredisClient, NodeRedisClient } from "./driver.js";
import { Ears } from "./ears.js";
import {
  codeOf,
  ConnectionFailedError,
  FencedError,
  isOverwritten,
  LockLostError,
  meaningOf,
  ModuleMissingError,
  ownOf,
  ServerRefusedError,
} from "./errors.js";
import type { Hold } from "./hold.js";
import type { Grant, Keeper } from "./life.js";
import { overIoredis } from "./ioredis.js";
import { type Endpoint, refuseReplica } from "./line.js";
import { LineUp } from "./line-up.js";
import { Lines } from "./lines.js";
import { LooseEnds, Taken } from "./loose.js";
import { overNodeRedis } from "./node-redis.js";
import { infoOf, type LockInfo, shown, versionOf } from "./info.js";
import { quoted } from "./journal.js";
import { isNotMe, Route } from "./route.js";
import { checkCount, checkLease, checkLogin, checkName, checkNames, checkToken, MOST_PERMITS } from "./rules.js";
import { awake, pause } from "./scheduler.js";
import { within } from "./stop.js";
import { readTicket, ticketOf } from "./ticket.js";

export interface LocksOptions extends BaseOptions {
  /**
   * The number of connections that may wait for several locks at once (`many`, `readMany`): a whole number, 1 or more.
   * Other requests wait over a shared connection. Default: 16.
   */
  readonly waitingConnections?: number | undefined;
  /**
   * The number of requests of these locks that may stand in the server's queue of one lock: a whole number, 1 or more.
   * Others wait in the process until there is room, except those whose `owner` the program names. Default: 16.
   */
  readonly maxQueuedPerLock?: number | undefined;
  /** The login at the primary. Needed only for node-redis's Sentinel client, which does not expose it. */
  readonly login?: Pick<Endpoint, "username" | "password" | "database" | "tls"> | undefined;
}

/** Returns the driver for a client. An object that only resembles a client would fail later, in each request. */
export function driverOf(client: Client, login: Endpoint = {}): Driver {
  if (client instanceof Object && "redislockDriver" in client) return client.redislockDriver;
  const { call, status, sendCommand, connect, isOpen } = (client ?? {}) as unknown as Record<string, unknown>;
  if (typeof call === "function" && typeof status === "string") return overIoredis(client as IoredisClient);
  if (typeof client === "object" && "totalClients" in client) {
    // Requests over several connections overtake each other, and a pool does not expose its server's address.
    throw new TypeError("a client of node-redis is needed, not a pool of them: many tasks can use one client");
  }
  if (typeof sendCommand === "function" && typeof connect === "function" && typeof isOpen === "boolean") {
    return overNodeRedis(client as NodeRedisClient, login);
  }
  const hint = "as new Redis() or createClient() gives it, not legacy() or a pipeline of it";
  throw new TypeError(`a client of ioredis or node-redis is needed, ${hint}: ${inspect(client, { depth: 0 })}`);
}

/** Sends the requests of one hold to the servers. */
class ServerKeeper implements Keeper {
  readonly #taken = new Taken();

  constructor(
    readonly request: Request,
    readonly route: Route,
    readonly ears: Ears,
    readonly loose: LooseEnds,
  ) {}

  get cuts(): number {
    return this.route.driver.cuts();
  }

  get where(): string {
    return this.route.where(routingKey(this.request.keys));
  }

  get isClosed(): boolean {
    return this.route.isClosed;
  }

  get names(): readonly string[] {
    return this.request.names;
  }

  get owner(): string {
    return this.request.owner;
  }

  get ticket(): (token: number) => string {
    return (token) => ticketOf(this.request, token);
  }

  renew(lease: number, token: number, attempt: number): Promise<boolean> {
    return this.#each((key) => renewCommand(key, this.owner, lease, token), attempt).then(isOne);
  }

  release(token: number, attempt: number, rest: number): Promise<unknown> {
    return this.#each((key) => {
      if (attempt > 0 && this.#taken.has(key)) return undefined;
      return rest > 0 ? renewCommand(key, this.owner, rest, token) : releaseCommand(key, this.owner, token);
    }, attempt);
  }

  loosen(): () => void {
    return this.loose.add(this.owner, this.#taken);
  }

  listen(token: number, told: () => void): () => void {
    const stops = this.request.keys.map((name) => this.ears.listen({ name, token, told }));
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** Sends a command for each key, if there is one by then. Resolves with 1 or true if all were answered with 1. */
  #each(command: (key: string) => readonly string[] | undefined, attempt: number): Promise<unknown> {
    const { keys } = this.request;
    const send = (key: string) => this.route.send(key, () => command(key), attempt);
    const [only] = keys;
    if (keys.length === 1 && only !== undefined) return send(only);
    return Promise.all(keys.map(send)).then((replies) => replies.every(isOne));
  }
}

/** The time limit for a server to say who holds a lock. */
const HOLDER_MS = 2000;
const WAITING = 16;
const PLACE_MS = 5000;
/** The time limit of a query. */
const ASKED_MS = 2000;

export class Locks extends Base {
  readonly #route: Route;
  readonly #ears: Ears;
  readonly #loose = new LooseEnds();
  readonly #context: Context;

  /** Takes an ioredis or node-redis client that you have made. It remains yours to close. */
  constructor(client: Client, options: LocksOptions = {}) {
    super(options, ["waitingConnections", "maxQueuedPerLock", "login"]);
    const { waitingConnections = WAITING, maxQueuedPerLock = WAITING } = options;
    checkCount("waitingConnections", waitingConnections);
    checkCount("maxQueuedPerLock", maxQueuedPerLock);
    checkLogin(options.login);
    this.#route = new Route(driverOf(client, options.login), this.journal);
    this.#ears = new Ears(this.#route);
    this.#context = {
      route: this.#route,
      journal: this.journal,
      lines: new Lines(this.#route, waitingConnections),
      lineUp: new LineUp(this.#ears),
      admission: new Admission(maxQueuedPerLock),
      serverTimeout: this.serverTimeout,
      attempts: new Set(),
      loose: this.#loose,
      waits: ({ names, owner }) => this.waits(names, owner),
      holds: (owner, token) => this.holds(owner, token),
      begins: this.begins,
      background: (work) => this.background(work),
      most: { queue: PLACE_MS, block: Number.POSITIVE_INFINITY },
    };
  }

  /** The lock of this name, to hold together with other readers. */
  read(name: string): Lock {
    checkName(name);
    return new Lock(this, { names: [name], kind: "read" });
  }

  /** The lock of this name, to hold alone, without any reader. */
  write(name: string): Lock {
    checkName(name);
    return new Lock(this, { names: [name], kind: "write" });
  }

  /** One of `limit` permits of this name. All users of the name must give the same limit. */
  semaphore(name: string, limit: number): Lock {
    checkName(name);
    checkCount("limit", limit, MOST_PERMITS);
    return new Lock(this, { names: [name], kind: "semaphore", limit });
  }

  /** All of these locks or none, with one token. In a cluster, all must be in one slot. */
  many(names: readonly string[]): Lock {
    return this.#several("many", names, "exclusive");
  }

  /** All of these locks or none, with one token, each shared with other readers. */
  readMany(names: readonly string[]): Lock {
    return this.#several("readMany", names, "read");
  }

  /** Throws `FencedError` unless the token is that of a live hold of the lock. */
  async checkToken(name: string, token: number): Promise<void> {
    checkName(name);
    checkToken(token);
    const reply = await this.#truth(name, (key) => fenceCommand(key, token), (answer) => !isOne(answer));
    if (!isOne(reply)) throw new FencedError(`the token ${token} is not that of a live hold of '${name}'`);
  }

  /**
   * Adopts a hold that another process has detached. `ticket` is the result of `hold.detach()` there, in this library
   * or in the one for Python. Its names have no prefix. Rejects with `LockLostError` if the lease has expired
   * meanwhile. A ticket is for one process: the server cannot tell two adopters apart.
   */
  async adopt(ticket: string, lease = this.lease): Promise<Hold> {
    const { names, kind, limit, owner, token } = readTicket(ticket);
    checkLease(lease);
    this.checkOpen();
    const keys = names.map((name) => this.prefix + name);
    const request: Request = { names, keys, kind, limit, owner, isNamed: true, lease };
    const keeper = new ServerKeeper(request, this.#route, this.#ears, this.#loose);
    return awake(async () => {
      const renewing = this.#asked(routingKey(keys), async (attempt) => {
        const sentAt = now();
        return (await keeper.renew(lease, token, attempt)) ? sentAt : undefined;
      });
      const sentAt = await renewing.catch((error: unknown) => {
        if (isOverwritten(meaningOf(error))) return undefined;
        throw error;
      });
      if (sentAt === undefined) throw new LockLostError(`lost ${quoted(names)}: it had ended before it was adopted`, "renewal");
      const terms = { first: lease, lease, renew: true, minHold: undefined, maxHold: undefined };
      return this.begin(keeper, { token, sentAt }, terms);
    });
  }

  /** Returns the holders of the lock and its waiters; null if there are none. */
  async info(name: string): Promise<LockInfo | null> {
    checkName(name);
    const reply = await this.#truth(name, (key) => ["LOCK.INFO", key], (answer) => answer === null);
    return reply === null ? null : infoOf(reply);
  }

  /**
   * Resolves with the module's version, such as "0.3.0", if a lock could be acquired now; otherwise rejects as
   * `acquire` does.
   */
  async ping(): Promise<string> {
    const key = `${this.prefix}redislock:ping`;
    const version = versionOf(await this.#asked(key, (attempt) => this.#greeted(key, attempt)));
    if (version === undefined) throw new ModuleMissingError("the server lacks the module redislock");
    return shown(version);
  }

  protected request(wanted: Wanted, lease: number, options: AcquireOptions, call: Call) {
    const { owner = freshOwner(this.label), wait, signal } = options;
    const { names, kind, limit } = wanted;
    const keys = names.map((name) => this.prefix + name);
    const request: Request = { names, keys, kind, limit, owner, isNamed: options.owner !== undefined, lease };
    const attempt = new Attempt(this.#context, request, wait, call);
    const keeper: Keeper = new ServerKeeper(request, this.#route, this.#ears, this.#loose);
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
    const key = this.prefix + name;
    const asking = this.#route.send(key, () => ["LOCK.INFO", key]);
    const reply = await within(asking, now() + HOLDER_MS, () => new ConnectionFailedError("no answer in time"));
    const [first] = reply === null ? [] : infoOf(reply).holders;
    return first && `${first.owner} for ${first.heldMs / 1000} s`;
  }

  #several(what: string, names: readonly string[], kind: Kind): Lock {
    checkNames(names);
    if (names.length === 0) throw new TypeError(`${what} needs a name`);
    return new Lock(this, { names: [...names], kind });
  }

  /** Returns a primary's reply to HELLO, if it answers a read of this lock right after it. */
  async #greeted(key: string, attempt: number): Promise<unknown> {
    const { driver } = this.#route;
    const commands = [["HELLO"], ["LOCK.FENCE", key]];
    const [hello, read] = await Promise.allSettled(commands.map((words) => this.#route.send(key, () => words, attempt)));
    if (hello?.status !== "fulfilled") throw hello?.reason;
    try {
      refuseReplica(hello.value, driver.where(key));
    } catch (error) {
      driver.stale();
      throw error;
    }
    if (read?.status === "rejected") {
      const { message } = read.reason as Error;
      if (codeOf(message) === "NOPERM") throw new ServerRefusedError(`${message} (LOCK.FENCE)`, read.reason);
      // Another node has this name, and this node is healthy.
      if (driver.server === undefined || codeOf(message) !== "MOVED") throw read.reason;
    }
    return hello.value;
  }

  /** Returns the reply. A replica that is synchronizing replies that it knows no locks: then a primary is asked. */
  async #truth(name: string, words: (key: string) => string[], isNothing: (reply: unknown) => boolean): Promise<unknown> {
    const route = this.#route;
    const key = this.prefix + name;
    const command = () => words(key);
    const reply = await this.#asked(key, (attempt) => route.send(key, command, attempt));
    if (!isNothing(reply) || route.driver.server === undefined) return reply;
    return awake(() => route.ofPrimary(key, command)).catch((error: unknown) => {
      if (isNotMe(error)) throw ownOf(error, route.where(key));
      return reply;
    });
  }

  /** Returns the reply. Retries while no server answers, up to the `serverTimeout` of the locks, at most 2 s. */
  #asked<T>(key: string, ask: (attempt: number) => Promise<T>): Promise<T> {
    return awake(async () => {
      const route = this.#route;
      const until = now() + Math.min(this.serverTimeout, ASKED_MS);
      /** Earlier requests, whose replies count if they still arrive. */
      const earlier: Promise<T>[] = [];
      let trouble: Error | undefined;
      for (let attempt = 0; ; attempt++) {
        const asking = ask(attempt);
        const limit = attempt === 0 ? Math.min(until, now() + route.patience) : until;
        const silence = () => `no reply from ${route.where(key)}; the client is ${route.driver.state}`;
        try {
          return await within(Promise.race([asking, ...earlier]), limit, () => trouble ?? new ConnectionFailedError(silence()));
        } catch (error) {
          const meaning = meaningOf(error, route.driver.server !== undefined);
          if (meaning !== "again" && !(meaning instanceof ConnectionFailedError)) throw meaning;
          trouble = error as Error;
          earlier.push(asking.catch(() => new Promise(() => undefined)));
        }
        if (!route.isClosed) await pause(Math.min(pauseBefore(attempt), Math.max(until - now(), 0)));
        if (now() >= until || route.isClosed) throw ownOf(trouble, route.where(key));
      }
    });
  }
}
