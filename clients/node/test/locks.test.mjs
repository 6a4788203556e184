// Locks on one real server, over each driver.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";
import { runInNewContext } from "node:vm";

import {
  ConnectionFailedError,
  DeadlockError,
  FencedError,
  LockKindMismatchError,
  LockLostError,
  LocksClosedError,
  Locks,
  LockTimeoutError,
  ModuleMissingError,
  QuarantineError,
  QueueFullError,
  ServerRefusedError,
} from "redislock";

import { connect, DRIVERS } from "./clients.mjs";
import { atEnd, eventually, locksOn, startServer } from "./servers.mjs";

/** The output of this program. It runs in a process of its own, to its end. */
async function outputOf(program) {
  const options = { cwd: new URL("..", import.meta.url), timeout: 50_000 };
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program], options);
  return stdout;
}

/** The number of connections of the server that are ours by name. */
async function lines(server) {
  const list = await server.admin.call("CLIENT", "LIST");
  return list.split("\n").filter((line) => line.includes("name=redislock ")).length;
}

for (const driver of DRIVERS) {
  test(`a lock is held by one, passed on in order and free at the end: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver, { maxQueuedPerLock: 20 });
    const first = await locks.acquire("k", { wait: 0 });
    assert.match(first.owner, new RegExp(`:${process.pid}:`));
    assert.ok(first.remaining > 20_000 && first.remaining <= 30_000 - 302);
    await assert.rejects(locks.acquire("k", { wait: 0 }), LockTimeoutError);
    await assert.rejects(locks.acquire("k", { wait: 50 }), LockTimeoutError);
    await eventually(async () => (await server.waiters("k")) === 0, "a waiter that came too late waits no more");
    const order = [];
    const all = Array.from({ length: 20 }, async (_, number) => {
      await locks.run("k", (hold) => order.push([number, hold.token]));
    });
    await eventually(async () => (await server.waiters("k")) === 20, "all wait");
    await eventually(async () => (await lines(server)) === 1, "one connection hears for all");
    assert.equal(await first.release(), true);
    await Promise.all(all);
    assert.deepEqual(
      order.map(([number]) => number),
      Array.from({ length: 20 }, (_, number) => number),
    );
    assert.ok(order.every(([, token], place) => token > (order[place - 1]?.[1] ?? first.token)));
    assert.ok(await server.isFree("k"));
    assert.equal(first.remaining, 0);
    const isGivenUp = (error) => error instanceof LockLostError && error.message === "the hold of 'k' was given up";
    assert.throws(() => first.check(), isGivenUp);
  });

  test(`a loss is told once by the server's push, and ends the body: ${driver}`, async (t) => {
    const server = await startServer(t);
    const losses = [];
    const locks = await locksOn(t, server, driver, { hooks: { lost: ({ error }) => losses.push(error) } });
    const hold = await locks.acquire("k");
    await eventually(async () => (await lines(server)) === 1, "it listens");
    await pause(100);
    await server.admin.del("k");
    await eventually(() => hold.signal.aborted, "it is told", 3000);
    assert.equal(hold.signal.reason, hold.loss);
    assert.equal(hold.loss.reason, "push");
    assert.throws(() => hold.check(), LockLostError);
    assert.equal(await hold.release(), false);
    const broken = locks.run("k", async ({ signal }) => {
      setTimeout(() => server.admin.del("k"), 100);
      await pause(20_000, undefined, { signal });
    });
    await assert.rejects(broken, LockLostError);
    assert.equal(losses.length, 2);
  });

  test(`a hold outlives its lease and the connections, and cancelling leaves nothing: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const holder = await locks.acquire("k", { lease: 1500 });
    const waiting = locks.acquire("k", { lease: 1500 });
    await eventually(async () => (await server.waiters("k")) === 1, "it waits");
    await pause(2500);
    holder.check();
    await server.admin.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    await holder.release();
    const next = await waiting;
    await server.admin.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    const cancel = new AbortController();
    const cancelled = locks.acquire("k", { signal: cancel.signal });
    await eventually(async () => (await server.waiters("k")) === 1, "another waits");
    cancel.abort();
    await assert.rejects(cancelled, { name: "AbortError" });
    await eventually(async () => (await server.waiters("k")) === 0, "it waits no more");
    await pause(2000);
    next.check();
    await next.release();
    assert.ok(await server.isFree("k"));
  });
}

test("readers share, a writer is alone, a semaphore has permits, many is all or none", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const readers = await Promise.all([locks.read("b").acquire(), locks.read("b").acquire()]);
  await assert.rejects(locks.write("b").acquire({ wait: 0 }), LockTimeoutError);
  const writer = locks.write("b").acquire();
  await eventually(async () => (await server.waiters("b")) === 1, "the writer waits");
  const late = locks.read("b").acquire();
  await eventually(async () => (await server.waiters("b")) === 2, "a reader waits behind it");
  await Promise.all(readers.map((hold) => hold.release()));
  const token = await (await writer).token;
  await (await writer).release();
  assert.ok((await late).token > token);
  await (await late).release();

  const permits = locks.semaphore("s", 2);
  const two = [await permits.acquire(), await permits.acquire()];
  await assert.rejects(permits.acquire({ wait: 0 }), LockTimeoutError);
  await assert.rejects(locks.semaphore("s", 3).acquire(), LockKindMismatchError);
  await Promise.all(two.map((hold) => hold.release()));

  const one = await locks.acquire("y");
  const many = locks.many(["x", "y", "z"]);
  await assert.rejects(many.acquire({ wait: 100 }), LockTimeoutError);
  const all = many.acquire({ lease: 900 });
  await eventually(async () => (await server.waiters("x")) === 1, "it waits for all");
  await one.release();
  const hold = await all;
  await pause(1500);
  for (const name of hold.names) assert.equal(await server.admin.call("LOCK.FENCE", name), hold.token);
  await hold.release();
  for (const name of "bsxyz") assert.ok(await server.isFree(name), name);
});

test("readers in line are let in together", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "node-redis", { maxQueuedPerLock: 30 });
  const writer = await locks.write("b").acquire();
  const readers = Array.from({ length: 30 }, () => locks.read("b").acquire());
  await eventually(async () => (await server.waiters("b")) === 30, "they wait");
  await writer.release();
  const holds = await Promise.all(readers);
  assert.equal(new Set(holds.map(({ token }) => token)).size, 30);
  await Promise.all(holds.map((hold) => hold.release()));
  assert.ok(await server.isFree("b"));
});

test("two processes' worth of waiters are served in the order of their arrival", async (t) => {
  const server = await startServer(t);
  const sides = [await locksOn(t, server, "ioredis"), await locksOn(t, server, "node-redis")];
  const holder = await sides[0].acquire("k");
  const order = [];
  const all = [];
  for (let number = 0; number < 12; number++) {
    all.push(sides[number % 2].run("k", () => order.push(number)));
    await eventually(async () => (await server.waiters("k")) === number + 1, "it is in line");
  }
  await holder.release();
  await Promise.all(all);
  assert.deepEqual(
    order,
    [...order].sort((one, other) => one - other),
  );
});

test("a thousand tasks wait over one connection and are served in order", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const holder = await locks.acquire("k");
  const order = [];
  const all = Array.from({ length: 1000 }, (_, number) => locks.run("k", () => order.push(number)));
  await eventually(async () => (await server.waiters("k")) === 16, "the first ones stand in its queue");
  await eventually(async () => (await lines(server)) === 1, "all wait over one connection");
  await holder.release();
  await Promise.all(all);
  assert.ok(order.every((number, place) => number === place));
});

test("at most maxQueuedPerLock tasks stand in the server's queue, in order", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { maxQueuedPerLock: 3, serverTimeout: 2000 });
  const holder = await locks.acquire("k");
  const order = [];
  const all = Array.from({ length: 10 }, (_, number) => locks.run("k", () => order.push(number)));
  const late = locks.acquire("k", { wait: 50 });
  const cancel = new AbortController();
  const cancelled = locks.acquire("k", { signal: cancel.signal });
  await assert.rejects(late, LockTimeoutError);
  cancel.abort();
  await assert.rejects(cancelled, { name: "AbortError" });
  await eventually(async () => (await server.waiters("k")) === 3, "three stand there");
  await pause(2500); // longer than a place is asked for again, and than serverTimeout
  assert.equal(await server.waiters("k"), 3);
  await holder.release();
  await Promise.all(all);
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  assert.ok(await server.isFree("k"));
  await locks.acquire("k", { renew: false });
  const silent = Array.from({ length: 10 }, () => locks.acquire("k"));
  const standing = locks.leader("k", { onElected: () => undefined });
  await eventually(async () => (await server.waiters("k")) === 3, "three stand there again");
  await server.kill();
  const began = performance.now();
  for (const outcome of await Promise.allSettled(silent)) assert.equal(outcome.reason.name, "ConnectionFailedError");
  assert.ok(performance.now() - began < 15_000, "they fail together, not one after the other");
  await standing.resign();
});

test("an owner that the program names stands in the queue at once, so that the server sees its deadlock", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { maxQueuedPerLock: 1 });
  await locks.acquire("a", { owner: "ann" });
  await locks.acquire("b", { owner: "ben" });
  const cancel = new AbortController();
  const others = [1, 2, 3].map(() => locks.acquire("a", { signal: cancel.signal }));
  const ann = locks.acquire("b", { owner: "ann", signal: cancel.signal });
  await eventually(async () => (await server.waiters("b")) === 1, "ann waits for ben");
  await assert.rejects(locks.acquire("a", { owner: "ben" }), DeadlockError);
  cancel.abort();
  for (const waiting of [...others, ann]) await assert.rejects(waiting, { name: "AbortError" });
});

test("an owner that holds a lock waits for several over a connection of its own, whatever others wait", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { waitingConnections: 1 });
  await locks.acquire("a", { owner: "ann" });
  await locks.acquire("b", { owner: "ben" });
  const cancel = new AbortController();
  const others = [1, 2, 3].map(() => locks.many(["b", "c"]).acquire({ signal: cancel.signal }));
  await eventually(async () => (await server.waiters("b")) === 1, "one of them waits");
  const ben = locks.acquire("a", { owner: "ben", signal: cancel.signal });
  await eventually(async () => (await server.waiters("a")) === 1, "ben waits for ann");
  await assert.rejects(locks.many(["b", "c"]).acquire({ owner: "ann", wait: 20_000 }), DeadlockError);
  cancel.abort();
  for (const waiting of [...others, ben]) await assert.rejects(waiting, { name: "AbortError" });
});

test("a wait for several locks needs no room once its owner holds a lock", async (t) => {
  const server = await startServer(t);
  let waits = 0;
  const hooks = { waiting: () => waits++ };
  const locks = await locksOn(t, server, "ioredis", { waitingConnections: 1, hooks });
  const theirs = await locksOn(t, server, "ioredis");
  await theirs.acquire("b", { owner: "ben" });
  const cancel = new AbortController();
  const { signal } = cancel;
  const other = locks.many(["b", "c"]).acquire({ signal });
  await eventually(async () => (await server.waiters("b")) === 1, "the other one waits");
  const ann = locks.many(["b", "c"]).acquire({ owner: "ann", signal });
  await eventually(() => waits === 2, "ann waits for a connection");
  await pause(20);
  assert.equal(await server.waiters("b"), 1);
  const mine = await locks.acquire("a", { owner: "ann" });
  await eventually(async () => (await server.waiters("b")) === 2, "ann waits for ben");
  await assert.rejects(theirs.acquire("a", { owner: "ben", wait: 20_000 }), DeadlockError);
  cancel.abort();
  for (const waiting of [other, ann]) await assert.rejects(waiting, { name: "AbortError" });
  await mine.release();
  // The room that was exceeded is free again.
  const [one, two] = [1, 2].map((wait) => locks.many(["b", "c"]).acquire({ wait: 1500 * wait }));
  await eventually(async () => (await server.waiters("b")) === 1, "one of two has the connection");
  await assert.rejects(one, LockTimeoutError);
  await assert.rejects(two, LockTimeoutError);
});

test("what the body throws comes out, and the lock is free", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const own = new RangeError("the body's");
  await assert.rejects(
    locks.run("k", () => Promise.reject(own)),
    (error) => error === own,
  );
  assert.ok(await server.isFree("k"));
  const cancel = new AbortController();
  const body = locks.run("k", { signal: cancel.signal }, ({ signal }) => {
    cancel.abort();
    return pause(20_000, undefined, { signal });
  });
  await assert.rejects(body, { name: "AbortError" });
  assert.ok(await server.isFree("k"));
  assert.equal(await locks.run("k", () => 42), 42);
});

test("a body may return a promise of another realm, or what is sent each time that it is awaited", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  let end;
  let sent = 0;
  const ending = (resolve) => {
    end = resolve;
    sent++;
  };
  const foreign = runInNewContext("new Promise(ending)", { ending });
  assert.equal(foreign instanceof Promise, false);
  for (const result of [foreign, { then: ending }]) {
    const running = locks.run("k", () => result);
    await eventually(async () => !(await server.isFree("k")));
    await pause(50);
    assert.equal(await server.isFree("k"), false);
    end(43);
    assert.equal(await running, 43);
    assert.ok(await server.isFree("k"));
  }
  assert.equal(sent, 2);
});

test("a hold that is not renewed ends, and one is renewed no longer than it may last", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const short = await locks.acquire("a", { lease: 400, renew: false });
  const longest = await locks.acquire("b", { lease: 400, maxHold: 800 });
  await eventually(() => short.loss !== undefined, "the lease ends", 5000);
  longest.check();
  await eventually(() => longest.loss !== undefined, "the longest hold ends", 10_000);
  assert.ok(performance.now() - longest.heldSince >= 700);
});

test("errors can be told apart", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "node-redis");
  const hold = await locks.acquire("a", { owner: "ann" });
  await locks.checkToken("a", hold.token);
  await assert.rejects(locks.checkToken("a", hold.token - 1), FencedError);
  await locks.acquire("b", { owner: "ben" });
  const waiting = locks.acquire("b", { owner: "ann", wait: 20_000 });
  await eventually(async () => (await server.waiters("b")) === 1, "ann waits for ben");
  await assert.rejects(locks.acquire("a", { owner: "ben" }), (error) => {
    assert.ok(error instanceof DeadlockError);
    assert.deepEqual(error.cycle.map(({ owner }) => owner).sort(), ["ann", "ben"]);
    return true;
  });
  await server.admin.del("b");
  await (await waiting).release();
  await server.admin.set("value", "1");
  await assert.rejects(locks.acquire("value"), (error) => error instanceof ServerRefusedError && error.code === "WRONGTYPE");
  await server.admin.call("CONFIG", "SET", "redislock.max-waiters-per-lock", "1");
  const first = locks.acquire("a", { wait: 3000 });
  await eventually(async () => (await server.waiters("a")) === 1, "one waits");
  await assert.rejects(locks.acquire("a"), QueueFullError);
  await hold.release();
  await (await first).release();
});

test("a server in quarantine, one without the module and none at all", async (t) => {
  const module = process.env.REDISLOCK_MODULE;
  const words = ["--loadmodule", module, "quarantine", "3000"];
  const quiet = await startServer(t, { withModule: false, words });
  const locks = await locksOn(t, quiet, "ioredis", { lease: 2000 });
  await assert.rejects(locks.acquire("k", { wait: 0 }), (error) => error instanceof QuarantineError && error.leftMs > 0);
  await (await locks.acquire("k")).release();
  const bare = await startServer(t, { withModule: false });
  await assert.rejects((await locksOn(t, bare, "node-redis")).acquire("k"), ModuleMissingError);
  const gone = await startServer(t);
  const late = await locksOn(t, gone, "ioredis", { serverTimeout: 500 });
  await (await late.acquire("k")).release();
  await gone.kill();
  await assert.rejects(late.acquire("k", { wait: 0 }), ConnectionFailedError);
  await assert.rejects(late.acquire("k", { wait: 300 }), ConnectionFailedError);
});

test("a setting of the server that allows shorter waits is heeded", async (t) => {
  const server = await startServer(t);
  await server.admin.call("CONFIG", "SET", "redislock.max-wait", "400");
  const locks = await locksOn(t, server, "ioredis");
  const holder = await locks.acquire("k");
  const waiting = locks.acquire("k", { wait: 20_000 });
  await eventually(async () => (await server.waiters("k")) === 1, "it waits");
  await pause(1000);
  await holder.release();
  await (await waiting).release();
});

test("a leader is elected, deposed and elected again, until it resigns", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const told = [];
  const leader = locks.leader("job", {
    onElected: ({ token }) => told.push(token),
    onDeposed: (reason) => told.push(reason),
  });
  await eventually(() => leader.isLeading, "it leads");
  await pause(200);
  await server.admin.del("job");
  await eventually(() => told.length === 3, "it leads again");
  assert.equal(told[1], "push");
  assert.ok(told[2] > told[0]);
  await leader.resign();
  assert.ok(await server.isFree("job"));
  assert.equal(leader.isLeading, false);
});

test("a leader whose callback fails gives the lock up, and stands again", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const errors = [];
  const tokens = [];
  const own = new RangeError("the callback's");
  const failing = locks.leader("job", {
    onElected: ({ token }) => {
      tokens.push(token);
      if (tokens.length < 4) throw own;
    },
    onError: (error) => errors.push(error),
  });
  await eventually(() => errors.length === 1, "the error is told");
  assert.equal(failing.isLeading, false);
  assert.equal(failing.hold, undefined);
  const began = performance.now();
  await eventually(() => tokens.length === 4, "it is elected again", 10_000);
  assert.ok(performance.now() - began > 200, "it pauses, and longer each time");
  assert.deepEqual(errors, [own, own, own]);
  assert.deepEqual(tokens, [...new Set(tokens)].sort((one, other) => one - other), "each time anew");
  await failing.resign();

  const useless = locks.leader("task", {
    onElected: () => {
      throw own;
    },
    onError: (error) => errors.push(error),
  });
  await eventually(() => errors.length === 4, "the error is told");
  const other = locks.leader("task", { onElected: () => undefined });
  await eventually(() => other.isLeading, "another one leads", 10_000);
  await useless.resign();
  await other.resign();
  assert.ok(await server.isFree("task"));
});

test("a callback that fails when a leader is deposed ends nothing", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const errors = [];
  const own = new RangeError("the callback's");
  const leader = locks.leader("job", {
    onElected: () => undefined,
    onDeposed: () => {
      throw own;
    },
    onError: (error) => errors.push(error),
  });
  await eventually(() => leader.isLeading, "it leads");
  await pause(200);
  await server.admin.del("job");
  await eventually(() => errors.length === 1 && leader.isLeading, "it leads again");
  assert.deepEqual(errors, [own]);
  await leader.resign();
  assert.ok(await server.isFree("job"));
});

test("hooks count, and one that fails costs nobody a lock", async (t) => {
  const server = await startServer(t);
  const counts = {};
  const count = (name) => () => {
    counts[name] = (counts[name] ?? 0) + 1;
    throw new Error("a hook that fails");
  };
  const names = ["granted", "waiting", "timedOut", "lost", "released"];
  const hooks = Object.fromEntries(names.map((name) => [name, count(name)]));
  const locks = await locksOn(t, server, "ioredis", { hooks });
  const hold = await locks.acquire("k");
  await assert.rejects(locks.acquire("k", { wait: 500 }), LockTimeoutError);
  await hold.release();
  await locks.acquire("k", { lease: 100, renew: false });
  await eventually(() => counts.lost === 1, "the lease ends");
  assert.deepEqual(counts, { granted: 2, waiting: 1, timedOut: 1, released: 1, lost: 1 });
});

test("close gives up all, and nothing can be taken after it", async (t) => {
  const server = await startServer(t);
  const { client, close } = await connect("ioredis", "single", [server.address]);
  const locks = new Locks(client);
  const other = await locksOn(t, server, "ioredis");
  const busy = await other.acquire("busy");
  await locks.acquire("k");
  const waiting = locks.acquire("busy");
  await eventually(async () => (await server.waiters("busy")) === 1, "it waits");
  const stopped = assert.rejects(waiting, LocksClosedError);
  await locks.close();
  await stopped;
  assert.ok(await server.isFree("k"));
  await eventually(async () => (await server.waiters("busy")) === 0, "it waits no more");
  await assert.rejects(locks.acquire("k"), LocksClosedError);
  await busy.release();
  await close();
});

test("close is told to those who hold", async (t) => {
  const server = await startServer(t);
  const { client, close } = await connect("ioredis", "single", [server.address]);
  const locks = new Locks(client);
  const deposed = [];
  const leader = locks.leader("job", { onElected: () => undefined, onDeposed: (reason) => deposed.push(reason) });
  await eventually(() => leader.isLeading, "it leads");
  const { signal } = leader.hold;
  const body = locks.run("k", async (hold) => {
    await locks.close();
    assert.equal(hold.signal.reason.reason, "close");
  });
  await assert.rejects(body, (error) => error instanceof LockLostError && error.reason === "close");
  assert.deepEqual(deposed, ["close"]);
  assert.ok(signal.aborted && leader.hold === undefined);
  assert.ok((await server.isFree("k")) && (await server.isFree("job")));
  await close();
});

for (const driver of DRIVERS.slice(0, 2)) {
  test(`close waits for bodies, and leaves the lease to one that works longer: ${driver}`, async (t) => {
    const server = await startServer(t);
    const { client, close } = await connect(driver, "single", [server.address]);
    atEnd(t, close);
    const lines = [];
    const log = (line) => lines.push(line);
    const locks = new Locks(client, { logger: { debug: log, info: log, warn: log, error: log } });
    const isClosed = (error) => error instanceof LockLostError && error.reason === "close";
    const told = [];
    let finish;
    const finished = new Promise((resolve) => (finish = resolve));
    const works = async (hold, work) => {
      await once(hold.signal, "abort");
      told.push(hold.name);
      await work;
      assert.equal(await server.isFree(hold.name), false, "it is held as long as the body works");
    };
    const bodies = [
      assert.rejects(locks.run("short", (hold) => works(hold, pause(300))), isClosed),
      assert.rejects(locks.run("long", (hold) => works(hold, finished)), isClosed),
    ];
    await locks.acquire("idle");
    await eventually(async () => !(await server.isFree("long")), "both are held");
    await locks.close(2000);
    assert.deepEqual(told, ["short", "long"]);
    assert.ok(await server.isFree("idle"));
    assert.ok(await server.isFree("short"));
    assert.equal(await server.isFree("long"), false);
    assert.deepEqual(lines.filter((line) => line.includes("works under")), [
      "redislock: closed while the program works under 'long', which its lease ends",
    ]);
    finish();
    await Promise.all(bodies);
    await eventually(() => server.isFree("long"), "the end of the body gives it up");
  });
}

test("a close from inside of a body does not wait for that, and for others", async (t) => {
  const server = await startServer(t);
  const { client, close } = await connect("ioredis", "single", [server.address]);
  atEnd(t, close);
  const locks = new Locks(client);
  const isClosed = (error) => error instanceof LockLostError && error.reason === "close";
  let closed = false;
  const other = assert.rejects(locks.run("other", async () => {
    await pause(500);
    assert.equal(closed, false);
  }), isClosed);
  const outer = locks.run("outer", () => locks.run("inner", async () => {
    const began = performance.now();
    await locks.close(60_000);
    closed = true;
    assert.ok(performance.now() - began < 30_000, "it waits for itself");
    assert.ok((await server.isFree("inner")) && (await server.isFree("outer")) && (await server.isFree("other")));
  }));
  await assert.rejects(outer, isClosed);
  await other;
});

test("after close nothing keeps the process alive", async (t) => {
  const server = await startServer(t);
  const program = `
    import { createClient } from "redis";
    import { Locks } from "redislock";
    const client = createClient({ url: "redis://127.0.0.1:${server.port}" });
    client.on("error", () => undefined);
    await client.connect();
    const locks = new Locks(client);
    await locks.acquire("k", { lease: 40_000 });
    process.kill(${server.process.pid}, "SIGKILL");
    await locks.close();
    client.destroy();
    const began = Date.now();
    process.on("exit", () => console.log(Date.now() - began));`;
  assert.ok(Number(await outputOf(program)) < 15_000, "it does not go on until the lease is over");
});

test("a process lives as long as it waits for a lock or for a release", async () => {
  const program = `
    import { Locks } from "redislock";
    import { Server } from "redislock/testing";
    const server = new Server();
    const locks = new Locks(server);
    await locks.acquire("k", { lease: 500, renew: false });
    const hold = await locks.acquire("k");
    server.redislockDriver.send = () => new Promise((resolve) => setTimeout(resolve, 500, 1).unref());
    console.log(await hold.release());`;
  assert.equal(await outputOf(program), "true\n");
});

test("a request that does not wait ends in time, whatever the client tries by itself", async () => {
  const program = `
    import Redis from "ioredis";
    import { Locks } from "redislock";
    const retries = { maxRetriesPerRequest: 1, retryStrategy: (times) => [1, 900][times % 2] };
    const gone = new Redis({ port: 1, ...retries });
    gone.on("error", () => undefined);
    const began = performance.now();
    await new Locks(gone, { serverTimeout: 1000 }).acquire("k", { wait: 0 }).catch((error) => console.log(error.name));
    console.log(performance.now() - began);
    gone.disconnect();`;
  const [name, took] = (await outputOf(program)).split("\n");
  assert.equal(name, "ConnectionFailedError");
  assert.ok(Number(took) > 500 && Number(took) < 1300, took);
});

test("a failure says how the client is", async () => {
  const program = `
    import Redis from "ioredis";
    import { Locks } from "redislock";
    const gone = new Redis({ port: 1, maxRetriesPerRequest: null });
    gone.on("error", () => undefined);
    await new Locks(gone, { serverTimeout: 300 }).acquire("k", { wait: 0 }).catch((error) => console.log(error.message));
    gone.disconnect();`;
  const said = await outputOf(program);
  assert.match(said, /^could not acquire 'k' within \S+ s: no reply from localhost:1 for .*; the client is (re)?connecting\n$/);
});

test("what a program without types gets wrong is refused", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const refused = (made, message) => assert.rejects(async () => made(), { name: "TypeError", message });
  await refused(() => locks.acquire("k", { timeout: 5 }), /no option timeout; there are lease, wait, signal/);
  await refused(() => locks.acquire("k", 5), /the options must be an object: 5/);
  await refused(() => locks.run("k", () => 1, { wait: 5 }), /run takes its options before its body/);
  await refused(() => locks.run("k", { wait: 5 }), /run needs a body/);
  for (const name of [undefined, null, {}, 42]) {
    await refused(() => locks.acquire(name), /a name must be a string: /);
  }
  await refused(() => locks.many("abc"), /the names must be an array of strings: 'abc'/);
  await refused(() => locks.acquire("k", { lease: "30000" }), /lease must be a whole number .*: '30000'/);
  await refused(() => locks.acquire("k", { lease: 99 }), /lease must be a whole number of milliseconds, 100 or more: 99/);
  await refused(() => locks.acquire(""), /a name must not be empty/);
  await refused(() => locks.acquire("k", { maxHold: -1 }), /maxHold must be a whole number .*: -1/);
  for (const client of [undefined, "redis://127.0.0.1", { host: "127.0.0.1" }]) {
    await refused(() => new Locks(client), /^a client of ioredis or node-redis is needed, as new Redis\(\) or createClient\(\) gives it, not /);
  }
  assert.equal(await server.admin.call("DBSIZE"), 0);
});
