/** The driver over node-redis: `createClient`, `createCluster` and `createSentinel`. */

import type { ConnectionOptions } from "node:tls";

import { now } from "./clock.js";
import type { Driver, NodeRedisClient } from "./driver.js";
import { type Endpoint, nameOf } from "./line.js";
import { slotOf } from "./slot.js";
import { within } from "./stop.js";

interface Credentials {
  readonly username?: string | undefined;
  readonly password?: string | undefined;
}

/** What tells a client how to log in, where that changes. */
type Provider =
  | { readonly type: "async-credentials-provider"; credentials(): Promise<Credentials> }
  | {
      readonly type: "streaming-credentials-provider";
      subscribe(listener: object): Promise<[Credentials, { dispose(): void }]>;
    };

interface Options {
  readonly credentialsProvider?: Provider;
  readonly username?: string;
  readonly password?: string;
  readonly database?: number;
  readonly socket?: { host?: string; port?: number; path?: string; tls?: boolean } & ConnectionOptions;
}

interface Single extends NodeRedisClient {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  readonly options?: Options;
  sendCommand(words: readonly string[]): Promise<unknown>;
}

interface Shard {
  readonly master: { readonly host: string; readonly port: number };
}

interface Cluster extends NodeRedisClient {
  readonly isOpen: boolean;
  readonly slots: readonly (Shard | undefined)[];
  readonly masters: readonly Shard["master"][];
  nodeClient(node: Shard["master"]): Promise<Single> | Single;
  sendCommand(firstKey: string, isReadonly: boolean, words: readonly string[]): Promise<unknown>;
}

interface Sentinel extends NodeRedisClient {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  getMasterNode(): { host: string; port: number } | undefined;
  sendCommand(isReadonly: boolean, words: readonly string[]): Promise<unknown>;
}

function endpointOf(options: Options | undefined): Endpoint {
  const { username, password, database, socket } = options ?? {};
  const tls = socket?.tls ? socket : undefined;
  return {
    host: socket?.host ?? "localhost",
    port: socket?.port,
    path: socket?.path,
    username,
    password,
    database,
    tls,
  };
}

/** How the client would log in now. */
async function credentialsOf(options: Options | undefined): Promise<Credentials> {
  const { credentialsProvider: provider, username, password } = options ?? {};
  if (provider?.type === "async-credentials-provider") return provider.credentials();
  if (provider?.type !== "streaming-credentials-provider") return { username, password };
  const nothing = () => undefined;
  const [credentials, subscription] = await provider.subscribe({ onNext: nothing, onError: nothing });
  subscription.dispose();
  return credentials;
}

/** Where to connect to, and how. */
async function loginOf(options: Options | undefined): Promise<Endpoint> {
  const { username, password } = await credentialsOf(options);
  return { ...endpointOf(options), username, password };
}

/** A cluster has nodes that are ready, or not, and says of itself only whether it is open. */
function stateOf({ isOpen, isReady = isOpen }: { isOpen: boolean; isReady?: boolean }): string {
  return isReady ? "ready" : isOpen ? "connecting" : "closed";
}

/** How long the client may take to say which database it has selected: the first time, and where one is known. */
const FIRST_SAID_MS = 1000;
const SAID_MS = 100;

class NodeRedisDriver implements Driver {
  readonly name = "node-redis";
  readonly isCluster = false;
  /** It repeats nothing that it has sent. */
  readonly cuts = 0;
  #selected: number | undefined;
  #asking: Promise<void> | undefined;
  constructor(readonly client: Single) {}

  get server(): string {
    return nameOf(endpointOf(this.client.options));
  }

  get state(): string {
    return stateOf(this.client);
  }

  where(): string {
    return this.server;
  }

  send(_key: string, words: readonly string[]): Promise<unknown> {
    return this.client.sendCommand(words);
  }

  async endpoint(): Promise<Endpoint> {
    this.#asking ??= this.#ask();
    await this.#asking;
    const { options } = this.client;
    return { ...(await loginOf(options)), database: this.#selected ?? options?.database };
  }

  /** The program may have selected another database than the options say. The client does not tell, but its server. */
  async #ask(): Promise<void> {
    const limit = this.#selected === undefined ? FIRST_SAID_MS : SAID_MS;
    const saying = this.client.sendCommand(["CLIENT", "INFO"]).then((reply) => {
      const said = / db=(\d+)/.exec(String(reply))?.[1];
      if (said !== undefined) this.#selected = Number(said);
    });
    // While it is silent, nobody waits for it again.
    const done = saying.catch(() => undefined).finally(() => {
      this.#asking = undefined;
    });
    await within(done, now() + limit, () => new Error("unanswered")).catch(() => undefined);
  }

  stale(): void {
    // It has one address.
  }
}

class NodeRedisClusterDriver implements Driver {
  readonly name = "node-redis";
  readonly isCluster = true;
  /** It repeats nothing that it has sent. */
  readonly cuts = 0;
  constructor(readonly cluster: Cluster) {}

  get state(): string {
    return stateOf(this.cluster);
  }

  where(key: string): string {
    const shard = this.cluster.slots[slotOf(key)];
    return shard === undefined ? `a node for '${key}'` : nameOf(shard.master);
  }

  send(key: string, words: readonly string[]): Promise<unknown> {
    return this.cluster.sendCommand(key, false, words);
  }

  async endpoint(key: string): Promise<Endpoint> {
    const shard = this.cluster.slots[slotOf(key)];
    if (shard === undefined) throw new Error(`no primary is known for ${key}`);
    const client = await this.cluster.nodeClient(shard.master);
    return loginOf(client.options);
  }

  stale(): void {
    // It learns of its slots' nodes by redirections.
  }
}

class NodeRedisSentinelDriver implements Driver {
  readonly name = "node-redis";
  readonly isCluster = false;
  /** It repeats nothing that it has sent. */
  readonly cuts = 0;
  constructor(
    readonly sentinel: Sentinel,
    readonly login: Endpoint,
  ) {}

  get state(): string {
    return stateOf(this.sentinel);
  }

  where(): string {
    const node = this.sentinel.getMasterNode();
    return node === undefined ? "the primary that Sentinel watches" : nameOf(node);
  }

  send(_key: string, words: readonly string[]): Promise<unknown> {
    return this.sentinel.sendCommand(false, words);
  }

  async endpoint(): Promise<Endpoint> {
    const node = this.sentinel.getMasterNode();
    if (node === undefined) throw new Error("the primary is not known yet");
    return { ...this.login, host: node.host, port: node.port };
  }

  stale(): void {
    // It watches what the sentinels say.
  }
}

/** `login` is for Sentinel alone, which does not tell how it logs in at the primary. */
export function overNodeRedis(client: NodeRedisClient, login: Endpoint): Driver {
  if ("getMasterNode" in client) return new NodeRedisSentinelDriver(client as Sentinel, login);
  if ("nodeClient" in client) return new NodeRedisClusterDriver(client as Cluster);
  return new NodeRedisDriver(client as Single);
}
