// The server in the process (redislock/testing): the same tests run over it and over a real one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { DeadlockError, FencedError, LockKindMismatchError, Locks, LockLostError, LocksClosedError, LockTimeoutError } from "redislock";
import { Server } from "redislock/testing";

import { atEnd, eventually, locksOn, startServer } from "./servers.mjs";

/** Makes locks of a server of one kind or the other, and loses them. */
const STAGES = {
  real: async (t) => {
    const server = await startServer(t);
    const lose = (name) => server.admin.call("DEL", name);
    const ask = (words) => server.admin.call(...words).catch((error) => error);
    return { make: (options) => locksOn(t, server, "ioredis", options), lose, ask };
  },
  double: async (t) => {
    const server = new Server();
    const make = async (options) => {
      const locks = new Locks(server, options);
      atEnd(t, () => locks.close());
      return locks;
    };
    const ask = (words) => server.redislockDriver.send("", words.map(String)).catch((error) => error);
    return { make, lose: (name) => server.lose(name), ask };
  },
};

function both(title, body) {
  for (const [kind, stage] of Object.entries(STAGES)) {
    test(`${title}: ${kind}`, { timeout: 90_000 }, async (t) => {
      const made = await stage(t);
      await body(made.make, made.lose);
    });
  }
}

const waits = (locks, name, count) => eventually(async () => (await locks.info(name))?.waiters === count, `${count} wait`);

both("a lock excludes until it is released", async (make) => {
  const [ours, theirs] = [await make(), await make()];
  const hold = await ours.acquire("k");
  assert.equal(await theirs.tryAcquire("k"), null);
  assert.equal(await theirs.read("k").tryAcquire(), null);
  await assert.rejects(theirs.acquire("k", { wait: 50 }), LockTimeoutError);
  await ours.checkToken("k", hold.token);
  assert.equal((await ours.info("k")).holders[0].owner, hold.owner);
  await hold.release();
  const later = await theirs.tryAcquire("k");
  assert.ok(later.token > hold.token);
  await assert.rejects(ours.checkToken("k", hold.token), FencedError);
  await later.release();
  assert.equal(await ours.info("k"), null);
  await ours.ping();
});

both("waiters are served in order", async (make) => {
  const locks = await make();
  const hold = await (await make()).acquire("k");
  const order = [];
  const waiting = [];
  for (let number = 0; number < 5; number++) {
    waiting.push(locks.run("k", () => order.push(number)));
    await waits(locks, "k", number + 1);
  }
  await hold.release();
  await Promise.all(waiting);
  assert.deepEqual(order, [0, 1, 2, 3, 4]);
});

both("readers share, a semaphore has its permits, several locks are taken together", async (make) => {
  const [locks, others] = [await make(), await make()];
  const readers = [await locks.read("r").acquire(), await locks.read("r").acquire()];
  const writing = locks.write("r").acquire({ wait: 60_000 });
  await waits(locks, "r", 1);
  assert.equal(await locks.read("r").tryAcquire(), null);
  for (const reader of readers) await reader.release();
  await (await writing).release();
  const permits = [await locks.semaphore("s", 2).acquire(), await locks.semaphore("s", 2).acquire()];
  assert.equal(await locks.semaphore("s", 2).tryAcquire(), null);
  await assert.rejects(locks.semaphore("s", 3).tryAcquire(), LockKindMismatchError);
  for (const permit of permits) await permit.release();
  const one = await others.acquire("b");
  assert.equal(await locks.many(["a", "b"]).tryAcquire(), null);
  const taking = locks.many(["a", "b"]).acquire({ wait: 60_000 });
  await waits(locks, "b", 1);
  await one.release();
  const all = await taking;
  await locks.checkToken("a", all.token);
  await all.release();
});

both("a loss is reported, leases and the longest hold end", async (make, lose) => {
  const locks = await make();
  const hold = await locks.acquire("k");
  const [brief, bounded] = [await locks.acquire("b", { lease: 3000, renew: false }), await locks.acquire("c", { maxHold: 3000 })];
  await pause(200); // a hold that is over sooner asks for no notice
  await lose("k");
  await eventually(() => hold.signal.aborted, "the loss is told");
  assert.ok(hold.signal.reason instanceof LockLostError && hold.signal.reason.reason === "push");
  await eventually(() => brief.signal.aborted && bounded.signal.aborted, "they end");
  assert.deepEqual([brief.signal.reason.reason, bounded.signal.reason.reason], ["deadline", "max_hold"]);
  await eventually(async () => (await locks.info("b")) === null, "the server ends it, too");
});

