/** What locks on one server (or group) and locks over independent servers have in common. */

import { now } from "./clock.js";
import type { Kind } from "./commands.js";
import { Cancelled, isAbort, LockLost, LockTimeout } from "./errors.js";
import { type Grant, Hold, type Keeper, type Life, lifeOf, type Terms, type Told } from "./hold.js";
import { checkLeader, Leader, type LeaderOptions } from "./leader.js";
import { checked, checkHooks, checkLease, checkNames, checkOptions, checkOwner } from "./rules.js";
import { scheduler } from "./scheduler.js";

/** What a program may want to count. All are called synchronously; what they throw or reject is ignored. */
export interface Hooks {
  /** A lock was granted. `waitedMs`: for how many milliseconds the request had waited. */
  granted?(event: { names: readonly string[]; owner: string; token: number; waitedMs: number }): void;
  /** A request began to wait in line. */
  waiting?(event: { names: readonly string[]; owner: string }): void;
  /** A lock was not to be had in time. */
  timedOut?(event: { names: readonly string[]; owner: string; waitedMs: number }): void;
  /** A hold was lost. */
  lost?(event: { hold: Hold; error: LockLost }): void;
  /** A hold was given up by its holder. */
  released?(event: { hold: Hold; heldMs: number }): void;
  /** A hold was collected, though it was not given up: it is renewed no more, and ends with its lease. */
  forgotten?(event: { names: readonly string[]; owner: string; token: number }): void;
}

export interface BaseOptions {
  /** The lease in milliseconds: from 100 to the server's `redislock.max-lease`. Default: 30,000. */
  readonly lease?: number | undefined;
  /**
   * For how many milliseconds a server may be out of reach before a request that does not wait fails: 1 or more.
   * Default: 5,000.
   */
  readonly timeout?: number | undefined;
  readonly hooks?: Hooks | undefined;
}

export interface AcquireOptions {
  /**
   * How many milliseconds the server holds the lock unless it is renewed: from 100 to the server's
   * `redislock.max-lease`, an hour by default, or to its quarantine if that is shorter. The server refuses a longer
   * one (`Refused`).
   */
  readonly lease?: number | undefined;
  /** How long to wait for the lock, in milliseconds. 0: not at all. Default: without end. */
  readonly wait?: number | undefined;
  /** Cancels the request. `using` also hands it to the body, by `hold.signal`. */
  readonly signal?: AbortSignal | undefined;
  /** False leaves the lease to its end. Default: true. */
  readonly renew?: boolean | undefined;
  /** The longest hold, in milliseconds: it is renewed no more after that. Default: without end. */
  readonly longest?: number | undefined;
  /** An owner of your own, 1 to 256 bytes, but not `*`. Default: a fresh one, as host:pid:uuid. */
  readonly owner?: string | undefined;
}

/** What the body of `using` may use of its hold. */
export type Body<T> = (hold: Hold) => Promise<T> | T;

/** Called once, when no server has answered a waiting request for the time after which one that does not wait fails. */
export type Troubled = (error: Error) => void;

/** What is wanted. */
export interface Wanted {
  readonly names: readonly string[];
  readonly kind: Kind;
  readonly limit?: number | undefined;
}

/** A lock that can be taken any number of times. */
export class Lock {
  readonly #locks: Base;
  readonly #wanted: Wanted;
  /** @internal */
  constructor(locks: Base, wanted: Wanted) {
    this.#locks = locks;
    this.#wanted = wanted;
  }

  /** Takes the lock, which stays held until `release()` of the hold, or the end of an `await using` block. */
  acquire(options: AcquireOptions = {}): Promise<Hold> {
    return this.#locks.take(this.#wanted, options);
  }

  /**
   * Takes the lock, runs the body and gives the lock up, whatever the body does. If the lock is lost meanwhile,
   * `hold.signal` is aborted, and the call ends in `LockLost` as soon as the body has ended.
   */
  using<T>(body: Body<T>): Promise<T>;
  using<T>(options: AcquireOptions, body: Body<T>): Promise<T>;
  using<T>(first: AcquireOptions | Body<T>, second?: Body<T>): Promise<T> {
    return this.run(first, second);
  }

