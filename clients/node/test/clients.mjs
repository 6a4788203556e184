// Clients of each driver, made as a user would make them.

import { Cluster, Redis } from "ioredis";
import { Cluster as Cluster5, Redis as Redis5 } from "ioredis5";
import { createClient, createCluster, createSentinel } from "redis";
import {
  createClient as createClient5,
  createCluster as createCluster5,
  createSentinel as createSentinel5,
} from "redis5";

/** The drivers and versions that are tried; the first is the default. */
export const DRIVERS = ["ioredis", "node-redis", "ioredis5", "node-redis5"];

const parts = (address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port) };
};

const quiet = (client) => client.on("error", () => undefined);

async function ioredis({ Redis, Cluster }, mode, addresses, service) {
  const nodes = addresses.map(parts);
  const make = {
    single: () => new Redis({ ...nodes[0], lazyConnect: true }),
    sentinel: () => new Redis({ sentinels: nodes, name: service, lazyConnect: true }),
    cluster: () => new Cluster(nodes, { lazyConnect: true }),
  };
  const client = quiet(make[mode]());
  // It goes on trying by itself if no server is there yet.
  await client.connect().catch(() => undefined);
  return { client, close: async () => client.disconnect() };
}

async function nodeRedis({ createClient, createCluster, createSentinel }, mode, addresses, service) {
  const nodes = addresses.map(parts);
  const make = {
    single: () => createClient({ socket: nodes[0] }),
    sentinel: () => createSentinel({ name: service, sentinelRootNodes: nodes }),
    cluster: () => createCluster({ rootNodes: nodes.map((socket) => ({ socket })) }),
  };
  const client = quiet(make[mode]());
  await client.connect();
  return { client, close: async () => client.destroy() };
}

/** A client, and how to close it. `mode` is single, sentinel or cluster. */
export async function connect(driver, mode, addresses, service) {
  switch (driver) {
    case "ioredis":
      return ioredis({ Redis, Cluster }, mode, addresses, service);
    case "ioredis5":
      return ioredis({ Redis: Redis5, Cluster: Cluster5 }, mode, addresses, service);
    case "node-redis":
      return nodeRedis({ createClient, createCluster, createSentinel }, mode, addresses, service);
    case "node-redis5":
      return nodeRedis(
        { createClient: createClient5, createCluster: createCluster5, createSentinel: createSentinel5 },
        mode,
        addresses,
        service,
      );
    default:
      throw new Error(`no driver ${driver}`);
  }
}
