/** The common base of locks on one server (or group) and of locks over independent servers. */

import { AsyncLocalStorage } from "node:async_hooks";

import { now } from "./clock.js";
import { hostLabel, type Kind } from "./commands.js";
import { isAbort, LockLostError, LocksClosedError, LockTimeoutError, Stopped } from "./errors.js";
import { Hold, lifeOf } from "./hold.js";
import { guarded, Journal, type Logger, quoted } from "./journal.js";
import { checkLeader, Leader, type LeaderOptions } from "./leader.js";
import type { Grant, Keeper, Life, Terms, Told } from "./life.js";
import {
  checked,
  checkHooks,
  checkLabel,
  checkLease,
  checkLogger,
  checkName,
  checkNames,
  checkOptions,
  checkPrefix,
  checkRequest,
} from "./rules.js";
import { awake, mayEnd, pause, scheduler, stayAlive } from "./scheduler.js";
import { Vigil } from "./vigil.js";

/**
 * Events that a program may want to count. All hooks are called synchronously; what they throw or reject is ignored.
 */
export interface Hooks {
  /** A request begins. It ends with `granted`, `timedOut` or `failed`. */
  requested?(event: { names: readonly string[] }): void;
  /** A request failed with an error other than a timeout, or was cancelled. */
  failed?(event: { names: readonly string[]; waitedMs: number; error: Error }): void;
  /** A lock was granted. `waitedMs` is how long the request waited, in milliseconds. */
  granted?(event: { names: readonly string[]; owner: string; token: number; waitedMs: number }): void;
  /** A request began to wait in the queue. */
  waiting?(event: { names: readonly string[]; owner: string }): void;
  /** A lock could not be acquired in time. */
  timedOut?(event: { names: readonly string[]; owner: string; waitedMs: number }): void;
  /** A hold was lost. */
  lost?(event: { hold: Hold; error: LockLostError }): void;
  /** A holder released its hold. */
  released?(event: { hold: Hold; heldMs: number }): void;
  /** A hold was detached, for another process to adopt. */
  detached?(event: { hold: Hold; heldMs: number }): void;
  /** This process adopted a hold that another process had detached. */
  adopted?(event: { hold: Hold }): void;
  /** A hold was garbage-collected before it was released. It is not renewed, and ends with its lease. */
  forgotten?(event: { names: readonly string[]; owner: string; token: number }): void;
  /** A renewal failed. It is retried until the lease expires. */
  renewalFailed?(event: { hold: Hold; error: Error }): void;
  /** A server replies again after its connection was lost. */
  reconnected?(event: { address: string }): void;
}

export interface BaseOptions {
  /** The lease in milliseconds: from 100 to the server's `redislock.max-lease`. Default: 30,000. */
  readonly lease?: number | undefined;
  /**
   * The time without any reply, in milliseconds, after which an unbounded wait fails: 1 or more. A request that does not
   * wait fails after 2 s at the latest. Default: 10,000.
   */
  readonly serverTimeout?: number | undefined;
  /** The holder's name for operators: 1 to 200 bytes. The owner of each hold is the label and a UUID. Default: host:pid. */
  readonly label?: string | undefined;
  /** Put in front of each name on the server. `hold.name` is without it. Default: nothing. */
  readonly prefix?: string | undefined;
  readonly hooks?: Hooks | undefined;
  /** Receives a line for each event that an operator should know. Without it, `NODE_DEBUG=redislock` shows them. */
  readonly logger?: Logger | undefined;
}

export interface AcquireOptions {
  /**
   * The time for which the server holds the lock unless it is renewed, in milliseconds. From 100 to the server's
   * `redislock.max-lease` (by default an hour), or to its quarantine if that is shorter. The server refuses a longer
   * one (`ServerRefusedError`).
   */
  readonly lease?: number | undefined;
  /** The longest wait for the lock, in milliseconds. 0: no wait. Default: no limit. */
  readonly wait?: number | undefined;
  /**
   * Cancels the request, which then rejects with the signal's reason. `run` also passes it to the body, by
   * `hold.signal`.
   */
  readonly signal?: AbortSignal | undefined;
  /** False lets the lease expire without renewals. Default: true. */
  readonly renew?: boolean | undefined;
  /**
   * The shortest time for which the lock stays taken after its grant, in milliseconds, whatever happens to its holder:
   * 100 or more. The server enforces it. An earlier release ends the hold but leaves the lock taken for the rest. Not
   * for readers. Default: none.
   */
  readonly minHold?: number | undefined;
  /**
   * The longest time that the hold may last, in milliseconds: 100 or more. The last lease is shortened to it. Default:
   * no limit.
   */
  readonly maxHold?: number | undefined;
  /** An owner of your own, 1 to 256 bytes, but not `*`. Default: a new one, as host:pid:uuid. */
  readonly owner?: string | undefined;
}

