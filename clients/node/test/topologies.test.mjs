// Locks in a cluster, behind Sentinel, and over independent servers.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { Redis } from "ioredis";
import { createSentinel } from "redis";
import {
  ConnectionFailedError,
  LockError,
  LockLostError,
  Locks,
  LockTimeoutError,
  ModuleMissingError,
  NotConfirmedError,
} from "redislock";
import { Redlock } from "redislock/redlock";

import { connect, DRIVERS } from "./clients.mjs";
import { atEnd, eventually, startCluster, startSentinels, startServer } from "./servers.mjs";

/** One name for each node of a cluster of three. */
const NAMES = ["{a}", "{b}", "{c}", "{d}", "{e}", "{f}"];

async function ending(t, { client, close }, make) {
  const locks = make(client);
  atEnd(t, async () => {
    await locks.close();
    await close();
  });
  return locks;
}

test("a cluster: locks on all nodes are held, waited for, lost and listed", async (t) => {
  const nodes = await startCluster(t);
  const addresses = nodes.map(({ address }) => address);
  const each = async (driver) => {
    const made = await connect(driver, "cluster", addresses);
    const locks = await ending(t, made, (client) => new Locks(client, { lease: 6000 }));
    const names = NAMES.map((name) => `${name}${driver}`);
    const holds = await Promise.all(names.map((name) => locks.acquire(name, { owner: `by ${name}` })));
    const waiting = names.map((name) => locks.acquire(name));
    await pause(8000);
    for (const hold of holds) hold.check();
    for (const name of names) assert.equal((await locks.info(name)).holders[0].owner, `by ${name}`);
    await Promise.all(holds.map((hold) => hold.release()));
    const next = await Promise.all(waiting);
    await pause(100);
    const [first] = next;
    const broken = await Promise.all(nodes.map(({ admin }) => admin.del(first.name).catch(() => 0)));
    assert.deepEqual(broken.sort(), [0, 0, 1]);
    await eventually(() => first.loss !== undefined, "the loss is told");
    assert.equal(first.loss.reason, "push");
    await Promise.all(next.map((hold) => hold.release()));
    await (await locks.many(["{a}1", "{a}2"]).acquire()).release();
    await assert.rejects(locks.many(["{a}1", "{b}2"]).acquire(), LockError);
  };
  await Promise.all(DRIVERS.map(each));
});

test("a cluster: a hold and a waiter follow their slot to another node", async (t) => {
  const nodes = await startCluster(t);
  for (const driver of DRIVERS.slice(0, 2)) {
    const name = `moving ${driver}`;
    const slot = String(await nodes[0].admin.call("CLUSTER", "KEYSLOT", name));
    const shards = await Promise.all(nodes.map(({ admin }) => admin.call("CLUSTER", "MYID")));
    const made = await connect(
      driver,
      "cluster",
      nodes.map(({ address }) => address),
    );
    const locks = await ending(t, made, (client) => new Locks(client, { lease: 6000 }));
    for (const { address } of nodes) {
      const alone = await connect(driver, "single", [address]);
      const its = await ending(t, alone, (client) => new Locks(client));
      assert.equal(await its.ping(), await locks.ping(), "a node is healthy, whoever has the slot");
    }
    const hold = await locks.acquire(name);
    const waiting = locks.acquire(name);
    const counts = async () => Promise.all(nodes.map((node) => node.waiters(name).catch(() => 0)));
    await eventually(async () => (await counts()).includes(1), "it waits");
    const from = (await counts()).indexOf(1);
    const to = (from + 1) % 3;
    await nodes[to].admin.call("CLUSTER", "SETSLOT", slot, "IMPORTING", shards[from]);
    await nodes[from].admin.call("CLUSTER", "SETSLOT", slot, "MIGRATING", shards[to]);
    await nodes[from].admin.call("MIGRATE", "127.0.0.1", String(nodes[to].port), name, "0", "10000");
    for (const number of [to, from, 3 - to - from]) {
      await nodes[number].admin.call("CLUSTER", "SETSLOT", slot, "NODE", shards[to]);
    }
    await eventually(async () => (await counts())[to] === 1, "it waits at the new node");
    await pause(3000);
    hold.check();
    assert.equal(await hold.release(), true);
    await (await waiting).release();
  }
});

