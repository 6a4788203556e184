/** One lock over independent servers: the owner that a majority of them has granted it to has the lock. */

import { randomUUID } from "node:crypto";
import { inspect } from "node:util";

import { type AcquireOptions, Base, type BaseOptions, type Call, type Wanted } from "./base.js";
import { deadlineOf, now } from "./clock.js";
import {
  acquireCommand,
  fenceCommand,
  freshOwner,
  isOne,
  type Request,
  releaseCommand,
  renewCommand,
  routingKey,
  tokenOf,
} from "./commands.js";
import type { Client } from "./driver.js";
import { Ears } from "./ears.js";
import {
  abortOf,
  ConnectionFailedError,
  isOverwritten,
  type LockError,
  LockTimeoutError,
  meaningOf,
  NotConfirmedError,
  ofLease,
  QuarantineError,
  QueueFullError,
} from "./errors.js";
import type { Grant, Keeper } from "./life.js";
import { quoted, textOf } from "./journal.js";
import { driverOf } from "./locks.js";
import { Route } from "./route.js";
import { pause } from "./scheduler.js";
import { onAbort } from "./signals.js";
import { Stop, within } from "./stop.js";

/** The time limit of one server's reply: much less than a lease, so that an unreachable server costs little. */
const answerTime = (lease: number): number => Math.min(Math.max(lease / 20, 50), 1000);
/** The upper bound of the random pause before attempts that collided are repeated. */
const PAUSE_MS = 200;

/** The bytes left to the program's owner, so that a UUID and the attempt's number fit after it. */
const LONGEST_BEGINNING = 200;

/** The beginning of an owner's name, shortened to leave room. */
function beginningOf(owner: string): string {
  let beginning = owner;
  while (Buffer.byteLength(beginning) > LONGEST_BEGINNING) beginning = beginning.slice(0, -1);
  return beginning;
}

interface Server {
  /** Its name in messages about a mix-up of two. */
  readonly label: string;
  readonly route: Route;
  readonly ears: Ears;
}

/** Resolves with true if at least `needed` of these turn out true, as soon as that is certain. */
function majorityOf(votes: readonly Promise<boolean>[], needed: number): Promise<boolean> {
  return new Promise((resolve) => {
    let yes = 0;
    let no = 0;
    const count = (vote: boolean) => {
      if (vote) yes++;
      else no++;
      if (yes >= needed) resolve(true);
      else if (no > votes.length - needed) resolve(false);
    };
    for (const vote of votes) vote.then(count, () => count(false));
  });
}

class MajorityKeeper implements Keeper {
  readonly #name: string;
  readonly #needed: number;

  /** `request` is that of the latest attempt: each has its own owner. */
  constructor(
    readonly servers: readonly Server[],
    public request: Request,
  ) {
    this.#name = routingKey(request.keys);
    this.#needed = Math.floor(servers.length / 2) + 1;
  }

  get names(): readonly string[] {
    return this.request.names;
  }

  get owner(): string {
    return this.request.owner;
  }

  get cuts(): number {
    return this.servers.reduce((sum, { route }) => sum + route.driver.cuts(), 0);
  }

  get where(): string {
    return addressesOf(this.servers);
  }

  get isClosed(): boolean {
    return isOutOfReach(this.servers);
  }

  get ticket(): undefined {
    return undefined;
  }

  renew(lease: number, token: number): Promise<boolean> {
    return this.#most(renewCommand(this.#name, this.owner, lease, token), lease);
  }

  release(): Promise<boolean> {
    return this.#most(releaseCommand(this.#name, this.owner), this.request.lease);
  }

  loosen(): () => void {
    return () => undefined;
  }

