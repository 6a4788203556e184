/** What the library needs of a driver: one command at a time, and where the primary of a name is. */

import type { Endpoint } from "./line.js";

export abstract class Driver {
  /** Whether the client has the nodes of a cluster, and finds the one of a key by itself. */
  readonly isCluster: boolean = false;
  /** What the client says of its connection, in a word. */
  abstract readonly state: string;
  /** Sends a command to the primary that has this key, over the user's client. */
  abstract send(key: string, words: readonly string[]): Promise<unknown>;
  /** Where the primary that has this key is now. Rejects if the client does not know. */
  abstract endpoint(key: string): Promise<Endpoint>;
  /** The address of the server that has this key, as far as it is known; for messages. */
  abstract where(key: string): string;

  /** The address of the client's one server; undefined for a cluster and for Sentinel. */
  get server(): string | undefined {
    return undefined;
  }

  /** How often the connection was lost so far on which the driver repeats, unasked, what was not answered. */
  cuts(): number {
    return 0;
  }

  /** The server said that it is no primary. A client that does not notice that by itself should look for the right one. */
  stale(): void {
    // Most notice it: a client has one address, learns of its slots' nodes by redirections, or watches the sentinels.
  }
}

/** A client of ioredis (5.3 or later), or of node-redis (5 or later): for one server, Sentinel or a cluster. */
export type Client = IoredisClient | NodeRedisClient | MemoryClient;

/** A server of redislock/testing. */
export interface MemoryClient {
  /** @internal */
  readonly redislockDriver: Driver;
}

/** What is needed of an ioredis `Redis` or `Cluster`. */
export interface IoredisClient {
  call(command: string, ...words: string[]): Promise<unknown>;
  disconnect(reconnect?: boolean): void;
}

/** What is needed of a node-redis client, cluster or sentinel. */
export interface NodeRedisClient {
  // The three have different parameters; the driver knows which one it has.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- no type but any admits all three
  sendCommand(...parameters: any[]): Promise<any>;
  connect(): Promise<unknown>;
}