test("Sentinel: a hold is held on, and a waiter served, by the new primary", async (t) => {
  const { primary, replica, sentinels } = await startSentinels(t);
  const addresses = sentinels.map(({ address }) => address);
  const all = [];
  for (const driver of DRIVERS) {
    const made = await connect(driver, "sentinel", addresses, "group");
    const locks = await ending(t, made, (client) => new Locks(client, { lease: 20_000 }));
    const hold = await locks.acquire(`k ${driver}`);
    const waiting = locks.acquire(`k ${driver}`);
    await eventually(async () => (await primary.waiters(`k ${driver}`)) === 1, "it waits");
    all.push({ hold, waiting });
  }
  const isKnown = async ({ hold }) => (await replica.admin.call("LOCK.FENCE", hold.name)) === hold.token;
  for (const each of all) await eventually(() => isKnown(each), "the replica knows of the hold");
  await primary.kill();
  for (const { hold } of all) {
    await eventually(async () => (await replica.waiters(hold.name)) === 1, `the waiter for ${hold.name} is back`);
  }
  for (const { hold, waiting } of all) {
    hold.check();
    assert.equal(await hold.release(), true, hold.name);
    const next = await waiting;
    assert.ok(next.token > hold.token);
    assert.equal(await replica.admin.call("LOCK.FENCE", next.name, String(next.token)), 1);
    await next.release();
  }
});

test("sentinels that want TLS: an error names that as what may be wrong", async (t) => {
  const listener = createServer((socket) => socket.on("error", () => undefined).once("data", () => socket.destroy()));
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  atEnd(t, () => listener.close());
  const host = "127.0.0.1";
  const { port } = listener.address();
  const ioredis = new Redis({ sentinels: [{ host, port }], name: "group", lazyConnect: true });
  const nodeRedis = createSentinel({ name: "group", sentinelRootNodes: [{ host, port }] });
  for (const client of [ioredis, nodeRedis]) {
    client.on("error", () => undefined);
    client.connect().catch(() => undefined);
    const locks = new Locks(client, { serverTimeout: 500 });
    const named = { name: "ConnectionFailedError", message: /\(if (they|Sentinel) wants? TLS, set/ };
    await assert.rejects(locks.ping(), named);
    await assert.rejects(locks.acquire("k", { wait: 0 }), named);
    await locks.close();
  }
  ioredis.disconnect();
  await nodeRedis.destroy();
});

test("independent servers: a majority has the lock, with one token that only rises", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const drivers = ["ioredis", "node-redis", "ioredis"];
  const made = await Promise.all(servers.map(({ address }, number) => connect(drivers[number], "single", [address])));
  const clients = made.map(({ client }) => client);
  assert.throws(() => new Redlock(clients.slice(1)), TypeError);
  // A server may take a twentieth of the lease to answer.
  const locks = new Redlock(clients, { lease: 5000 });
  atEnd(t, async () => {
    await locks.close();
    await Promise.all(made.map(({ close }) => close()));
  });
  const live = async ({ name, token }) => {
    const asked = servers.map(({ admin }) => admin.call("LOCK.FENCE", name, String(token)).catch(() => 0));
    return (await Promise.all(asked)).filter((reply) => reply === 1).length;
  };
  const first = await locks.acquire("k");
  await assert.rejects(locks.acquire("k", { wait: 0 }), LockTimeoutError);
  await assert.rejects(locks.acquire("k", { wait: 300 }), LockTimeoutError);
  await pause(6500);
  first.check();
  assert.ok((await live(first)) >= 2, "a majority has the token");
  await servers[0].admin.del("k");
  await pause(1000);
  first.check();
  assert.equal(await first.release(), true);
  const second = await locks.acquire("k");
  assert.ok(second.token > first.token);
  const told = pause(20_000, undefined, { signal: second.signal });
  for (const { admin } of servers.slice(1)) await admin.del("k");
  await assert.rejects(told, { name: "AbortError" });
  assert.throws(() => second.check(), LockLostError);
  await second.release();
  const third = await locks.acquire("k");
  await third.release();
  for (const server of servers) await eventually(() => server.isFree("k"), "nothing is left");
});

/** Locks over these servers, in turn by each driver. */
async function independent(t, servers, drivers = ["ioredis", "node-redis", "ioredis"]) {
  const made = await Promise.all(servers.map(({ address }, number) => connect(drivers[number], "single", [address])));
  let locks;
  atEnd(t, async () => {
    await locks?.close();
    await Promise.all(made.map(({ close }) => close()));
  });
  locks = new Redlock(
    made.map(({ client }) => client),
    { lease: 20_000 },
  );
  return locks;
}

test("independent servers: a majority without the module is told at once, a minority does no harm", async (t) => {
  const make = (withModule) => startServer(t, { withModule });
  const servers = await Promise.all([make(true), make(false), make(false), make(true)]);
  const locks = await independent(t, servers.slice(0, 3));
  for (const wait of [0, 20_000, undefined]) await assert.rejects(locks.acquire("k", { wait }), ModuleMissingError);
  const others = await independent(t, [servers[0], servers[1], servers[3]]);
  const hold = await others.acquire("k", { wait: 20_000 });
  await hold.release();
});