  /** @internal Takes the lock, and tells of each time for which no server answers. */
  stand(options: AcquireOptions, troubled: Troubled): Promise<Hold> {
    return this.#locks.take(this.#wanted, options, troubled);
  }

  /** @internal */
  async run<T>(first: AcquireOptions | Body<T>, second?: Body<T>): Promise<T> {
    const [options, body] = typeof first === "function" ? [{}, first] : [first, second];
    if (typeof first === "function" && second !== undefined) {
      throw new TypeError("using takes its options before its body");
    }
    if (typeof body !== "function") throw new TypeError("using needs a body");
    const hold = await this.acquire(options);
    hold.keep();
    const detach = options.signal === undefined ? undefined : hold.follow(options.signal);
    let outcome: { value: T } | { error: unknown };
    try {
      outcome = { value: await body(hold) };
    } catch (error) {
      outcome = { error };
    }
    detach?.();
    await hold.letGo();
    if ("value" in outcome) {
      if (hold.loss !== undefined) throw hold.loss;
      return outcome.value;
    }
    throw reasonOf(outcome.error, hold);
  }
}

/** What comes out of a body that has thrown: its own error, or the loss that has ended it. */
function reasonOf(error: unknown, hold: Hold): unknown {
  const { loss } = hold;
  if (loss === undefined || error === loss) return error;
  return isAbort(error) ? new LockLost(loss.message, loss.reason, error) : error;
}

const BASE_OPTIONS = ["lease", "timeout", "hooks"];
const OPTIONS = ["lease", "wait", "signal", "renew", "longest", "owner"];
const LEASE_MS = 30_000;
const TIMEOUT_MS = 5000;
/** How long close() waits for what goes on in the background. */
const CLOSE_MS = 3000;

export abstract class Base implements AsyncDisposable {
  protected readonly lease: number;
  protected readonly timeout: number;
  readonly #hooks: Hooks;
  readonly #lives = new Set<Life>();
  readonly #leaders = new Set<Leader>();
  readonly #background = new Set<Promise<unknown>>();
  readonly #told: Told;
  #closed = false;

  /** `more` are the options that it has beside those of all locks. */
  protected constructor(options: BaseOptions, more: readonly string[] = []) {
    checkOptions(options, [...BASE_OPTIONS, ...more]);
    this.lease = options.lease ?? LEASE_MS;
    this.timeout = options.timeout ?? TIMEOUT_MS;
    this.#hooks = options.hooks ?? {};
    checkLease(this.lease);
    checked("timeout", this.timeout, 1);
    checkHooks(this.#hooks);
    this.#told = {
      lost: (hold, error) => {
        this.#lives.delete(lifeOf(hold));
        this.#call(() => this.#hooks.lost?.({ hold, error }));
      },
      released: (hold) => {
        this.#lives.delete(lifeOf(hold));
        this.#call(() => this.#hooks.released?.({ hold, heldMs: performance.now() - hold.heldSince }));
      },
      forgotten: (life) => this.#forgotten(life),
      background: (work) => this.background(work),
    };
  }

  /** The exclusive lock of this name. */
  lock(name: string): Lock {
    return new Lock(this, { names: [name], kind: "exclusive" });
  }

  /** Takes the exclusive lock of this name. */
  acquire(name: string, options: AcquireOptions = {}): Promise<Hold> {
    return this.lock(name).acquire(options);
  }

  /** Takes the exclusive lock of this name for as long as the body runs: see `Lock.using`. */
  using<T>(name: string, body: Body<T>): Promise<T>;
  using<T>(name: string, options: AcquireOptions, body: Body<T>): Promise<T>;
  using<T>(name: string, first: AcquireOptions | Body<T>, second?: Body<T>): Promise<T> {
    return this.lock(name).run(first, second);
  }

