/** The driver over ioredis: `Redis` (one server or Sentinel) and `Cluster`. */

import type { ConnectionOptions } from "node:tls";

import { now } from "./clock.js";
import { Driver, type IoredisClient } from "./driver.js";
import { codeOf } from "./errors.js";
import { type Endpoint, nameOf } from "./line.js";
import { slotOf } from "./slot.js";

/** The parts of `Redis` that are used here. All are public. */
interface Redis extends IoredisClient {
  on(event: "close", listener: () => void): unknown;
  /** The state of the connection; undefined before the first one. */
  readonly condition?: { readonly select: number } | null;
  readonly status: string;
  readonly stream?: { readonly remoteAddress?: string; readonly remotePort?: number };
  readonly options: {
    readonly host?: string;
    readonly port?: number;
    readonly path?: string;
    readonly username?: string | null;
    readonly password?: string | null;
    readonly db?: number;
    readonly tls?: ConnectionOptions;
    readonly sentinels?: readonly Endpoint[] | null;
    readonly sentinelTLS?: ConnectionOptions;
    /** The sentinels' name for the primary. */
    readonly name?: string;
  };
}

interface Cluster extends IoredisClient {
  readonly isCluster: true;
  readonly status: string;
  readonly slots: readonly (readonly string[] | undefined)[];
  nodes(role: "master"): Redis[];
}

const call = (client: IoredisClient, words: readonly string[]): Promise<unknown> =>
  client.call(...(words as [command: string, ...words: string[]]));

function endpointOf(redis: Redis): Endpoint {
  const { host, port, path, username, password, db, tls, sentinels } = redis.options;
  const login = {
    username: username || undefined,
    // Some users need no password.
    password: password || (username ? "" : undefined),
    database: db,
    tls,
  };
  if (path) return { path, ...login };
  if (!sentinels?.length) return { host, port, ...login };
  const { remoteAddress, remotePort } = redis.stream ?? {};
  if (redis.status !== "ready" || remoteAddress === undefined) throw new Error("the primary is not known yet");
  return { host: remoteAddress, port: remotePort, ...login };
}

/** The shortest interval at which the client is asked to look for the primary again. */
const STALE_AGAIN = 1000;

/** The number of lost connections, and the database that was selected when the last one was lost. */
interface Cut {
  times: number;
  database?: number | undefined;
}

/** One listener for each client, for all locks that are made over it. */
const CUTS = new WeakMap<Redis, Cut>();

function cutsOf(redis: Redis): Cut {
  const known = CUTS.get(redis);
  if (known !== undefined) return known;
  const cut: Cut = { times: 0 };
  redis.on("close", () => {
    cut.times++;
    cut.database = redis.condition?.select ?? cut.database;
  });
  CUTS.set(redis, cut);
  return cut;
}

class IoredisDriver extends Driver {
  readonly #cut: Cut;
  #staleAt = Number.NEGATIVE_INFINITY;

  constructor(readonly redis: Redis) {
    super();
    this.#cut = cutsOf(redis);
  }

  override cuts(): number {
    return this.#cut.times;
  }

  override get server(): string | undefined {
    return this.redis.options.sentinels?.length ? undefined : nameOf(endpointOf(this.redis));
  }

  get state(): string {
    return this.redis.status;
  }

  where(): string {
    const { sentinels, sentinelTLS, name = "" } = this.redis.options;
    try {
      return nameOf(endpointOf(this.redis));
    } catch {
      // The primary is not known at the moment. The driver asks the sentinels, and does not say why none has answered.
      const hint = this.redis.stream || sentinelTLS ? "" : " (if they want TLS, set sentinelTLS in the client)";
      return `${name} of the sentinels ${(sentinels ?? []).map(nameOf).join(", ")}${hint}`;
    }
  }

  send(_key: string, words: readonly string[]): Promise<unknown> {
    return call(this.redis, words);
  }

  async endpoint(): Promise<Endpoint> {
    const { status, condition, options } = this.redis;
    // The program may have selected another database than the options say. A new connection selects it again.
    const selected = status === "ready" ? condition?.select : this.#cut.database;
    return { ...endpointOf(this.redis), database: selected ?? options.db };
  }

  override stale(): void {
    const { options, status } = this.redis;
    if (!options.sentinels?.length || status !== "ready" || now() - this.#staleAt < STALE_AGAIN) return;
    this.#staleAt = now();
    // It asks the sentinels again when it reconnects.
    this.redis.disconnect(true);
  }
}

class IoredisClusterDriver extends Driver {
  override readonly isCluster = true;
  constructor(readonly cluster: Cluster) {
    super();
  }

  get state(): string {
    return this.cluster.status;
  }

  where(key: string): string {
    return this.cluster.slots[slotOf(key)]?.[0] ?? `a node for '${key}'`;
  }

  async send(key: string, words: readonly string[]): Promise<unknown> {
    // The client does not know the key positions of a module's commands, and would ask any node.
    const node = this.#node(key);
    if (node?.status !== "ready") return call(this.cluster, words);
    try {
      return await call(node, words);
    } catch (error) {
      const code = error instanceof Error ? codeOf(error.message) : undefined;
      // The client follows redirections and learns from them if the request goes through it.
      if (code === "MOVED" || code === "ASK") return call(this.cluster, words);
      throw error;
    }
  }

  async endpoint(key: string): Promise<Endpoint> {
    const node = this.#node(key);
    if (node === undefined) throw new Error(`no primary is known for ${key}`);
    return endpointOf(node);
  }

  #node(key: string): Redis | undefined {
    const [primary] = this.cluster.slots[slotOf(key)] ?? [];
    return this.cluster.nodes("master").find(({ options }) => `${options.host}:${options.port}` === primary);
  }
}

export const overIoredis = (client: IoredisClient): Driver =>
  "isCluster" in client && client.isCluster === true
    ? new IoredisClusterDriver(client as Cluster)
    : new IoredisDriver(client as Redis);
