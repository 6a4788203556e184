// Faults that a proxy or the server causes in requests at the wrong moment.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { ConnectionFailedError, LockKindMismatchError, LockLostError, NotConfirmedError, ServerRefusedError } from "redislock";

import { DRIVERS } from "./clients.mjs";
import { eventually, locksOn, startProxy, startServer } from "./servers.mjs";

/** A server, a proxy to it, and a client's locks by way of the proxy. */
async function behindProxy(t, driver, options) {
  const server = await startServer(t);
  const proxy = await startProxy(t, server);
  return [server, proxy, await locksOn(t, proxy, driver, options)];
}

/** The hold of "k" is still there when all has been repeated that the client had given up; then it is released. */
async function outlives(server, hold, ms = 2500) {
  await pause(ms);
  assert.equal(await server.admin.call("LOCK.FENCE", "k", String(hold.token)), 1);
  assert.equal(await hold.release(), true);
}

for (const driver of DRIVERS.slice(0, 2)) {
  test(`a grant whose reply took as long as the lease is handed to nobody: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const told = [];
    const hooks = { granted: () => told.push("granted"), lost: ({ error }) => told.push(error.reason) };
    const locks = await locksOn(t, proxy, driver, { lease: 1000, hooks });
    proxy.replyDelay = 1500;
    const isLate = (error) => error instanceof LockLostError && error.reason === "deadline";
    await assert.rejects(locks.acquire("k", { wait: 0 }), isLate);
    const body = locks.run("l", { wait: 0 }, () => assert.fail("the body has begun"));
    await assert.rejects(body, isLate);
    assert.deepEqual(told, ["granted", "deadline", "granted", "deadline"]);
    proxy.replyDelay = 0;
    for (const name of "kl") await eventually(() => server.isFree(name), "it is given up");
  });
}

/** Lets the server refuse all writes, or accept them again. */
const refuse = ({ admin }, refuses = true) => admin.call("CONFIG", "SET", "min-replicas-to-write", refuses ? "1" : "0");

/** The field of INFO that tells how often a release was asked for. */
const RELEASES = "cmdstat_(?:lock.release|LOCK.RELEASE)";

for (const driver of DRIVERS.slice(0, 2)) {
  test(`a release that is refused for now is no loss, and is repeated: ${driver}`, async (t) => {
    const server = await startServer(t);
    const told = [];
    const hooks = { released: ({ hold }) => told.push(hold.name), lost: ({ error }) => told.push(error) };
    const locks = await locksOn(t, server, driver, { hooks });
    const own = new RangeError("the body's");
    assert.equal(await locks.run("a", () => refuse(server)), "OK");
    await refuse(server, false);
    await assert.rejects(
      locks.run("b", async () => {
        await refuse(server);
        throw own;
      }),
      (error) => error === own,
    );
    await refuse(server, false);
    const elected = [];
    const leader = locks.leader("c", { onElected: (hold) => elected.push(hold) });
    await eventually(() => leader.isLeading, "it leads");
    const holds = [await locks.acquire("d"), await locks.many(["e", "f"]).acquire()];
    await refuse(server);
    await leader.resign();
    await holds[0][Symbol.asyncDispose]();
    await assert.rejects(holds[1].release(), NotConfirmedError);
    await assert.rejects(holds[1].release(), NotConfirmedError);
    for (const hold of [...elected, ...holds]) assert.equal(hold.loss, undefined);
    await refuse(server, false);
    for (const name of "abcdef") await eventually(() => server.isFree(name), "it is given up", 5000);
    assert.deepEqual(told, ["a", "b", "c", "d", "e"]);
  });
}

test("a release that is refused for good is told, and not repeated", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.acquire("k");
  await server.admin.call("ACL", "SETUSER", "default", "-lock.release");
  await assert.rejects(hold.release(), (error) => error instanceof ServerRefusedError && error.code === "NOPERM");
  assert.equal(hold.loss, undefined);
  await pause(1000);
  assert.match(await server.info(RELEASES), /^calls=0,.*rejected_calls=1,/);
});

test("a release that finds another value in place of the lock is a loss", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const isLost = (error) => error instanceof LockLostError && error.reason === "release";
  await assert.rejects(
    locks.run("k", () => server.admin.set("k", "v")),
    isLost,
  );
});

test("a body that ends after the lease ends in a loss, though no server answers", async (t) => {
  const [, proxy, locks] = await behindProxy(t, "ioredis");
  const body = locks.run("k", { lease: 1000 }, () => {
    proxy.see = () => "cut";
    for (const end = performance.now() + 1100; performance.now() < end; );
  });
  await assert.rejects(body, (error) => error instanceof LockLostError && error.reason === "deadline");
});

test("a request that was cancelled is given up, though the server refuses that for now", async (t) => {
  const [server, proxy, locks] = await behindProxy(t, "ioredis");
  proxy.replyDelay = 200;
  const cancel = new AbortController();
  const request = assert.rejects(locks.acquire("k", { wait: 0, signal: cancel.signal }), { name: "AbortError" });
  await eventually(async () => !(await server.isFree("k")), "it is granted");
  await refuse(server);
  cancel.abort();
  await request;
  await pause(500);
  await refuse(server, false);
  await eventually(() => server.isFree("k"), "it is given up", 5000);
});

for (const driver of DRIVERS.slice(0, 2)) {
  for (const when of ["at once", "when the first has ended"]) {
    test(`a request that was cancelled does not end the next hold of its owner, asked ${when}: ${driver}`, async (t) => {
      const [server, proxy, locks] = await behindProxy(t, driver);
      const options = { wait: 0, owner: "task-7" };
      proxy.replyDelay = 200;
      const cancel = new AbortController();
      const first = assert.rejects(locks.acquire("k", { ...options, signal: cancel.signal }), { name: "AbortError" });
      await pause(50);
      cancel.abort();
      if (when !== "at once") await first;
      const hold = await locks.acquire("k", options);
      await first;
      await outlives(server, hold, 1000);
    });
  }

  test(`a request that no server answered does not end the next hold of its owner: ${driver}`, async (t) => {
    const [server, proxy, locks] = await behindProxy(t, driver, { serverTimeout: 500 });
    const options = { owner: "task-7" };
    proxy.see = () => "freeze";
    await assert.rejects(locks.acquire("k", { ...options, wait: 0 }), ConnectionFailedError);
    proxy.see = () => undefined;
    proxy.cut();
    await pause(10); // so that the next request is queued before the release is repeated
    const hold = await locks.acquire("k", { ...options, wait: 10_000 });
    await outlives(server, hold);
  });

  test(`a release that a replica refused does not end the next hold of its owner: ${driver}`, async (t) => {
    const [server, proxy, locks] = await behindProxy(t, driver);
    const options = { wait: 0, owner: "task-7" };
    proxy.replyDelay = 200;
    const cancel = new AbortController();
    const first = assert.rejects(locks.acquire("k", { ...options, signal: cancel.signal }), { name: "AbortError" });
    await eventually(async () => !(await server.isFree("k")), "it is granted");
    await server.admin.call("REPLICAOF", "127.0.0.1", "1");
    cancel.abort();
    await first;
    await pause(500);
    await server.admin.call("REPLICAOF", "NO", "ONE");
    const hold = await locks.acquire("k", options);
    await outlives(server, hold);
  });

  test(`a refused release that is repeated does not end the next hold of its owner: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const options = { wait: 10_000, owner: "task-7" };
    await locks.run("k", options, () => refuse(server));
    await pause(500);
    await refuse(server, false);
    const hold = await locks.acquire("k", options);
    await outlives(server, hold);
  });
}