  listen(token: number, told: () => void): () => void {
    const gone = new Set<Server>();
    const stops = this.servers.map((server) => {
      const toldBy = () => {
        gone.add(server);
        if (gone.size > this.servers.length - this.#needed) told();
      };
      return server.ears.listen({ name: this.#name, token, told: toldBy });
    });
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** Asks a majority; resolves with true if it has the hold. */
  async #most(words: string[], lease: number): Promise<boolean> {
    const { servers } = this;
    let yes = 0;
    let no = 0;
    const troubles: unknown[] = [];
    const asking = servers.map((server) => ask(server, this.#name, words, lease));
    for (const vote of await Promise.allSettled(asking)) {
      if (vote.status === "fulfilled" && isOne(vote.value)) yes++;
      else if (vote.status === "fulfilled" || isOverwritten(meaningOf(vote.reason))) no++;
      else troubles.push(vote.reason);
    }
    if (yes >= this.#needed) return true;
    // Servers that did not answer may still hold it: then the deadline decides.
    if (no >= this.#needed) return false;
    const few = `too few of the servers ${this.where} answered for '${this.#name}'`;
    throw refusalOfMost(troubles, servers.length) ?? new ConnectionFailedError(few, troubles.at(-1));
  }
}

function ask({ route }: Server, name: string, words: string[], lease: number): Promise<unknown> {
  const limit = answerTime(lease);
  const late = () => new ConnectionFailedError(`no reply from ${route.where(name)} for ${limit / 1000} s`);
  // Does not bypass a client that is only silent: a release must not overtake the request that it ends.
  const asking = route.isClosed ? route.around(name, () => words) : route.over(name, () => words);
  return within(asking, now() + limit, late);
}

const addressesOf = (servers: readonly Server[]): string => servers.map(({ route }) => route.where("")).join(", ");

/** Returns true if the user has closed clients and the others are no majority. */
const isOutOfReach = (servers: readonly Server[]): boolean =>
  servers.filter(({ route }) => route.isClosed).length > servers.length / 2;

/**
 * Exclusive locks by majority (docs/concepts/redlock.md), with one token that only increases. There is no queue: a
 * caller that does not get the lock tries again after a random pause.
 */
export class Redlock extends Base {
  readonly #servers: readonly Server[];
  readonly #needed: number;
  readonly #stops = new Set<Stop>();

  /** Takes one client for each server: an odd number, at least three. */
  constructor(clients: readonly Client[], options: BaseOptions = {}) {
    super(options);
    if (!(clients instanceof Array)) throw new TypeError(`an array of clients is needed: ${inspect(clients, { depth: 0 })}`);
    if (clients.length < 3 || clients.length % 2 === 0) {
      throw new TypeError(`an odd number of servers is needed, three or more: ${clients.length}`);
    }
    const drivers = clients.map((client) => driverOf(client));
    refuseTwice(drivers.map(({ server }) => server));
    this.#servers = drivers.map((driver, number) => {
      const address = driver.server === undefined ? "" : ` (${driver.server})`;
      const route = new Route(driver, this.journal);
      return { label: `clients[${number}]${address}`, route, ears: new Ears(route) };
    });
    this.#needed = Math.floor(clients.length / 2) + 1;
  }

  protected request(wanted: Wanted, lease: number, options: AcquireOptions, call: Call) {
    // A release names no token here, since servers may have another one. It must not end the owner's next hold.
    const owner = options.owner === undefined ? freshOwner(this.label) : `${beginningOf(options.owner)}:${randomUUID()}`;
    const keys = wanted.names.map((name) => this.prefix + name);
    const request: Request = { ...wanted, keys, owner, isNamed: false, lease };
    const keeper = new MajorityKeeper(this.#servers, request);
    const granting = this.#untilGranted(keeper, options, call);
    return { keeper, granting };
  }

  protected override checkMinHold(): never {
    throw new TypeError("minHold is not for independent servers");
  }

  protected stopAttempts(error: Error): void {
    for (const stop of [...this.#stops]) stop.because(error);
  }

  protected closeConnections(): void {
    for (const { ears, route } of this.#servers) {
      ears.close();
      route.close();
    }
  }

  /** A majority holds the lock, and each server knows only its own part. */
  protected async holderOf(): Promise<undefined> {
    return undefined;
  }

  async #untilGranted(
    keeper: MajorityKeeper,
    { wait, signal }: AcquireOptions,
    call: Call,
  ): Promise<Grant> {
    const stop = new Stop();
    if (signal?.aborted) throw abortOf(signal);
    const detach = signal && onAbort(signal, () => stop.because(abortOf(signal)));
    this.#stops.add(stop);
    let granted = false;
    try {
      const grant = await this.#attempts(keeper, wait, stop, call);
      granted = true;
      return grant;
    } finally {
      this.#stops.delete(stop);
      detach?.();
      if (!granted) this.#giveUp(keeper.request);
    }
  }

  async #attempts(
    keeper: MajorityKeeper,
    wait: number | undefined,
    stop: Stop,
    { began, troubled, vigil }: Call,
  ): Promise<Grant> {
    const until = began + (wait ?? Number.POSITIVE_INFINITY);
    const { names, owner } = keeper.request;
    let heardAt = began;
    for (let number = 0; ; number++) {
      // The remains of an earlier attempt, or its late release, must not touch this one.
      if (isOutOfReach(this.#servers)) {
        throw new ConnectionFailedError(`could not acquire '${names[0] ?? ""}': most clients are closed, or were never connected`);
      }
      if (number > 0) keeper.request = { ...keeper.request, owner: `${owner}:${number}` };
      const outcome = await stop.unless(this.#attempt(keeper.request));
      if ("token" in outcome) return outcome;
      this.#giveUp(keeper.request);
      const refusal = refusalOfMost(
        outcome.troubles.filter((trouble) => !passes(trouble)),
        this.#servers.length,
      );
      if (refusal !== undefined) throw ofLease(refusal, keeper.request.lease);
      if (now() >= until) throw this.#late(names, outcome);
      if (outcome.answered >= this.#needed) heardAt = now();
      if (now() - heardAt >= this.serverTimeout) {
        if (troubled === undefined && wait === undefined) throw this.#late(names, outcome);
        heardAt = Number.POSITIVE_INFINITY; // it is told once
        troubled?.(this.#late(names, outcome));
      }
      if (number === 0) {
        vigil?.start();
        this.waits(names, owner);
      }
      await stop.unless(pause(Math.min(Math.random() * PAUSE_MS, Math.max(until - now(), 0))));
    }
  }

  /** Runs both rounds: collects a majority's grants, then gives all of them one token. */
  async #attempt(request: Request): Promise<Grant | Vote> {
    const { owner, lease } = request;
    const name = routingKey(request.keys);
    const sentAt = now();
    const vote: Vote = { answered: 0, troubles: [] };
    const tokens = await Promise.all(
      this.#servers.map(async (server) => {
        try {
          const token = tokenOf(await ask(server, name, acquireCommand(request), lease));
          vote.answered++;
          return { server, token };
        } catch (error) {
          vote.troubles.push(error);
          return { server, token: undefined };
        }
      }),
    );
    const raises = new Map<Server, unknown>();
    const granted = await this.#withoutTwice(
      request,
      raises,
      tokens.flatMap(({ server, token }) => (token === undefined ? [] : [{ server, token }])),
    );
    granted.sort((one, other) => other.token - one.token);
    // A server whose clock is ahead of all others has a token that they refuse. Then it is left out.
    for (; granted.length >= this.#needed; granted.shift()) {
      const token = granted[0]?.token ?? 0;
      const words = renewCommand(name, owner, lease, token, "RAISE");
      const votes = granted.map(async ({ server }) => {
        try {
          return Number(await ask(server, name, words, lease)) === 1;
        } catch (error) {
          raises.set(server, error);
          throw error;
        }
      });
      if (await majorityOf(votes, this.#needed)) {
        return now() < deadlineOf(sentAt, lease) ? { token, sentAt } : vote;
      }
    }
    // A server that refuses to raise a token casts no vote that another owner has the lock.
    vote.answered -= raises.size;
    vote.troubles.push(...raises.values());
    return vote;
  }

  /**
   * Throws if two of these are one server under two names, which would be a majority of its own. One server gives one
   * owner one token, but different servers may do so by chance. So one of the two gets the next token: if the other one
   * knows it, they are one server. A server that does not answer that is left out, and `refused` has its error.
   */
  async #withoutTwice(
    { keys, owner, lease }: Request,
    refused: Map<Server, unknown>,
    granted: readonly Granted[],
  ): Promise<Granted[]> {
    const name = routingKey(keys);
    const kept: Granted[] = [];
    let rest = [...granted];
    for (let first = rest.shift(); first !== undefined; first = rest.shift()) {
      const { server, token } = first;
      const same = rest.filter((other) => other.token === token);
      if (same.length === 0) {
        kept.push(first);
        continue;
      }
      const next = token + 1;
      const raised = await ask(server, name, renewCommand(name, owner, lease, next, "RAISE"), lease).catch((error: unknown) => {
        refused.set(server, error);
      });
      if (Number(raised) !== 1) continue;
      kept.push({ server, token: next });
      const known = await Promise.all(
        same.map(async (other) => {
          const reply = await ask(other.server, name, fenceCommand(name, next), lease).catch(() => undefined);
          return { other, reply: reply === undefined ? undefined : Number(reply) };
        }),
      );
      const twin = known.find(({ reply }) => reply === 1)?.other.server;
      if (twin !== undefined) {
        throw new TypeError(`independent servers must differ: ${server.label} and ${twin.label} are one server`);
      }
      const silent = known.filter(({ reply }) => reply === undefined).map(({ other }) => other);
      rest = rest.filter((other) => !silent.includes(other));
    }
    return kept;
  }

  /** The reason why there was no lock in time: another owner has it, if a majority has answered. */
  #late(names: readonly string[], { answered, troubles }: Vote): Error {
    const what = `could not acquire ${quoted(names)} in time`;
    const last = troubles.at(-1);
    if (answered >= this.#needed) return new LockTimeoutError(what, last);
    const why = last === undefined ? "" : `: ${textOf(last)}`;
    const few = `${what}: too few of the servers ${addressesOf(this.#servers)} answered${why}`;
    return refusalOfMost(troubles, this.#servers.length) ?? new ConnectionFailedError(few, last);
  }

  /** Releases on all servers, including those that did not answer. */
  #giveUp({ keys, owner, lease }: Request): void {
    const name = routingKey(keys);
    for (const server of this.#servers) this.background(ask(server, name, releaseCommand(name, owner), lease));
  }
}

/** A server that has granted the lock, and its token. */
interface Granted {
  readonly server: Server;
  readonly token: number;
}

/**
 * The votes of a failed attempt: how many servers said that the lock is taken or granted it, and what the others said.
 */
interface Vote {
  answered: number;
  readonly troubles: unknown[];
}

/** Returns the server's refusal, if this is one. */
function refusalOf(trouble: unknown): LockError | undefined {
  const meaning = meaningOf(trouble);
  return meaning === "again" || meaning instanceof ConnectionFailedError ? undefined : meaning;
}

/** Returns the first refusal, if the servers that do not refuse are no majority. */
function refusalOfMost(troubles: readonly unknown[], servers: number): LockError | undefined {
  const refusals = troubles.map(refusalOf).filter((refusal) => refusal !== undefined);
  return refusals.length >= servers / 2 ? refusals[0] : undefined;
}

/** Returns true if the trouble may pass soon. */
function passes(trouble: unknown): boolean {
  const refusal = refusalOf(trouble);
  return [QuarantineError, NotConfirmedError, QueueFullError].some((Kind) => refusal instanceof Kind);
}

/** Refuses a server that is named twice: it would be a majority of its own. */
function refuseTwice(servers: readonly (string | undefined)[]): void {
  const twice = servers.find((server, index) => server !== undefined && servers.indexOf(server) !== index);
  if (twice !== undefined) throw new TypeError(`independent servers must differ: ${twice} is named twice`);
}