  /**
   * Stands for election: of all that lead this name, one leads at any time. Throws a `TypeError` if the name or an
   * option is wrong.
   */
  leader(name: string, options: LeaderOptions): Leader {
    checkNames([name]);
    checkLeader(options);
    const leader = new Leader(this.lock(name), options, () => this.#leaders.delete(leader));
    this.#leaders.add(leader);
    return leader;
  }

  /**
   * Gives up all holds and requests, and closes the library's own connections. Your client stays open. A hold that was
   * still held is lost, with the reason "close".
   */
  async close(): Promise<void> {
    this.#closed = true;
    this.stopAttempts(new Cancelled("the locks were closed"));
    const holds: Hold[] = [];
    for (const life of this.#lives) {
      const { hold } = life;
      if (hold === undefined) this.background(life.giveUp(0));
      else holds.push(hold);
    }
    await Promise.all(holds.map((hold) => hold.close()));
    await Promise.all([...this.#leaders].map((leader) => leader.resign()));
    const background = Promise.allSettled(this.#background);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, CLOSE_MS);
    });
    await Promise.race([background, late]);
    clearTimeout(timer);
    this.closeConnections();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal */
  async take(wanted: Wanted, options: AcquireOptions, troubled: Troubled = () => undefined): Promise<Hold> {
    if (this.#closed) throw new Cancelled("the locks were closed");
    const { names } = wanted;
    checkNames(names);
    checkOptions(options, OPTIONS);
    const lease = options.lease ?? this.lease;
    checkLease(lease);
    if (options.owner !== undefined) checkOwner(options.owner);
    if (options.wait !== undefined) checked("wait", options.wait, 0);
    if (options.longest !== undefined) checked("longest", options.longest, 0);
    const began = now();
    const { keeper, granting } = this.request(wanted, lease, options, troubled);
    let grant: Grant;
    try {
      grant = await granting;
    } catch (error) {
      if (error instanceof LockTimeout) {
        this.#call(() => this.#hooks.timedOut?.({ names, owner: keeper.owner, waitedMs: now() - began }));
      }
      throw error;
    }
    const { renew = true, longest } = options;
    const terms: Terms = { lease, renew, longest };
    const hold = new Hold(keeper, grant, terms, this.#told);
    this.#lives.add(lifeOf(hold));
    const { owner, token } = hold;
    this.#call(() => this.#hooks.granted?.({ names, owner, token, waitedMs: now() - began }));
    if (this.#closed) {
      await hold.letGo();
      throw new Cancelled("the locks were closed");
    }
    try {
      hold.check(); // the reply may have taken as long as the lease
    } catch (error) {
      await hold.letGo();
      throw error;
    }
    return hold;
  }

  /** Asks for a grant, and says who will keep it. */
  protected abstract request(
    wanted: Wanted,
    lease: number,
    options: AcquireOptions,
    troubled: Troubled,
  ): { keeper: Keeper; granting: Promise<Grant> };
  protected abstract stopAttempts(error: Error): void;
  protected abstract closeConnections(): void;

  /** Whether the program has a hold of this owner and token. */
  protected holds(owner: string, token: number): boolean {
    return [...this.#lives].some((life) => life.token === token && life.keeper.owner === owner);
  }

  protected waits(names: readonly string[], owner: string): void {
    this.#call(() => this.#hooks.waiting?.({ names, owner }));
  }

  protected background(work: Promise<unknown>): void {
    const settled = work
      .catch(() => undefined)
      .finally(() => {
        this.#background.delete(settled);
      });
    this.#background.add(settled);
  }

  /** Tells of it. The program may still work under the lock, so that it is left to its lease. */
  #forgotten(life: Life): void {
    const { names, owner } = life.keeper;
    const what = `the hold of ${names.join(", ")} was forgotten: nothing refers to it any more, so it is not renewed`;
    process.emitWarning(`${what}. Keep the hold until you release it, or use locks.using().`, "RedislockWarning");
    this.#call(() => this.#hooks.forgotten?.({ names, owner, token: life.token }));
    life.entry = scheduler.at(life.deadline, () => this.#lives.delete(life));
  }

  /** A hook that fails must not cost anybody a lock. It may be an async function, whose rejection nobody handles. */
  #call(hook: () => unknown): void {
    try {
      Promise.resolve(hook()).catch(() => undefined);
    } catch {
      // See above.
    }
  }
}