test("independent servers: too few that answer are no sign that another one has the lock", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const locks = await independent(t, servers);
  const hold = await locks.acquire("k", { wait: 20_000 });
  for (const server of servers.slice(1)) await server.kill();
  for (const wait of [0, 300]) await assert.rejects(locks.acquire("l", { wait }), ConnectionFailedError);
  assert.equal(await hold.release(), false);
});

test("independent servers: a release that a majority refuses for now is told, and repeated", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const locks = await independent(t, servers);
  const hold = await locks.acquire("k", { wait: 20_000 });
  const refuse = async (least) => {
    for (const { admin } of servers.slice(1)) await admin.call("CONFIG", "SET", "min-replicas-to-write", least);
  };
  await refuse("1");
  await assert.rejects(hold.release(), NotConfirmedError);
  assert.equal(hold.loss, undefined);
  await refuse("0");
  for (const server of servers) await eventually(() => server.isFree("k"), "it is given up", 5000);
  const overwritten = locks.run("k", { wait: 20_000 }, async () => {
    for (const { admin } of servers.slice(1)) await admin.set("k", "v");
  });
  await assert.rejects(overwritten, LockLostError);
});

test("independent servers: a release that is repeated does not end the next hold of its owner", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const locks = await independent(t, servers);
  const refuse = async (least) => {
    for (const { admin } of servers.slice(1)) await admin.call("CONFIG", "SET", "min-replicas-to-write", least);
  };
  const options = { wait: 20_000, owner: "task-7" };
  await locks.run("k", options, () => refuse("1"));
  await refuse("0");
  const hold = await locks.acquire("k", options);
  await pause(2500);
  hold.check();
  assert.equal(await hold.release(), true);
  assert.match(hold.owner, /^task-7:/);
});

test("independent servers: one that is named twice is refused", async (t) => {
  const servers = await Promise.all([0, 1].map(() => startServer(t)));
  const [one, other] = servers;
  await assert.rejects(independent(t, [one, other, one]), { name: "TypeError", message: /is named twice$/ });
  await assert.rejects(independent(t, [one, one, other]), { name: "TypeError", message: /is named twice$/ });
});

for (const driver of DRIVERS.slice(0, 2)) {
  test(`independent servers: two that turn out to be one are refused, and nothing is left: ${driver}`, async (t) => {
    const [one, two, gone] = await Promise.all([0, 1, 2].map(() => startServer(t)));
    const other = { address: `localhost:${one.port}` };
    await gone.kill();
    const places = [
      [[one, other, gone], 0, 1],
      [[one, two, other], 0, 2],
      [[two, other, one], 1, 2],
    ];
    for (const [servers, first, second] of places) {
      const drivers = servers.map((server) => (server === gone ? "ioredis" : driver));
      const locks = await independent(t, servers, drivers);
      const called = (number) => `clients[${number}] (${servers[number].address})`;
      const message = `independent servers must differ: ${called(first)} and ${called(second)} are one server`;
      for (const wait of [0, 20_000]) {
        // The server that is another grants last: with one of the two names it would be a majority.
        await two.admin.call("CLIENT", "PAUSE", "1000", "WRITE");
        await assert.rejects(locks.acquire("k", { wait }), { name: "TypeError", message });
      }
    }
    for (const server of [one, two]) await eventually(() => server.isFree("k"), "nothing is left");
  });
}

test("independent servers: equal tokens of servers that differ do no harm", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const locks = await independent(t, servers);
  // If the clocks lag, all servers grant the next token after the one that was raised.
  const ahead = (Date.now() + 30_000) * 1000;
  for (const { admin } of servers) {
    await admin.call("LOCK.ACQUIRE", "k", "me", "PX", "20000");
    assert.equal(await admin.call("LOCK.RENEW", "k", "me", "PX", "20000", "RAISE", String(ahead)), 1);
    await admin.call("LOCK.RELEASE", "k", "me");
  }
  const hold = await locks.acquire("k", { wait: 0 });
  assert.ok(hold.token > ahead);
  const live = await Promise.all(servers.map(({ admin }) => admin.call("LOCK.FENCE", "k", String(hold.token))));
  assert.ok(live.filter((answer) => answer === 1).length >= 2, `a majority has the token: ${live}`);
  assert.equal(await hold.release(), true);
  for (const server of servers) await eventually(() => server.isFree("k"), "nothing is left");
});