/** The options of a request that does not wait. */
export type TryOptions = Omit<AcquireOptions, "wait">;

/** The body of `run`, which gets the hold. */
export type Body<T> = (hold: Hold) => Promise<T> | T;

/** Called once, instead of failing, when no server has answered a waiting request for the whole `serverTimeout`. */
export type Troubled = (error: Error) => void;

/** What a request needs to know of the call that made it. */
export interface Call {
  /** The time of the call. */
  readonly began: number;
  readonly troubled: Troubled | undefined;
  /** Logs a long wait, once it is started. */
  readonly vigil: Vigil | undefined;
}

/** A description of the lock to acquire. */
export interface Wanted {
  readonly names: readonly string[];
  readonly kind: Kind;
  readonly limit?: number | undefined;
}

/** A lock, which can be acquired any number of times. */
export class Lock {
  readonly #locks: Base;
  readonly #wanted: Wanted;
  /** @internal */
  constructor(locks: Base, wanted: Wanted) {
    this.#locks = locks;
    this.#wanted = wanted;
  }

  /** Acquires the lock, which stays held until `release()` of the hold, or the end of an `await using` block. */
  acquire(options: AcquireOptions = {}): Promise<Hold> {
    return this.#locks.take(this.#wanted, options);
  }

  /**
   * Acquires the lock if it is free now; returns null if the server says that it is not. Fails otherwise as `acquire`
   * does.
   */
  async tryAcquire(options: TryOptions = {}): Promise<Hold | null> {
    checkRequest(options, { isTry: true });
    try {
      return await this.#locks.take(this.#wanted, { ...options, wait: 0 });
    } catch (error) {
      if (error instanceof LockTimeoutError) return null;
      throw error;
    }
  }

  /** @internal Acquires the lock, and reports each period in which no server answers. */
  stand(options: AcquireOptions, troubled: Troubled): Promise<Hold> {
    return this.#locks.take(this.#wanted, options, troubled);
  }

  /**
   * Acquires the lock, runs the body and releases the lock, whatever the body does. If the lock is lost meanwhile,
   * `hold.signal` is aborted, and the call rejects with `LockLostError` as soon as the body ends. The process stays
   * alive for the request and the release; the body must keep it alive itself.
   */
  run<T>(body: Body<T>): Promise<T>;
  run<T>(options: AcquireOptions, body: Body<T>): Promise<T>;
  async run<T>(first: AcquireOptions | Body<T>, second?: Body<T>): Promise<T> {
    const [options, body] = typeof first === "function" ? [{}, first] : [first, second];
    if (typeof first === "function" && second !== undefined) {
      throw new TypeError("run takes its options before its body");
    }
    if (typeof body !== "function") throw new TypeError("run needs a body");
    const hold = await this.acquire(options);
    hold.keep();
    const detach = options.signal === undefined ? undefined : hold.follow(options.signal);
    let outcome: { value: T } | { error: unknown };
    try {
      const working = this.#locks.work(hold, body);
      outcome = { value: isPromise(working) ? await working : working };
    } catch (error) {
      outcome = { error };
    }
    this.#locks.worked(hold);
    detach?.();
    await hold.letGo();
    if ("error" in outcome) throw reasonOf(outcome.error, hold);
    if (hold.loss !== undefined) throw hold.loss;
    return outcome.value;
  }
}

/** Returns true for a promise of any library and realm. */
const isPromise = (value: unknown): value is PromiseLike<unknown> =>
  typeof (value as { then?: unknown } | null | undefined)?.then === "function";

