// The meaning of the words of the library that every language has: docs/internals/clients-and-kit.md.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { AlreadyHeldError, LockLostError, LocksClosedError, QuarantineError } from "redislock";
import { Redlock } from "redislock/redlock";

import { connect, DRIVERS } from "./clients.mjs";
import { atEnd, eventually, locksOn, startProxy, startServer } from "./servers.mjs";

const BOTH = DRIVERS.slice(0, 2);

/** Milliseconds that are left of the lease on the server. */
const leftOn = async (locks, name) => (await locks.info(name)).holders[0].leftMs;

for (const driver of BOTH) {
  test(`tryAcquire gives the hold, or null where somebody holds the lock, and leaves no waiter: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const hold = await locks.tryAcquire("k");
    assert.ok(hold.token > 0);
    assert.equal(await locks.lock("k").tryAcquire(), null);
    assert.equal(await locks.semaphore("s", 1).tryAcquire().then((first) => first.name), "s");
    assert.equal(await server.waiters("k"), 0);
    await hold.release();
    assert.equal(await server.isFree("k"), true);
  });

  test(`info tells who holds and who waits; null of a lock that nobody holds: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver, { label: "worker 7" });
    assert.equal(await locks.info("k"), null);
    const first = await locks.semaphore("k", 1).acquire({ lease: 20_000 });
    const waiting = locks.semaphore("k", 1).acquire({ owner: "next" });
    await eventually(async () => (await server.waiters("k")) === 1, "it waits");
    const { holders, queue, ...rest } = await locks.info("k");
    assert.deepEqual(rest, { kind: "limit", limit: 1, holds: 1, waiters: 1 });
    const [{ leftMs, heldMs, ...holder }] = holders;
    assert.deepEqual(holder, { owner: first.owner, token: first.token });
    assert.match(first.owner, /^worker 7:[0-9a-f-]{36}$/);
    assert.ok(leftMs > 0 && leftMs <= 20_000 && heldMs >= 0, `${leftMs}, ${heldMs}`);
    assert.deepEqual(queue.map(({ owner }) => owner), ["next"]);
    assert.ok(queue[0].waitedMs >= 0);
    await first.release();
    await (await waiting).release();
    const alone = await locks.acquire("e");
    assert.equal("limit" in (await locks.info("e")), false);
    await alone.release();
  });

  test(`readers of several locks hold them beside others, and a writer waits: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const [one, two] = await Promise.all([locks.readMany(["a", "b"]).acquire(), locks.readMany(["b", "a"]).acquire()]);
    assert.equal(await locks.write("a").tryAcquire(), null);
    await one.release();
    assert.equal(await locks.write("b").tryAcquire(), null);
    await two.release();
    const hold = await locks.write("a").tryAcquire();
    await hold.release();
  });

  test(`a prefix stands before each name on the server, and in no name of a hold: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver, { prefix: "lock:", lease: 1500 });
    const hold = await locks.acquire("k");
    const both = await locks.many(["a", "b"]).acquire();
    assert.deepEqual((await server.admin.keys("*")).sort(), ["lock:a", "lock:b", "lock:k"]);
    assert.deepEqual([hold.name, both.names], ["k", ["a", "b"]]);
    await locks.checkToken("k", hold.token);
    assert.equal((await locks.info("k")).holders[0].owner, hold.owner);
    // Waiting, renewing and hearing of the loss.
    const waiting = locks.acquire("k");
    await eventually(async () => (await server.waiters("lock:k")) === 1, "it waits");
    await pause(3000);
    hold.check();
    const lost = once(both.signal, "abort");
    await server.admin.del("lock:a");
    await lost;
    await hold.release();
    await (await waiting).release();
    assert.match(both.loss.message, /^lost 'a', 'b': /);
    await eventually(async () => (await server.admin.dbsize()) === 0, "nothing is held");
  });

  test(`extend begins a lease now, and renewals ask for it, too: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const hold = await locks.acquire("k", { lease: 3000 });
    await hold.extend(60_000);
    assert.ok(hold.remaining > 50_000, `${hold.remaining}`);
    assert.ok((await leftOn(locks, "k")) > 50_000);
    await hold.extend(600);
    assert.ok(hold.remaining <= 600, `${hold.remaining}`);
    await pause(2000);
    hold.check();
    assert.ok((await leftOn(locks, "k")) <= 600, "renewals ask for the new lease");
    const fixed = await locks.acquire("l", { lease: 500, renew: false });
    await fixed.extend(3000);
    await pause(1500);
    fixed.check();
    const bounded = await locks.acquire("m", { maxHold: 60_000 });
    await assert.rejects(bounded.extend(70_000), { name: "TypeError", message: /^lease must be at most what is left of maxHold, \d{5} / });
    await assert.rejects(hold.extend(5), { name: "TypeError", message: /^lease must be a whole number .*, 100 or more: 5$/ });
    await server.admin.del("k");
    await assert.rejects(hold.extend(1000), LockLostError);
    await bounded.release();
  });

  test(`a lease that the server refuses leaves the hold its own: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const hold = await locks.acquire("k", { lease: 500 });
    const refusal = { name: "ServerRefusedError", message: /^lease must be from 100 to \d+ milliseconds .*: 172800000$/ };
    await assert.rejects(hold.extend(172_800_000), refusal);
    const together = [172_800_000, 172_800_000, 400, 172_800_000].map((lease) => hold.extend(lease));
    const outcomes = (await Promise.allSettled(together)).map(({ status }) => status);
    assert.deepEqual(outcomes, ["rejected", "rejected", "fulfilled", "rejected"]);
    await pause(1000);
    await assert.rejects(hold.detach(172_800_000), refusal);
    await pause(1000);
    hold.check();
    assert.ok((await leftOn(locks, "k")) <= 500);
    await hold.release();
  });

  test(`an extension that no server answers is an error, and counts on the shorter lease: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver);
    const hold = await locks.acquire("k", { lease: 60_000 });
    server.process.kill("SIGSTOP");
    atEnd(t, () => server.process.kill("SIGCONT"));
    await assert.rejects(hold.extend(20_000), { name: "ConnectionFailedError" });
    assert.ok(hold.remaining > 0 && hold.remaining < 20_000, `${hold.remaining}`);
  });

  test(`a lock stays taken for minHold, whatever becomes of its holder: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver, { lease: 1000 });
    const options = { minHold: 6000 };
    // Released at once, by a body that fails, by its end, and by close().
    const released = await locks.acquire("released", options);
    assert.ok((await leftOn(locks, "released")) > 4000, "the first lease is as long");
    assert.equal(await released.release(), true);
    assert.throws(() => released.check(), LockLostError);
    assert.equal(released.loss, undefined);
    const failing = locks.run("failed", options, () => {
      throw new RangeError("the body's own");
    });
    await assert.rejects(failing, RangeError);
    await locks.semaphore("permit", 1).run(options, () => undefined);
    await locks.many(["a", "b"]).run(options, () => undefined);
    const other = await locksOn(t, server, driver);
    await other.acquire("closed", options);
    await other.close();
    for (const name of ["released", "failed", "permit", "a", "b", "closed"]) {
      const left = await leftOn(locks, name);
      assert.ok(left > 100 && left <= 6000, `${name}: ${left}`);
    }
    assert.equal(await locks.tryAcquire("released"), null);
    assert.equal(await locks.semaphore("permit", 1).tryAcquire(), null);
    // Renewals never cut it, and past it a release frees the lock.
    const held = await locks.acquire("held", { minHold: 3000, lease: 600 });
    await pause(1500);
    assert.ok((await leftOn(locks, "held")) > 700, "a renewal has cut it");
    await pause(2500);
    held.check();
    await held.release();
    assert.equal(await server.isFree("held"), true);
    await eventually(() => server.isFree("released"), "it is free in the end", 20_000);
  });
}