both("a minimal hold outlives its release, a deadlock is refused, closing gives up", async (make) => {
  const [locks, others] = [await make(), await make()];
  await (await locks.acquire("report", { minHold: 60_000 })).release();
  assert.equal(await others.tryAcquire("report"), null);
  const left = await locks.acquire("left", { owner: "ann" });
  const right = await locks.acquire("right", { owner: "ben" });
  const waiting = locks.acquire("right", { owner: "ann", wait: 60_000 });
  await waits(locks, "right", 1);
  await assert.rejects(locks.acquire("left", { owner: "ben", wait: 60_000 }), DeadlockError);
  await right.release();
  await (await waiting).release();
  await locks.close();
  await assert.rejects(locks.acquire("k"), LocksClosedError);
  assert.equal(left.loss?.reason ?? left.signal.reason?.reason, "close");
  assert.equal(await others.info("left"), null);
});

test("the clock is moved", async () => {
  const server = new Server();
  const [locks, others] = [new Locks(server), new Locks(server)];
  const [renewed, brief] = [await locks.acquire("a"), await locks.acquire("b", { renew: false })];
  await (await locks.acquire("report", { minHold: 50_000 })).release();
  await server.advance(30_000);
  assert.ok(renewed.remaining > 15_000 && brief.signal.aborted);
  assert.notEqual(await others.tryAcquire("b"), null);
  assert.equal(await others.tryAcquire("report"), null);
  await server.advance(25_000);
  assert.notEqual(await others.tryAcquire("report"), null);
  let ended;
  const waiting = others.acquire("a", { wait: 600_000 }).catch((error) => (ended = error));
  await server.advance(500_000);
  assert.equal(ended, undefined);
  await server.advance(110_000);
  await waiting;
  assert.ok(ended instanceof LockTimeoutError);
  await server.lose("a");
  assert.equal(renewed.signal.reason.reason, "push");
  await assert.rejects(server.advance(-1), TypeError);
  await Promise.all([locks.close(), others.close()]);
});

/** The same numbers from the same seed. */
function chanceOf(seed) {
  let state = seed + 1;
  return (most) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % most;
  };
}

const OWNERS = ["ann", "ben", "cleo"];

/** A command, given the tokens that were granted. */
function commandOf(chance, names) {
  const some = chance(4) === 0 ? names : [names[chance(2)]];
  const owner = OWNERS[chance(3)];
  const mode = [[], [], [], ["SHARED"], ["SHARED"], ["LIMIT", 2]][chance(6)];
  const wait = [[], [], ["QUEUE", 60_000]][chance(3)];
  const [what, place] = [chance(10), chance(8)];
  const token = (known) => (known.length > 0 && place < 4 ? ["TOKEN", known[place % known.length]] : place === 4 ? ["TOKEN", 1] : []);
  if (what < 5 && some.length === 1) return () => ["LOCK.ACQUIRE", ...some, owner, "PX", 60_000, ...wait, ...mode];
  if (what < 5) return () => ["LOCK.MACQUIRE", 2, ...some, owner, "PX", 60_000, ...(mode.length === 1 ? mode : [])];
  if (what === 5) return (known) => ["LOCK.RENEW", some[0], owner, "PX", 60_000, ...token(known)];
  if (what < 8) return (known) => ["LOCK.RELEASE", some[0], owner, ...token(known)];
  return (known) => ["LOCK.FENCE", some[0], ...token(known).slice(1)];
}

test("random commands are answered as by a real server", { timeout: 90_000 }, async (t) => {
  const stages = await Promise.all(Object.values(STAGES).map((stage) => stage(t)));
  for (let seed = 0; seed < 200; seed++) {
    const chance = chanceOf(seed);
    const told = [];
    const tokens = [[], []];
    for (let step = 0; step < 25; step++) {
      const make = commandOf(chance, [`a${seed}`, `b${seed}`]);
      const replies = [];
      for (const [number, { ask }] of stages.entries()) {
        const known = tokens[number];
        const reply = await ask(make(known));
        if (/ACQUIRE/.test(make([])[0]) && typeof reply === "number" && !known.includes(reply)) known.push(reply);
        const isToken = typeof reply === "number" && reply > 1;
        replies.push(reply instanceof Error ? reply.message.split(" ")[0] : isToken ? `token ${known.indexOf(reply)}` : reply);
      }
      told.push([make([]).join(" "), ...replies]);
      assert.equal(replies[0], replies[1], `seed ${seed}: ${JSON.stringify(told)}`);
    }
  }
});