test("losses are told by the server, though the connection for that was cut while it was set up", async (t) => {
  const [server, proxy, locks] = await behindProxy(t, "ioredis");
  let asked = 0;
  proxy.see = (text) => (text.includes("TRACKING") && asked++ === 0 ? "cut" : undefined);
  const hold = await locks.acquire("k");
  await eventually(() => asked > 0, "it was cut");
  await pause(1000);
  await server.admin.del("k");
  await eventually(() => hold.loss !== undefined, "the loss is told", 3000);
  assert.equal(hold.loss.reason, "push");
});

test("where CLIENT TRACKING is not allowed, a renewal tells of the loss", async (t) => {
  const server = await startServer(t);
  await server.admin.call("ACL", "SETUSER", "default", "-client|tracking");
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.acquire("k", { lease: 3000 });
  await pause(300);
  await server.admin.del("k");
  await eventually(() => hold.loss !== undefined, "the loss is told", 5000);
  assert.equal(hold.loss.reason, "renewal");
});

test("a wait for several locks asks again, and keeps the place, when the connection falls silent", async (t) => {
  const [server, proxy, locks] = await behindProxy(t, "ioredis", { waitingConnections: 1 });
  const others = await locksOn(t, server, "ioredis");
  const holder = await others.acquire("b");
  let frozen = 0;
  proxy.see = (text) => (text.includes("BLOCK") && frozen++ === 0 ? "freeze" : undefined);
  const waiting = locks.many(["a", "b"]).acquire();
  await eventually(async () => (await server.waiters("b")) === 1, "it waits");
  const next = others.acquire("b");
  await eventually(async () => (await server.waiters("b")) === 2, "another one waits behind it");
  await eventually(() => frozen === 2, "it asks again");
  await pause(3000);
  assert.equal(await server.waiters("b"), 2);
  await holder.release();
  const hold = await waiting;
  assert.equal(await server.waiters("b"), 1);
  await hold.release();
  await (await next).release();
});

