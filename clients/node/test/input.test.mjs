// What a program gets wrong is refused, in words that name the argument, and nothing is taken.

import assert from "node:assert/strict";
import { test } from "node:test";

import { IndependentLocks } from "redislock";

import { connect } from "./clients.mjs";
import { atEnd, locksOn, startServer } from "./servers.mjs";

/** Locks over clients of three servers, which end with the test. */
async function independentOn(t, servers, options) {
  const made = await Promise.all(servers.map(({ address }) => connect("ioredis", "single", [address])));
  const clients = made.map(({ client }) => client);
  const locks = new IndependentLocks(clients, options);
  atEnd(t, async () => {
    await locks.close();
    await Promise.all(made.map(({ close }) => close()));
  });
  return { clients, locks };
}

test("an owner that no hold can have is refused, and nothing is taken", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const [server] = servers;
  const { locks: independent } = await independentOn(t, servers);
  const locks = await locksOn(t, server, "ioredis");
  const ways = [
    (owner) => locks.acquire("k", { owner, wait: 0 }),
    (owner) => locks.acquire("k", { owner, wait: 300 }),
    (owner) => locks.many(["k", "l"]).acquire({ owner, wait: 0 }),
    (owner) => independent.acquire("k", { owner, wait: 0 }),
  ];
  const range = /^owner must be a string of 1 to 256 bytes, and not '\*': /;
  for (const owner of ["*", "", "é".repeat(129), 42]) {
    for (const take of ways) await assert.rejects(take(owner), { name: "TypeError", message: range });
  }
  for (const { admin } of servers) assert.equal(await admin.call("DBSIZE"), 0);
  await (await locks.acquire("k", { owner: "é".repeat(128) })).release();
});
