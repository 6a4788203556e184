/** The driver over node-redis: `createClient`, `createCluster` and `createSentinel`. */

import type { ConnectionOptions } from "node:tls";

import { now } from "./clock.js";
import { Driver, type NodeRedisClient } from "./driver.js";
import { type Endpoint, nameOf } from "./line.js";
import { slotOf } from "./slot.js";
import { within } from "./stop.js";

interface Credentials {
  readonly username?: string | undefined;
  readonly password?: string | undefined;
}

/** Supplies the login of a client, if it changes. */
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
  sendCommand(words: readonly string[], options?: { readonly timeout: undefined }): Promise<unknown>;
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
  const { database, socket } = options ?? {};
  const { host = "localhost", port, path, tls } = socket ?? {};
  return { host, port, path, database, tls: tls ? socket : undefined };
}

/** The login that the client would use now. */
async function credentialsOf(options: Options | undefined): Promise<Credentials> {
  const { credentialsProvider: provider, username, password } = options ?? {};
  if (provider?.type === "async-credentials-provider") return provider.credentials();
  if (provider?.type !== "streaming-credentials-provider") return { username, password };
  const nothing = () => undefined;
  const [credentials, subscription] = await provider.subscribe({ onNext: nothing, onError: nothing });
  subscription.dispose();
  return credentials;
}

/** The address and the settings of the connection. */
async function loginOf(options: Options | undefined): Promise<Endpoint> {
  const { username, password } = await credentialsOf(options);
  return { ...endpointOf(options), username, password };
}

/** The time for the client to say which database it has selected: the first time, and once one is known. */
const FIRST_SAID_MS = 1000;
const SAID_MS = 100;

/** A cluster client has nodes that are ready or not. Of itself it says only whether it is open. */
abstract class NodeRedisDriver<Client extends { isOpen: boolean; isReady?: boolean }> extends Driver {
  constructor(readonly client: Client) {
    super();
  }

  get state(): string {
    const { isOpen, isReady = isOpen } = this.client;
    return isReady ? "ready" : isOpen ? "connecting" : "closed";
  }
}

/** For a client that writes the command at once. Its `timeout` ends only commands that it has not written yet. */
const AT_ONCE = { timeout: undefined };

class SingleDriver extends NodeRedisDriver<Single> {
  #selected: number | undefined;
  #asking: Promise<void> | undefined;

  override get server(): string {
    return nameOf(endpointOf(this.client.options));
  }

  where(): string {
    return this.server;
  }

  send(_key: string, words: readonly string[]): Promise<unknown> {
    // The timer for it would cost about as much as the command itself.
    return this.client.isReady ? this.client.sendCommand(words, AT_ONCE) : this.client.sendCommand(words);
  }

  async endpoint(): Promise<Endpoint> {
    this.#asking ??= this.#ask();
    await this.#asking;
    const { options } = this.client;
    return { ...(await loginOf(options)), database: this.#selected ?? options?.database };
  }

  /**
   * The program may have selected another database than the options say. The client does not expose it; the server
   * does.
   */
  async #ask(): Promise<void> {
    const limit = this.#selected === undefined ? FIRST_SAID_MS : SAID_MS;
    const saying = this.client.sendCommand(["CLIENT", "INFO"]).then((reply) => {
      const said = / db=(\d+)/.exec(String(reply))?.[1];
      if (said !== undefined) this.#selected = Number(said);
    });
    // While it is silent, no request waits for it again.
    const done = saying.catch(() => undefined).finally(() => {
      this.#asking = undefined;
    });
    await within(done, now() + limit, () => new Error("unanswered")).catch(() => undefined);
  }
}

class ClusterDriver extends NodeRedisDriver<Cluster> {
  override readonly isCluster = true;

  where(key: string): string {
    const shard = this.client.slots[slotOf(key)];
    return shard === undefined ? `a node for '${key}'` : nameOf(shard.master);
  }

  send(key: string, words: readonly string[]): Promise<unknown> {
    return this.client.sendCommand(key, false, words);
  }

  async endpoint(key: string): Promise<Endpoint> {
    const shard = this.client.slots[slotOf(key)];
    if (shard === undefined) throw new Error(`no primary is known for ${key}`);
    const client = await this.client.nodeClient(shard.master);
    return loginOf(client.options);
  }
}

class SentinelDriver extends NodeRedisDriver<Sentinel> {
  constructor(
    client: Sentinel,
    readonly login: Endpoint,
  ) {
    super(client);
  }

  where(): string {
    const node = this.client.getMasterNode();
    // The driver asks the sentinels, and does not say why none has answered.
    const unknown = "the primary that Sentinel watches (if Sentinel wants TLS, set that in sentinelClientOptions)";
    return node === undefined ? unknown : nameOf(node);
  }

  send(_key: string, words: readonly string[]): Promise<unknown> {
    return this.client.sendCommand(false, words);
  }

  async endpoint(): Promise<Endpoint> {
    const node = this.client.getMasterNode();
    if (node === undefined) throw new Error("the primary is not known yet");
    return { ...this.login, host: node.host, port: node.port };
  }
}

/** `login` is for Sentinel only, whose client does not expose the login at the primary. */
export function overNodeRedis(client: NodeRedisClient, login: Endpoint): Driver {
  if ("getMasterNode" in client) return new SentinelDriver(client as Sentinel, login);
  if ("nodeClient" in client) return new ClusterDriver(client as Cluster);
  return new SingleDriver(client as Single);
}