test("a request that is cancelled rejects with the signal's own reason", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.acquire("k");
  const reason = new RangeError("the program's own");
  const cancel = new AbortController();
  const waiting = assert.rejects(locks.acquire("k", { signal: cancel.signal }), (error) => error === reason);
  await eventually(async () => (await server.waiters("k")) === 1, "it waits");
  cancel.abort(reason);
  await waiting;
  await assert.rejects(locks.acquire("l", { signal: cancel.signal }), (error) => error === reason);
  assert.equal(await server.isFree("l"), true, "nothing was asked");
  await hold.release();
});

test("closed locks say so, also to whom waits", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  await locks.acquire("k");
  const waiting = assert.rejects(locks.acquire("k"), LocksClosedError);
  await eventually(async () => (await server.waiters("k")) === 1, "it waits");
  await locks.close();
  await waiting;
  await assert.rejects(locks.tryAcquire("k"), LocksClosedError);
});

test("an owner that asks for another mode of what it holds is told so, and keeps it", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.read("k").acquire({ owner: "ann" });
  await assert.rejects(locks.write("k").acquire({ owner: "ann" }), AlreadyHeldError);
  await locks.checkToken("k", hold.token);
  await hold.release();
});

test("a hold that has lasted for maxHold is lost with that reason", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.acquire("k", { lease: 3000, maxHold: 4000 });
  await once(hold.signal, "abort");
  assert.equal(hold.loss.reason, "max_hold");
  await eventually(() => server.isFree("k"), "its last lease was cut", 2000);
});

