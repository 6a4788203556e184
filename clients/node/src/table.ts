/** The locks of an in-process server, and its commands: the core of redislock/testing. */

import { now } from "./clock.js";
import { MODULE_VERSION_MIN } from "./journal.js";
import { Push, ReplyError } from "./resp.js";

/** One end of a connection. */
export interface Peer {
  /** True if the server reports changes of the keys that were read here. */
  tracks: boolean;
  send(reply: Answer): void;
}

/** A server's reply. An object is a map. */
export type Answer = string | number | null | ReplyError | Push | Answer[] | { [field: string]: Answer };

interface Hold {
  readonly owner: string;
  mode: string;
  readonly token: number;
  readonly granted: number;
  until: number;
}

/** A position in the queues of some locks; `peer` is the connection that is blocked (BLOCK). */
interface Wait {
  readonly owner: string;
  readonly mode: string;
  readonly names: readonly string[];
  readonly options: Options;
  since: number;
  readonly until: number;
  readonly peer?: Peer | undefined;
}

type Options = ReadonlyMap<string, number>;

/** The default of redislock.max-lease. */
const MOST_MS = 3_600_000;
const LATER = Symbol("later");
const sameSet = (one: readonly string[], other: readonly string[]) =>
  one.length === other.length && one.every((each) => other.includes(each));

/** The number of permits of a semaphore in this mode; empty for other modes. */
const limitOf = (mode: string): string => mode.split(" ")[1] ?? "";

class Lock {
  readonly holds = new Map<string, Hold>();
  queue: Wait[] = [];

  /** The holds of other owners, and the waits ahead of this owner's wait. */
  blockers(owner: string): (Hold | Wait)[] {
    const place = this.queue.findIndex((wait) => wait.owner === owner);
    const before = place < 0 ? this.queue : this.queue.slice(0, place);
    return [...[...this.holds.values()].filter((hold) => hold.owner !== owner), ...before];
  }

  /** Returns true if holders and earlier waiters leave room for this owner. */
  fits(owner: string, mode: string): boolean {
    const others = this.blockers(owner);
    if (limitOf(mode) !== "") return others.length < Number(limitOf(mode));
    return mode === "exclusive" ? others.length === 0 : others.every((other) => other.mode === "shared");
  }

  get entries(): (Hold | Wait)[] {
    return [...this.holds.values(), ...this.queue];
  }
}

export class Table {
  readonly #locks = new Map<string, Lock>();
  readonly #tracking = new Map<string, Set<Peer>>();
  #token = Date.now() * 1000;

  /** Executes a command, and sends the reply unless the request waits. */
  answer(peer: Peer, words: readonly string[]): void {
    this.tick();
    let reply: Answer | typeof LATER;
    try {
      reply = this.#do(peer, words);
    } catch (error) {
      reply = error instanceof ReplyError ? error : new ReplyError(`ERR ${String(error)}`);
    }
    if (reply !== LATER) peer.send(reply);
  }