/** Resolves when all pending callbacks have run. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** The error to report for a body that has thrown: its own error, or the loss that caused it. */
function reasonOf(error: unknown, hold: Hold): unknown {
  const { loss } = hold;
  if (loss === undefined || error === loss) return error;
  return isAbort(error) ? new LockLostError(loss.message, loss.reason, error) : error;
}

const BASE_OPTIONS = ["lease", "serverTimeout", "label", "prefix", "hooks", "logger"];
const LEASE_MS = 30_000;
const SERVER_TIMEOUT_MS = 10_000;
/** The time limit of close(). */
const CLOSE_MS = 5000;
/** The part of that limit for which close() waits for bodies. */
const BODIES = 4 / 5;

/** The holds under which the calling code runs. */
const under = new AsyncLocalStorage<readonly Life[]>();

export abstract class Base implements AsyncDisposable {
  protected readonly lease: number;
  protected readonly serverTimeout: number;
  protected readonly label: string;
  protected readonly prefix: string;
  readonly #hooks: Hooks;
  readonly #lives = new Set<Life>();
  /** Each is called when a hold begins. */
  protected readonly begins = new Set<() => void>();
  /** The holds under which bodies run, and the end of each body. */
  readonly #bodies = new Map<Life, Promise<unknown>>();
  readonly #leaders = new Set<Leader>();
  readonly #background = new Set<Promise<unknown>>();
  readonly #told: Told;
  protected readonly journal: Journal;
  #closing: Promise<void> | undefined;