test("the late reply to a request that was repeated does not end the hold", async (t) => {
  const [server, proxy, locks] = await behindProxy(t, "ioredis");
  const others = await locksOn(t, server, "ioredis");
  const holder = await others.acquire("k");
  proxy.see = (text) => (text.includes("BLOCK") ? 4000 : undefined);
  const waiting = locks.many(["k", "l"]).acquire({ wait: 1000 });
  await eventually(async () => (await server.waiters("k")) === 1, "it waits");
  await holder.release();
  const hold = await waiting;
  await outlives(server, hold);
});

test("a request that the server refuses does not end another hold of its owner", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const options = { wait: 0, owner: "task-7" };
  const [, hold] = [await locks.read("k").acquire(), await locks.read("k").acquire(options)];
  for (const wait of [0, 1000]) {
    await assert.rejects(locks.semaphore("k", 3).acquire({ ...options, wait }), LockKindMismatchError);
  }
  await pause(300);
  assert.equal(await hold.release(), true);
});

for (const driver of DRIVERS) {
  test(`a reader that asks to write is refused and goes on reading: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const [, hold] = [await locks.read("k").acquire(), await locks.read("k").acquire({ owner: "task-7" })];
    for (const wait of [0, 300, undefined]) {
      await assert.rejects(locks.write("k").acquire({ owner: "task-7", wait }), /LOCKHELD 'k' .* release every key/);
      await assert.rejects(locks.many(["k", "other"]).acquire({ owner: "task-7", wait }), /LOCKHELD/);
    }
    await pause(300);
    assert.equal(await server.waiters("k"), 0);
    assert.equal(await hold.release(), true);
  });
}

test("a release that waits for its connection does not end the next hold of its owner", async (t) => {
  const [server, proxy, locks] = await behindProxy(t, "ioredis");
  const options = { wait: 0, owner: "task-7" };
  proxy.see = (text) => (text.includes("HELLO") ? 500 : undefined);
  await locks.run("k", options, () => refuse(server));
  await refuse(server, false);
  const hold = await locks.acquire("k", options);
  await pause(1500);
  assert.equal(await server.admin.call("LOCK.FENCE", "k", String(hold.token)), 1);
  assert.equal(await hold.release(), true);
});

test("a client that throws at once is as one that rejects", async (t) => {
  const server = await startServer(t);
  const lines = [];
  const log = (line) => lines.push(line);
  const locks = await locksOn(t, server, "ioredis", { logger: { debug: log, info: log, warn: log, error: log } });
  const { client } = locks;
  const { call } = client;
  for (const [verb, said, line] of [
    ["LOCK.RELEASE", "out of order", /^redislock: reconnected to /],
    ["LOCK.ACQUIRE", "READONLY You can't write against a read only replica.", /leads to another server now, not to: READONLY/],
  ]) {
    client.call = (...words) => {
      if (words[0] !== verb) return call.apply(client, words);
      client.call = call;
      throw new Error(said);
    };
    await locks.run("k", () => undefined);
    assert.ok(await server.isFree("k"));
    await locks.run("l", () => undefined);
    assert.equal(lines.filter((each) => line.test(each)).length, 1, lines.join("\n"));
  }
});
