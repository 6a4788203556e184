// Clients of each driver, made as a user would make them.

import { once } from "node:events";

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
  // It continues to retry if no server is there yet.
  await client.connect().catch(() => undefined);
  return { client, close: async () => client.disconnect() };
}

async function nodeRedis({ createClient, createCluster, createSentinel }, mode, addresses, service, login) {
  const nodes = addresses.map(parts);
  const credentialsProvider = login && { type: "async-credentials-provider", credentials: login };
  const make = {
    single: () => createClient({ socket: nodes[0], credentialsProvider }),
    sentinel: () => createSentinel({ name: service, sentinelRootNodes: nodes }),
    cluster: () => createCluster({ rootNodes: nodes.map((socket) => ({ socket })) }),
  };
  const client = quiet(make[mode]());
  // It continues to retry if no server is there yet.
  await Promise.race([client.connect(), once(client, "error")]);
  return { client, close: async () => client.destroy() };
}

// Each is loaded when it is asked for: a program that starts has no use for the others, and the kit starts hundreds.
const OPEN = {
  ioredis: async (...where) => ioredis(await import("ioredis"), ...where),
  ioredis5: async (...where) => ioredis(await import("ioredis5"), ...where),
  "node-redis": async (...where) => nodeRedis(await import("redis"), ...where),
  "node-redis5": async (...where) => nodeRedis(await import("redis5"), ...where),
};

/** True if this driver can ask a function how to log in. */
export const asksForLogin = (driver) => driver.startsWith("node-redis");

/** A client, and how to close it. `mode` is single, sentinel or cluster; `login` gives the user and the password. */
export async function connect(driver, mode, addresses, service, login) {
  const open = OPEN[driver];
  if (open === undefined) throw new Error(`no driver ${driver}`);
  return open(mode, addresses, service, login);
}