  /** `more` names the options that only this class has. */
  protected constructor(options: BaseOptions, more: readonly string[] = []) {
    checkOptions(options, [...BASE_OPTIONS, ...more]);
    this.lease = options.lease ?? LEASE_MS;
    this.serverTimeout = options.serverTimeout ?? SERVER_TIMEOUT_MS;
    this.label = options.label ?? hostLabel();
    this.prefix = options.prefix ?? "";
    this.#hooks = options.hooks ?? {};
    checkLease(this.lease);
    checked("serverTimeout", this.serverTimeout, 1);
    checkLabel(this.label);
    checkPrefix(this.prefix);
    checkHooks(this.#hooks);
    checkLogger(options.logger);
    this.journal = new Journal(options.logger, (address) => guarded(() => this.#hooks.reconnected?.({ address })));
    this.#told = {
      lost: (hold, error, isWatched) => {
        this.#lives.delete(lifeOf(hold));
        guarded(() => this.#hooks.lost?.({ hold, error }));
        const isTold = isWatched || this.#hooks.lost !== undefined || ["release", "close"].includes(error.reason);
        if (isTold) this.journal.log("warn", error.message);
        else this.journal.alarm("error", `${error.message}; nothing in the program asks for hold.signal or hold.check()`);
      },
      renewalFailed: (hold, error, failures) => {
        guarded(() => this.#hooks.renewalFailed?.({ hold, error }));
        if (failures === 1) this.journal.log("warn", `could not renew ${quoted(hold.names)}: ${error.message}`);
      },
      renewedAgain: (hold, failures) => {
        const { where } = lifeOf(hold).keeper;
        this.journal.log("warn", `renewed ${quoted(hold.names)} at ${where} after ${failures} failed renewals`);
      },
      ended: (hold, how) => {
        this.#lives.delete(lifeOf(hold));
        guarded(() => this.#hooks[how]?.({ hold, heldMs: performance.now() - hold.heldSince }));
      },
      forgotten: (life) => this.#forgotten(life),
      background: (work) => this.background(work),
    };
  }

  /** The exclusive lock of this name. */
  lock(name: string): Lock {
    checkName(name);
    return new Lock(this, { names: [name], kind: "exclusive" });
  }

  /** Acquires the exclusive lock of this name. */
  acquire(name: string, options: AcquireOptions = {}): Promise<Hold> {
    return this.lock(name).acquire(options);
  }

  /** Acquires the exclusive lock of this name for as long as the body runs: see `Lock.run`. */
  run<T>(name: string, body: Body<T>): Promise<T>;
  run<T>(name: string, options: AcquireOptions, body: Body<T>): Promise<T>;
  run<T>(name: string, ...rest: [Body<T>] | [AcquireOptions, Body<T>]): Promise<T> {
    return this.lock(name).run(...(rest as [AcquireOptions, Body<T>]));
  }

  /** Acquires the exclusive lock of this name if it is free now: see `Lock.tryAcquire`. */
  tryAcquire(name: string, options: TryOptions = {}): Promise<Hold | null> {
    return this.lock(name).tryAcquire(options);
  }

  /**
   * Stands for election: of all candidates for this name, one leads at any time. Throws a `TypeError` if the name or an
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
   * Releases all holds, ends all requests, and closes the library's own connections. Your client stays open. Each hold
   * that was still held is lost, with the reason "close". The hold of a running `run` body is released when the body
   * ends, or ends with its lease, unless that body calls this. Takes at most `timeout` milliseconds: a lock whose
   * release no server has confirmed by then is free when its lease expires. Further calls do nothing.
   */
  close(timeout = CLOSE_MS): Promise<void> {
    checked("timeout", timeout, 0);
    this.#closing ??= awake(() => this.#close(timeout));
    return this.#closing;
  }

  async #close(timeout: number): Promise<void> {
    const end = now() + timeout;
    this.stopAttempts(new Stopped(new LocksClosedError()));
    const [unconfirmed, working, own] = [new Set<Life>(), new Set<Life>(), under.getStore() ?? []];
    for (const life of [...this.#lives]) {
      if (life.hold !== undefined && this.#bodies.has(life) && !own.includes(life)) {
        this.background(life.hold.close(true));
        working.add(life);
        continue;
      }
      unconfirmed.add(life);
      const ending = life.hold?.close() ?? life.giveUp(0);
      this.background(ending.finally(() => unconfirmed.delete(life)));
    }
    // A leader whose hold is lost reports that before it resigns.
    await turn();
    for (const leader of this.#leaders) this.background(leader.resign());
    await this.#finish(working, timeout * BODIES);
    while (this.#background.size > 0 && now() < end) {
      await Promise.race([Promise.all(this.#background), pause(end - now())]);
    }
    if (unconfirmed.size > 0) {
      const names = quoted([...unconfirmed].flatMap(({ keeper }) => keeper.names));
      const seconds = timeout / 1000;
      this.journal.log("warn", `no server confirmed the release of ${names} within ${seconds} s: each ends with its lease`);
    }
    this.closeConnections();
  }

  /** Waits for the bodies that work under these holds. */
  async #finish(working: Set<Life>, ms: number): Promise<void> {
    if (working.size === 0) return;
    const ends = [...working].map((life) => this.#bodies.get(life) ?? Promise.resolve());
    await Promise.race([Promise.allSettled(ends), pause(ms)]);
    await turn(); // so that ended bodies release their locks
    const late = [...working].filter((life) => this.#bodies.has(life));
    if (late.length === 0) return;
    const names = quoted(late.flatMap(({ keeper }) => keeper.names));
    this.journal.log("warn", `closed while the program works under ${names}, which its lease ends`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** @internal Runs this work under a hold. `close` waits for its end, unless the work itself calls `close`. */
  work<T>(hold: Hold, body: Body<T>): Promise<T> | T {
    const life = lifeOf(hold);
    const working = under.run([...(under.getStore() ?? []), life], () => {
      const result = body(hold);
      // A query of some libraries is sent each time that its `then` is called, so that is done once.
      return isPromise(result) ? Promise.resolve(result) : result;
    });
    if (isPromise(working)) this.#bodies.set(life, working);
    return working;
  }

  /** @internal The work under this hold has ended. */
  worked(hold: Hold): void {
    this.#bodies.delete(lifeOf(hold));
  }

  /** @internal */
  async take(wanted: Wanted, options: AcquireOptions, troubled?: Troubled): Promise<Hold> {
    const { names } = wanted;
    checkNames(names);
    checkRequest(options);
    this.checkOpen();
    const { renew = true, minHold, maxHold } = options;
    if (minHold !== undefined) this.checkMinHold(wanted);
    const wished = options.lease ?? this.lease;
    const lease = Math.min(Math.max(wished, minHold ?? 0), maxHold ?? Number.POSITIVE_INFINITY);
    const began = now();
    const vigil = options.wait === 0 ? undefined : this.#watch(names, began);
    const { keeper, granting } = this.request(wanted, lease, options, { began, troubled, vigil });
    guarded(() => this.#hooks.requested?.({ names }));
    let grant: Grant;
    stayAlive();
    try {
      grant = await granting;
    } catch (error) {
      const told = error instanceof Stopped ? error.reason : error;
      const waitedMs = now() - began;
      if (error instanceof LockTimeoutError) {
        guarded(() => this.#hooks.timedOut?.({ names, owner: keeper.owner, waitedMs }));
      } else {
        const its = told instanceof Error ? told : new Error(String(told));
        guarded(() => this.#hooks.failed?.({ names, waitedMs, error: its }));
      }
      throw told;
    } finally {
      mayEnd();
      vigil?.end();
    }
    const terms = { first: lease, lease: wished, renew, minHold, maxHold };
    return this.begin(keeper, grant, terms, ({ owner, token }) => {
      guarded(() => this.#hooks.granted?.({ names, owner, token, waitedMs: now() - began }));
    });
  }

  /** Makes the hold of this grant, and calls `begun` with it. A hold without `begun` was adopted. */
  protected begin(
    keeper: Keeper,
    grant: Grant,
    terms: Terms,
    begun = (hold: Hold): void => guarded(() => this.#hooks.adopted?.({ hold })),
  ): Hold | Promise<Hold> {
    const hold = new Hold(keeper, grant, terms, this.#told);
    this.#lives.add(lifeOf(hold));
    for (const call of this.begins) call();
    begun(hold);
    // The reply may have taken as long as the lease. Then the caller gets an error.
    return this.#closing === undefined && hold.remaining > 0 ? hold : this.#tooLate(hold);
  }

  async #tooLate(hold: Hold): Promise<Hold> {
    const isClosing = this.#closing !== undefined;
    if (!isClosing) hold.keep();
    await hold.letGo();
    if (isClosing) throw new LocksClosedError();
    hold.check();
    return hold;
  }

  #watch(names: readonly string[], began: number): Vigil {
    const ownHold = () =>
      [...this.#lives].find(({ keeper }) => keeper.names.some((name) => names.includes(name)))?.keeper.owner;
    return new Vigil(this.journal, names, began, { ownHold, holder: (name) => this.holderOf(name) });
  }

  /** Refuses `minHold` if the server cannot enforce it. */
  protected checkMinHold({ kind }: Wanted): void {
    if (kind === "read") throw new TypeError("minHold is for locks that one owner holds, and for semaphores, not for readers");
  }

  /** Asks for a grant. Returns it with the keeper that will renew and release it. */
  protected abstract request(
    wanted: Wanted,
    lease: number,
    options: AcquireOptions,
    call: Call,
  ): { keeper: Keeper; granting: Promise<Grant> };
  protected abstract stopAttempts(error: Error): void;
  protected abstract closeConnections(): void;
  /** Returns the owner that holds this lock, if the servers can be asked. */
  protected abstract holderOf(name: string): Promise<string | undefined>;

  /** Returns true if the program has a hold of this owner, with this token if one is given. */
  protected holds(owner: string, token?: number): boolean {
    return [...this.#lives].some((life) => life.keeper.owner === owner && (token ?? life.token) === life.token);
  }

  protected checkOpen(): void {
    if (this.#closing !== undefined) throw new LocksClosedError();
  }

  protected waits(names: readonly string[], owner: string): void {
    guarded(() => this.#hooks.waiting?.({ names, owner }));
  }

  protected background(work: Promise<unknown>): void {
    const settled = work
      .catch(() => undefined)
      .finally(() => {
        this.#background.delete(settled);
      });
    this.#background.add(settled);
  }

  /** Reports the forgotten hold. The program may still work under the lock, so the lease is left to expire. */
  #forgotten(life: Life): void {
    const { names, owner } = life.keeper;
    const what = `the hold of ${quoted(names)} was forgotten: nothing refers to it any more, so it is not renewed`;
    this.journal.alarm("warn", `${what}. Keep the hold until you release it, or use locks.run().`);
    guarded(() => this.#hooks.forgotten?.({ names, owner, token: life.token }));
    life.entry = scheduler.at(life.deadline, () => this.#lives.delete(life));
  }
}
