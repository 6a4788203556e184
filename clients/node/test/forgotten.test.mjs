// Holds that nothing refers to any more, and those that only look so.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { queryObjects } from "node:v8";

import { Redlock } from "redislock/redlock";

import { connect } from "./clients.mjs";
import { atEnd, eventually, locksOn, startServer } from "./servers.mjs";

/** The field of INFO that tells how often a lock was released. */
const RELEASES = "cmdstat_(?:lock.release|LOCK.RELEASE)";

/** Takes the lock, lets this use the hold, and forgets it. */
async function forget(locks, name, options, use = () => undefined) {
  use(await locks.acquire(name, options));
}

/** Collects garbage for some time: what can be forgotten is forgotten by then. */
async function collect(ms = 400) {
  for (const end = performance.now() + ms; performance.now() < end; ) {
    globalThis.gc();
    await pause(20);
  }
}

/** The warnings about locks that come until the test ends. */
function warnings(t) {
  const seen = [];
  const see = (warning) => warning.name === "RedislockWarning" && seen.push(warning.message);
  process.on("warning", see);
  atEnd(t, () => process.off("warning", see));
  return seen;
}

test("a hold that is forgotten is renewed no more, and its user is told", async (t) => {
  const server = await startServer(t);
  const told = [];
  const locks = await locksOn(t, server, "ioredis", { lease: 1500, hooks: { forgotten: ({ names }) => told.push(...names) } });
  const warned = once(process, "warning");
  await forget(locks, "k", {});
  await eventually(() => globalThis.gc() ?? told.length > 0, "it is forgotten");
  assert.deepEqual(told, ["k"]);
  const [warning] = await warned;
  assert.equal(warning.name, "RedislockWarning");
  assert.match(warning.message, /^the hold of 'k' was forgotten: .* Keep the hold until you release it/);
  // Its user may still work under it.
  assert.equal(await server.info(RELEASES), undefined, "it is not released");
  const next = await locks.acquire("k", { wait: 20_000 });
  assert.equal(await next.release(), true);
  assert.match(await server.info(RELEASES), /^calls=1,/);
});

test("holds that something refers to are renewed while garbage is collected", async (t) => {
  const server = await startServer(t);
  const seen = warnings(t);
  const locks = await locksOn(t, server, "ioredis", { lease: 2000 });
  const kept = [await locks.acquire("single"), await locks.many(["one", "other"]).acquire()];
  // Nothing refers to the leader but the locks.
  const elected = [];
  locks.leader("leader", { onElected: ({ token }) => elected.push(token) });
  await eventually(() => elected.length > 0, "it leads");
  await collect(3000);
  assert.deepEqual(seen, []);
  for (const hold of kept) assert.equal(await hold.release(), true);
  assert.equal(Number(await server.admin.call("LOCK.FENCE", "leader", String(elected[0]))), 1);
  assert.equal(elected.length, 1);
});

test("locks over independent servers forget alike", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const made = await Promise.all(servers.map(({ address }) => connect("ioredis", "single", [address])));
  const told = [];
  const locks = new Redlock(
    made.map(({ client }) => client),
    { lease: 1500, hooks: { forgotten: ({ names }) => told.push(...names) } },
  );
  atEnd(t, async () => {
    await locks.close();
    for (const { close } of made) await close();
  });
  const kept = await locks.acquire("kept");
  await forget(locks, "k", {});
  await eventually(() => globalThis.gc() ?? told.length > 0, "it is forgotten");
  const next = await locks.acquire("k", { wait: 20_000 });
  assert.equal(await next.release(), true);
  await collect(1500);
  assert.equal(await kept.release(), true);
  assert.deepEqual(told, ["k"]);
});

test("printing a hold prints no client", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.acquire("k");
  assert.deepEqual(Object.keys(hold).sort(), ["heldSince", "names", "owner", "token"]);
  await hold.release();
});

test("closing gives up what was forgotten, too", async (t) => {
  const server = await startServer(t);
  let told = 0;
  const locks = await locksOn(t, server, "ioredis", { hooks: { forgotten: () => told++ } });
  await forget(locks, "k", {});
  await eventually(() => globalThis.gc() ?? told > 0, "it is forgotten");
  assert.ok(!(await server.isFree("k")), "its lease lasts");
  await locks.close();
  assert.ok(await server.isFree("k"));
});

test("a hold whose signal somebody has is not forgotten", async (t) => {
  const server = await startServer(t);
  const seen = warnings(t);
  const locks = await locksOn(t, server, "ioredis");
  const lost = [];
  await forget(locks, "k", {}, (hold) => hold.signal.addEventListener("abort", () => lost.push(hold.name)));
  await collect();
  await server.admin.del("k");
  await eventually(() => lost.length > 0, "it is told");
  assert.deepEqual(seen, []);
});

test("a body that nothing refers to keeps its hold, also one that never ends", async (t) => {
  const server = await startServer(t);
  const seen = warnings(t);
  const locks = await locksOn(t, server, "ioredis");
  let works = false;
  void locks
    .run("k", () => {
      works = true;
      return new Promise(() => undefined);
    })
    .catch(() => undefined);
  await eventually(() => works, "it works");
  await collect();
  assert.deepEqual(seen, []);
  assert.ok(!(await server.isFree("k")));
});

test("a hold that is kept, was released, was lost or is not renewed is not forgotten", async (t) => {
  const server = await startServer(t);
  const seen = warnings(t);
  const locks = await locksOn(t, server, "ioredis");
  const kept = await locks.acquire("kept");
  await forget(locks, "released", {}, (hold) => void hold.release());
  let lost = await locks.acquire("lost");
  await server.admin.del("lost");
  await eventually(() => lost.loss !== undefined, "it is lost");
  lost = undefined;
  await forget(locks, "once an hour", { renew: false });
  await collect();
  assert.deepEqual(seen, []);
  assert.equal(await kept.release(), true);
  assert.ok(!(await server.isFree("once an hour")));
});

test("a wait at independent servers keeps nothing of its attempts", { skip: queryObjects === undefined }, async (t) => {
  let calls = 0;
  const client = (port) => ({
    call: async () => (++calls, null), // somebody else holds it
    disconnect: () => undefined,
    on: () => undefined,
    options: { port },
    status: "ready",
  });
  const locks = new Redlock([1, 2, 3].map(client));
  t.mock.method(Math, "random", () => 0); // without pauses
  const stop = new AbortController();
  const waiting = locks.acquire("k", { signal: stop.signal });
  waiting.catch(() => undefined);
  await eventually(() => calls > 600, "it asks again and again");
  const before = queryObjects(Promise, { format: "count" });
  const from = calls;
  await eventually(() => calls > from + 6000, "each attempt asks three servers, and gives up at three");
  const more = queryObjects(Promise, { format: "count" }) - before;
  stop.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  await locks.close();
  assert.ok(more < 100, `1,000 attempts have left ${more} promises`);
});