test("tryAcquire tells a quarantine from a lock that is held", async (t) => {
  const server = await startServer(t, { words: ["--redislock.quarantine", "20000"] });
  const locks = await locksOn(t, server, "ioredis", { lease: 5000 });
  await assert.rejects(locks.tryAcquire("k"), (error) => error instanceof QuarantineError && error.leftMs > 0);
});

test("ping fails where the server lacks the module, and where nobody listens", async (t) => {
  const bare = await locksOn(t, await startServer(t, { withModule: false }), "ioredis");
  await assert.rejects(bare.ping(), { name: "ModuleMissingError" });
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { serverTimeout: 500 });
  assert.match(await locks.ping(), /^\d+\.\d+\.\d+$/);
  await server.kill();
  await assert.rejects(locks.ping(), { name: "ConnectionFailedError" });
});

for (const driver of DRIVERS) {
  test(`ping fails within 2 s where nobody replies, and counts a reply that comes late: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver);
    await locks.ping();
    proxy.replyDelay = 1300;
    assert.match(await locks.ping(), /^\d+\.\d+\.\d+$/);
    proxy.replyDelay = 0;
    server.process.kill("SIGSTOP");
    const began = performance.now();
    await assert.rejects(locks.ping(), { name: "ConnectionFailedError" });
    server.process.kill("SIGCONT");
    const took = performance.now() - began;
    assert.ok(took > 1900 && took < 3000, `after ${took} ms`);
  });
}

for (const driver of DRIVERS) {
  test(`ping fails where no lock could be asked for: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver, { serverTimeout: 500, prefix: "app:" });
    assert.match(await locks.ping(), /^\d+\.\d+\.\d+$/);

    await server.admin.call("ACL", "SETUSER", "default", "-lock.fence");
    await assert.rejects(locks.ping(), { name: "ServerRefusedError", code: "NOPERM", message: /lock\.fence.*LOCK\.FENCE/ });
    await server.admin.call("ACL", "SETUSER", "default", "+lock.fence", "resetkeys", "~other:*");
    await assert.rejects(locks.ping(), { name: "ServerRefusedError", code: "NOPERM", message: /LOCK\.FENCE/ });
    await server.admin.call("ACL", "SETUSER", "default", "~*");

    await server.admin.call("REPLICAOF", "127.0.0.1", "1");
    await assert.rejects(locks.ping(), { name: "ConnectionFailedError", message: /READONLY.*leads to a replica/ });
    await server.admin.call("REPLICAOF", "NO", "ONE");
    await eventually(() => locks.ping().catch(() => false), "it is the primary again");

    await server.admin.call("SET", "app:redislock:ping", "x");
    proxy.change = (chunk) => Buffer.from(String(chunk).replace("WRONGTYPE Operation", "LOADING Redis is loading"));
    await assert.rejects(locks.ping(), { name: "ConnectionFailedError", message: /LOADING/ });
  });
}

test("independent servers refuse minHold, and know label and prefix", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const made = await Promise.all(servers.map(({ address }) => connect("ioredis", "single", [address])));
  for (const { close } of made) atEnd(t, close);
  const locks = new Redlock(made.map(({ client }) => client), { label: "worker 7", prefix: "lock:" });
  atEnd(t, () => locks.close());
  await assert.rejects(locks.acquire("k", { minHold: 1000 }), { name: "TypeError", message: "minHold is not for independent servers" });
  const hold = await locks.acquire("k");
  assert.match(hold.owner, /^worker 7:/);
  assert.deepEqual(await servers[0].admin.keys("*"), ["lock:k"]);
  assert.equal(await locks.tryAcquire("k"), null);
  await hold.release();
});
