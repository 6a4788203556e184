/** The interface to a driver: it sends one command at a time, and finds the primary of a name. */

import type { Endpoint } from "./line.js";

export abstract class Driver {
  /** True if the client has the nodes of a cluster, and finds the node of a key. */
  readonly isCluster: boolean = false;
  /** The client's own word for the state of its connection. */
  abstract readonly state: string;
  /** Sends a command to the primary that has this key, over the user's client. */
  abstract send(key: string, words: readonly string[]): Promise<unknown>;
  /** Returns the address of the primary that has this key. Rejects if the client does not know it. */
  abstract endpoint(key: string): Promise<Endpoint>;
  /** The address of the server that has this key, as far as known; for messages. */
  abstract where(key: string): string;

  /** The address of the client's one server; undefined for a cluster and for Sentinel. */
  get server(): string | undefined {
    return undefined;
  }

  /** Counts the connections lost so far after which the driver repeats unanswered requests of its own accord. */
  cuts(): number {
    return 0;
  }

  /** The server said that it is not a primary. A client that does not notice should look for the right one. */
  stale(): void {
    // Most clients notice: they have one address, learn of their slots' nodes by redirections, or watch the sentinels.
  }
}

/** A client of ioredis (5.3 or later), or of node-redis (5 or later): for one server, Sentinel or a cluster. */
export type Client = IoredisClient | NodeRedisClient | MemoryClient;

/** A server of redislock/testing. */
export interface MemoryClient {
  /** @internal */
  readonly redislockDriver: Driver;
}

/** The part that is needed of an ioredis `Redis` or `Cluster`. */
export interface IoredisClient {
  call(command: string, ...words: string[]): Promise<unknown>;
  disconnect(reconnect?: boolean): void;
}

/** The part that is needed of a node-redis client, cluster or sentinel. */
export interface NodeRedisClient {
  // The three have different parameters; the driver knows which one it has.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- no type but any admits all three
  sendCommand(...parameters: any[]): Promise<any>;
  connect(): Promise<unknown>;
}