  /** Ends the waits over this connection. */
  left(peer: Peer): void {
    for (const tracking of this.#tracking.values()) tracking.delete(peer);
    for (const lock of [...this.#locks.values()]) {
      for (const wait of lock.queue.filter((each) => each.peer === peer)) this.#leave(wait);
    }
    this.tick();
  }

  /** The next time at which a lease or a wait ends. */
  get nextDue(): number {
    const dues = [...this.#locks.values()].flatMap((lock) => lock.entries.map((each) => each.until));
    return Math.min(Number.POSITIVE_INFINITY, ...dues);
  }

  /** Ends all holds of a lock, as DEL does. */
  del(name: string): void {
    this.#locks.get(name)?.holds.clear();
    this.#changed(name);
  }

  /** Ends the leases and waits whose time is up. */
  tick(): void {
    const time = now();
    for (const [name, lock] of [...this.#locks]) {
      const over = [...lock.holds.values()].filter((hold) => hold.until <= time);
      for (const hold of over) lock.holds.delete(hold.owner);
      for (const wait of lock.queue.filter((each) => each.until <= time)) this.#leave(wait);
      if (over.length > 0) this.#changed(name);
      if (lock.entries.length === 0) this.#locks.delete(name);
    }
  }

  #do(peer: Peer, words: readonly string[]): Answer | typeof LATER {
    const [command = "", ...rest] = words;
    if (command === "HELLO") return { role: "master", proto: 3, modules: [{ name: "redislock", ver: MODULE_VERSION_MIN }] };
    if (["SELECT", "CLIENT", "PING"].includes(command)) {
      peer.tracks ||= rest.join(" ") === "TRACKING ON";
      return "OK";
    }
    const count = command === "LOCK.MACQUIRE" ? Number(rest.shift()) : 1;
    const names = rest.slice(0, count);
    const [name = ""] = names;
    if (command === "LOCK.FENCE") return this.#fence(peer, name, rest[1] === undefined ? undefined : Number(rest[1]));
    if (command === "LOCK.INFO") return this.#info(this.#locks.get(name));
    const owner = rest[count] ?? "";
    const options = optionsOf(rest.slice(count + 1));
    if ((options.get("PX") ?? 0) > MOST_MS) {
      throw new ReplyError(`ERR PX must be an integer from 1 to ${MOST_MS} (milliseconds)`);
    }
    if (command === "LOCK.ACQUIRE" || command === "LOCK.MACQUIRE") return this.#acquire(peer, names, owner, options);
    if (command === "LOCK.RELEASE") return this.#release(name, owner, options.get("TOKEN"));
    if (command !== "LOCK.RENEW" || options.has("RAISE")) throw new ReplyError(`ERR redislock/testing has no ${command}`);
    const hold = this.#holdOf(name, owner, options.get("TOKEN"));
    if (hold === undefined) return 0;
    hold.until = now() + (options.get("PX") ?? 0);
    this.#changed(name);
    return 1;
  }

  #acquire(peer: Peer, names: readonly string[], owner: string, options: Options): Answer | typeof LATER {
    const limit = options.get("LIMIT");
    const mode = options.has("SHARED") ? "shared" : limit === undefined ? "exclusive" : `limit ${limit}`;
    const locks = names.map((name) => this.#at(name));
    for (const other of locks.flatMap((lock) => lock.entries)) {
      if (limitOf(other.mode) === limitOf(mode)) continue;
      const kind = limitOf(other.mode) === "" ? "exclusive or SHARED" : `LIMIT ${limitOf(other.mode)}`;
      throw new ReplyError(`LOCKKIND this lock is ${kind} now; all its holders and waiters must use that kind`);
    }
    const held = locks.flatMap((lock) => lock.holds.get(owner) ?? []);
    if (held.length > 0) return this.#again(names, held, mode, options);
    const wait = options.get("QUEUE") ?? options.get("BLOCK");
    const its = locks.flatMap((lock) => lock.queue.filter((each) => each.owner === owner));
    const isAnother = its.some((each) => each.mode !== mode || !sameSet(each.names, names));
    // An owner that waits in another mode loses the position.
    if (isAnother && wait !== undefined) this.#dropWaits(names, owner);
    // A request that does not wait stays behind its owner's wait in another mode.
    if ((wait !== undefined || !isAnother) && locks.every((lock) => lock.fits(owner, mode))) {
      this.#dropWaits(names, owner);
      return this.#grant({ names, owner, mode, options });
    }
    if (wait === undefined) return null;
    const blocked = options.has("BLOCK") ? peer : undefined;
    const until = blocked !== undefined && wait === 0 ? Number.POSITIVE_INFINITY : now() + wait;
    const made: Wait = { owner, mode, names, options, since: now(), until, peer: blocked };
    this.#refuseDeadlock(made);
    this.#queue(made);
    return blocked === undefined ? null : LATER;
  }

  /** The same owner asks again: it gets the same token, and the longer lease. */
  #again(names: readonly string[], held: readonly Hold[], mode: string, options: Options): number {
    const [first] = held;
    const isOne = held.length === names.length && held.every((hold) => hold.token === first?.token && hold.mode === first.mode);
    // A writer may continue as a reader.
    const isLowered = names.length === 1 && first?.mode === "exclusive";
    if (first === undefined || !isOne || !(first.mode === mode || isLowered)) {
      const why = "is held by this owner already, but not in the requested way: release every key that this request names";
      throw new ReplyError(`LOCKHELD '${names[0]}' ${why}, then ask again`);
    }
    for (const hold of held) {
      hold.mode = mode;
      hold.until = Math.max(hold.until, now() + (options.get("PX") ?? 0));
    }
    for (const name of names) this.#changed(name);
    return first.token;
  }

  #grant({ names, owner, mode, options }: Pick<Wait, "names" | "owner" | "mode" | "options">): number {
    const token = ++this.#token;
    for (const name of names) {
      const until = now() + (options.get("PX") ?? 0);
      this.#at(name).holds.set(owner, { owner, mode, token, granted: now(), until });
    }
    for (const name of names) this.#changed(name);
    return token;
  }

  /** Begins a wait, or takes over the position that its owner has. */
  #queue(wait: Wait): void {
    const older = this.#waitsOf(wait.owner).find((each) => each.names.some((name) => wait.names.includes(name)));
    wait.since = older?.since ?? wait.since;
    older?.peer?.send(new ReplyError("UNBLOCKED a newer request of the same owner took over this place in the queue"));
    for (const name of wait.names) {
      const { queue } = this.#at(name);
      const place = queue.findIndex((each) => each.owner === wait.owner);
      queue.splice(place < 0 ? queue.length : place, place < 0 ? 0 : 1, wait);
    }
  }

  /** Refuses a wait that would never end, because the owners that it waits for wait for its owner. */
  #refuseDeadlock(wait: Wait): void {
    const chain = (each: Wait, seen: readonly string[]): string[] => {
      for (const name of each.names) {
        const lock = this.#at(name);
        if (limitOf(each.mode) !== "" || lock.fits(each.owner, each.mode)) continue;
        for (const other of lock.blockers(each.owner)) {
          const told = `'${each.owner}' waits for '${name}' and there for '${other.owner}'`;
          if (other.owner === wait.owner) return [told];
          const its = seen.includes(other.owner) ? [] : this.#waitsOf(other.owner);
          const rests = its.map((one) => chain(one, [...seen, other.owner]));
          // An owner continues once any of its waits ends.
          if (rests.length > 0 && rests.every((rest) => rest.length > 0)) return [told, ...(rests[0] ?? [])];
        }
      }
      return [];
    };
    const rest = this.#waitsOf(wait.owner).filter((one) => !sameSet(one.names, wait.names));
    const cycle = chain(wait, [wait.owner]);
    if (cycle.length > 0 && rest.every((one) => chain(one, [wait.owner]).length > 0)) {
      throw new ReplyError(`DEADLOCK this wait would never end: ${cycle.join(", ")}`);
    }
  }

  #release(name: string, owner: string, token: number | undefined): number {
    this.#dropWaits([name], owner);
    if (this.#holdOf(name, owner, token) === undefined) return 0;
    this.#locks.get(name)?.holds.delete(owner);
    this.#changed(name);
    return 1;
  }

  #fence(peer: Peer, name: string, token: number | undefined): number | null {
    if (peer.tracks) this.#tracking.set(name, (this.#tracking.get(name) ?? new Set()).add(peer));
    const tokens = [...(this.#locks.get(name)?.holds.values() ?? [])].map((hold) => hold.token);
    if (token !== undefined) return tokens.includes(token) ? 1 : 0;
    return tokens.length === 0 ? null : Math.max(...tokens);
  }

  #info(lock: Lock | undefined): Answer {
    const [first] = lock?.entries ?? [];
    if (lock === undefined || first === undefined) return null;
    const [kind = "", limit] = first.mode.split(" ");
    const since = (time: number) => Math.floor(now() - time);
    const holders = [...lock.holds.values()].slice(0, 10).map((hold) => ({
      owner: hold.owner,
      token: hold.token,
      "lease-left-ms": Math.ceil(hold.until - now()),
      "held-ms": since(hold.granted),
    }));
    const queue = lock.queue.slice(0, 10).map((wait) => ({ owner: wait.owner, "waited-ms": since(wait.since) }));
    const counts = { holds: lock.holds.size, waiters: lock.queue.length };
    return { kind, limit: limit === undefined ? null : Number(limit), holders, queue, ...counts };
  }

  #at(name: string): Lock {
    const lock = this.#locks.get(name) ?? new Lock();
    this.#locks.set(name, lock);
    return lock;
  }

  #holdOf(name: string, owner: string, token: number | undefined): Hold | undefined {
    const hold = this.#locks.get(name)?.holds.get(owner);
    return token === undefined || hold?.token === token ? hold : undefined;
  }

  #waitsOf(owner: string): Wait[] {
    return [...this.#locks.values()].flatMap((lock) => lock.queue.filter((wait) => wait.owner === owner));
  }

  #dropWaits(names: readonly string[], owner: string): void {
    for (const wait of names.flatMap((name) => this.#locks.get(name)?.queue ?? [])) {
      if (wait.owner === owner) this.#leave(wait);
    }
  }

  /** Ends a wait without a grant, which may admit others. */
  #leave(wait: Wait): void {
    this.#unqueue(wait);
    wait.peer?.send(null);
    for (const name of wait.names) this.#changed(name);
  }

  #unqueue(wait: Wait): void {
    for (const name of wait.names) {
      const lock = this.#locks.get(name);
      if (lock !== undefined) lock.queue = lock.queue.filter((each) => each !== wait);
    }
  }

  /** Grants to blocked requests whose turn it is, and notifies the clients that track this lock. */
  #changed(name: string): void {
    const tracking = this.#tracking.get(name) ?? [];
    this.#tracking.delete(name);
    for (const peer of tracking) peer.send(new Push(["invalidate", [name]]));
    for (const wait of this.#locks.get(name)?.queue ?? []) {
      const { peer } = wait;
      if (peer === undefined || !wait.names.every((each) => this.#at(each).fits(wait.owner, wait.mode))) continue;
      this.#unqueue(wait);
      peer.send(this.#grant(wait));
      return; // and has come here again
    }
  }
}

/** The options of a command, with their numbers. */
function optionsOf(words: readonly string[]): Options {
  const found = new Map<string, number>();
  for (let place = 0; place < words.length; place++) {
    const word = words[place] ?? "";
    found.set(word, word === "SHARED" ? 1 : Number(words[++place]));
  }
  return found;
}
