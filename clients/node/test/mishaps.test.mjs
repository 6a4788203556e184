// Unexpected actions of programs and networks.

import assert from "node:assert/strict";
import { once } from "node:events";
import { connect as connectPlain, createServer } from "node:net";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { Redis } from "ioredis";
import { createClient, RESP_TYPES } from "redis";
import { Locks, LockTimeoutError } from "redislock";
import { Redlock } from "redislock/redlock";

import { DRIVERS } from "./clients.mjs";
import { atEnd, eventually, locksOn, startProxy, startServer } from "./servers.mjs";

/** The rejections that end the process unless a listener handles them. */
function unhandled(t) {
  const seen = [];
  const see = (error) => seen.push(error);
  process.on("unhandledRejection", see);
  t.after(() => process.off("unhandledRejection", see));
  return seen;
}

/** Returns whether the lock is held. A lock that a waiter is about to take is not free, but is not held yet. */
const isHeld = async (server) => (await server.admin.call("LOCK.FENCE", "k")) !== null;
const isLive = async (server, hold) => (await server.admin.call("LOCK.FENCE", "k", String(hold.token))) === 1;

/** The number of times that this was asked for. */
async function calls(server, command) {
  const found = await server.info(`cmdstat_(?:${command.toLowerCase()}|${command})`);
  return Number(/^calls=(\d+)/.exec(found ?? "calls=0")[1]);
}

for (const driver of DRIVERS) {
  test(`a client that has selected another database has its locks there: ${driver}`, async (t) => {
    const server = await startServer(t);
    const told = [];
    const locks = await locksOn(t, server, driver, { hooks: { lost: ({ error }) => told.push(error.reason) } });
    // The client of the locks, of which only this is known here.
    await locks.client.select(3);
    const hold = await locks.acquire("k");
    await assert.rejects(locks.acquire("k", { wait: 300 }), LockTimeoutError);
    assert.ok((await calls(server, "LOCK.ACQUIRE")) < 10, "it does not ask without a pause");
    assert.equal(await server.isFree("k"), true, "nothing is held in the database that was not selected");
    const waiting = locks.acquire("k", { wait: 5000 });
    await pause(100);
    const released = performance.now();
    await hold.release();
    const next = await waiting;
    assert.ok(performance.now() - released < 1000, "it is handed over at once");
    await pause(200);
    assert.equal(await next.release(), true);
    assert.deepEqual(told, []);
  });
}

test("a client of ioredis that connects again goes on in the database that it had selected", async (t) => {
  const server = await startServer(t);
  const proxy = await startProxy(t, server);
  const locks = await locksOn(t, proxy, "ioredis");
  await locks.client.select(3);
  const hold = await locks.acquire("k");
  proxy.cut();
  await eventually(() => locks.client.status !== "ready", "it is cut");
  await assert.rejects(locks.acquire("k", { wait: 1000 }), LockTimeoutError);
  assert.equal(await server.isFree("k"), true);
  assert.equal(await hold.release(), true);
});

test("a cancelled request of an owner ends nothing that it holds", async (t) => {
  const server = await startServer(t);
  const proxy = await startProxy(t, server);
  const locks = await locksOn(t, proxy, "ioredis");
  const mine = await locks.read("k").acquire({ owner: "task-7" });
  // The reply to this one would tell it the token of the hold that it has.
  proxy.replyDelay = 200;
  const cancel = new AbortController();
  const again = assert.rejects(locks.read("k").acquire({ owner: "task-7", signal: cancel.signal }), { name: "AbortError" });
  await pause(50);
  cancel.abort();
  await again;
  await pause(600);
  assert.ok(await isLive(server, mine), "cancelled while it asked for what it has");
  proxy.replyDelay = 0;
  assert.equal(await mine.release(), true);
});

test("a cancelled wait of an owner that was granted all the same is given up", async (t) => {
  const server = await startServer(t);
  const proxy = await startProxy(t, server);
  const locks = await locksOn(t, proxy, "ioredis");
  const other = await locks.acquire("k");
  const cancel = new AbortController();
  const request = assert.rejects(locks.acquire("k", { owner: "task-7", signal: cancel.signal }), { name: "AbortError" });
  await eventually(async () => (await server.waiters("k")) === 1, "it waits");
  await pause(100);
  proxy.replyDelay = 300;
  await server.admin.call("LOCK.RELEASE", "k", other.owner);
  await eventually(() => isHeld(server), "it is granted");
  cancel.abort();
  await request;
  await eventually(() => server.isFree("k"), "it is given up", 3000);
});

/** A proxy that keeps the bytes after a word until `stalled()` is called, even if the client has disconnected. */
async function startStall(t, server, word) {
  const stall = { deliver: undefined };
  const listener = createServer((near) => {
    const far = connectPlain(server.port, "127.0.0.1");
    const kept = [];
    let isStalled = false;
    near.on("data", (chunk) => {
      if (stall.deliver === undefined && String(chunk).includes(word)) {
        isStalled = true;
        stall.deliver = () => {
          isStalled = false;
          for (const each of kept.splice(0)) far.write(each);
          if (near.destroyed) far.end();
        };
      }
      if (isStalled) kept.push(chunk);
      else far.write(chunk);
    });
    far.on("data", (chunk) => near.destroyed || near.write(chunk));
    near.on("close", () => isStalled || far.destroy());
    far.on("close", () => near.destroy());
    for (const socket of [near, far]) socket.on("error", () => undefined);
    atEnd(t, () => {
      near.destroy();
      far.destroy();
    });
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  atEnd(t, () => listener.close());
  stall.address = `127.0.0.1:${listener.address().port}`;
  return stall;
}

for (const [after, what] of [
  [3000, "never answered"],
  [0, "answered late"],
]) {
  test(`a waiting request that was overtaken ends no hold: ${what}`, async (t) => {
    const server = await startServer(t);
    const stall = await startStall(t, server, "BLOCK");
    const locks = await locksOn(t, stall, "ioredis");
    const direct = await locksOn(t, server, "ioredis");
    const first = await direct.acquire("k");
    const waiting = locks.many(["k", "l"]).acquire({ wait: 1500 });
    await eventually(() => stall.deliver, "it waits");
    await first.release();
    // It asks again two seconds after its wait.
    await eventually(() => isHeld(server), "it is granted");
    if (after === 0) stall.deliver();
    const outcome = await waiting.catch((error) => error);
    if (after > 0) {
      await pause(after);
      stall.deliver();
    }
    // An idle connection is closed after five seconds.
    for (let second = 0; second < 6; second++) {
      if (outcome instanceof Error) break;
      assert.ok(await isLive(server, outcome), "it is held still");
      assert.equal(outcome.loss, undefined);
      await pause(1000);
    }
    assert.ok(!(outcome instanceof Error), String(outcome));
    assert.equal(await outcome.release(), true);
    await eventually(() => server.isFree("k"), "nothing stays");
  });
}

test("hooks, loggers and callbacks that fail later than at once end nothing", async (t) => {
  const seen = unhandled(t);
  const warned = [];
  const warn = ({ name, message }) => name === "RedislockWarning" && warned.push(message);
  process.on("warning", warn);
  t.after(() => process.off("warning", warn));
  const fail = async () => {
    throw new Error("the hook's");
  };
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", {
    hooks: { granted: fail, released: fail },
    logger: { debug: fail, info: fail, warn: fail, error: fail },
  });
  await locks.run("k", () => undefined);
  const hold = await locks.acquire("lost");
  await server.admin.del("lost");
  await eventually(() => hold.loss !== undefined, "the loss is logged");
  const onErrors = [
    fail,
    () => {
      throw new Error("the callback's");
    },
  ];
  for (const onError of onErrors) {
    let times = 0;
    const onElected = () => {
      times++;
      throw new Error("the work's");
    };
    const leader = locks.leader("k", { onElected, onError });
    await eventually(() => times > 1, "it stands again");
    await leader.resign();
  }
  assert.deepEqual(seen, []);
  assert.match(warned[0], /onError of a leader has failed: Error: the hook's/);
});

test("a pool of node-redis is refused, which does not say where its server is", async (t) => {
  const server = await startServer(t);
  for (const { createClientPool } of [await import("redis"), await import("redis5")]) {
    const pool = createClientPool({ socket: { port: server.port } });
    assert.throws(() => new Locks(pool), { name: "TypeError", message: /not a pool of them/ });
  }
});

test("a refused release that nobody awaits does not end the process", async (t) => {
  const seen = unhandled(t);
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const hold = await locks.acquire("k");
  await server.admin.call("CONFIG", "SET", "min-replicas-to-write", "1");
  void hold.release();
  await pause(200);
  await server.admin.call("CONFIG", "SET", "min-replicas-to-write", "0");
  await eventually(() => server.isFree("k"), "it is given up");
  assert.deepEqual(seen, []);
});

test("a leader tells once of a server that is away for longer than its timeout", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { lease: 500, serverTimeout: 500 });
  const errors = [];
  const leader = locks.leader("k", { onElected: () => undefined, onError: (error) => errors.push(error.kind) });
  await eventually(() => leader.isLeading, "it leads");
  await server.kill();
  await eventually(() => errors.length > 0, "it is told", 5000);
  await pause(1500);
  assert.deepEqual(errors, ["ConnectionFailedError"]);
});

test("a leader over independent servers tells once that too few of them answer", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const clients = servers.map(({ port }) => new Redis({ port }).on("error", () => undefined));
  const locks = new Redlock(clients, { lease: 500, serverTimeout: 500 });
  atEnd(t, async () => {
    await locks.close();
    for (const client of clients) client.disconnect();
  });
  const errors = [];
  const leader = locks.leader("k", { onElected: () => undefined, onError: (error) => errors.push(error.kind) });
  await eventually(() => leader.isLeading, "it leads");
  await Promise.all(servers.slice(1).map((server) => server.kill()));
  await eventually(() => errors.length > 0, "it is told", 5000);
  await pause(1500);
  assert.deepEqual(errors, ["ConnectionFailedError"]);
});

test("the push comes again when its connection has fallen silent", async (t) => {
  const server = await startServer(t);
  const proxy = await startProxy(t, server);
  const locks = await locksOn(t, proxy, "ioredis");
  const hold = await locks.acquire("k");
  const lost = once(hold.signal, "abort").then(() => hold.loss.reason);
  await eventually(async () => (await calls(server, "LOCK.FENCE")) > 0, "it listens");
  // Whatever it asks next over that connection is not answered, nor is anything pushed.
  let frozen = 0;
  proxy.see = (text) => (text.includes("PING") || text.includes("LOCK.FENCE") ? (frozen++, "freeze") : undefined);
  await eventually(() => frozen > 0, "it asks whether the server is there", 10_000);
  proxy.see = () => undefined;
  const before = await calls(server, "LOCK.FENCE");
  await eventually(async () => (await calls(server, "LOCK.FENCE")) > before, "it listens again", 10_000);
  await server.admin.del("k");
  assert.equal(await lost, "push");
});

test("the longest owner is taken by independent servers, too", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const clients = servers.map(({ port }) => new Redis({ port }));
  const locks = new Redlock(clients);
  atEnd(t, async () => {
    await locks.close();
    for (const client of clients) client.disconnect();
  });
  const hold = await locks.acquire("k", { wait: 0, owner: "ü".repeat(128) });
  assert.match(hold.owner, /^ü{100}/);
  assert.equal(await hold.release(), true);
});

for (const driver of DRIVERS) {
  test(`what asks a server that is gone ends in time, in an error of the library: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver, { serverTimeout: 600 });
    const hold = await locks.acquire("k", { owner: "me" });
    proxy.see = () => "cut";
    for (const ask of [() => locks.checkToken("k", hold.token), () => locks.info("k"), () => locks.ping()]) {
      const began = performance.now();
      await assert.rejects(ask(), { name: "ConnectionFailedError" });
      const took = performance.now() - began;
      assert.ok(took > 500 && took < 2000, `after ${took} ms`);
    }
    proxy.see = () => undefined;
    await eventually(() => locks.info("k").catch(() => false), "the client has connected again");
    await locks.ping();
    await locks.checkToken("k", hold.token);
    await hold.release();
  });
}

test("a client of node-redis may give bytes in place of text", async (t) => {
  const server = await startServer(t);
  const socket = { port: server.port };
  const client = createClient({ socket, commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } } });
  await client.connect();
  const locks = new Locks(client);
  atEnd(t, () => client.close());
  atEnd(t, () => locks.close());
  const hold = await locks.acquire("k", { owner: "me" });
  assert.equal((await locks.info("k")).holders[0].owner, "me");
  await hold.release();
});

for (const type of ["async-credentials-provider", "streaming-credentials-provider"]) {
  test(`a client of node-redis may be told how to log in when it connects: ${type}`, async (t) => {
    const server = await startServer(t);
    await server.admin.call("ACL", "SETUSER", "ann", "ON", ">secret", "~*", "&*", "+@all");
    const login = { username: "ann", password: "secret" };
    let subscribed = 0;
    const subscription = { dispose: () => subscribed-- };
    const credentialsProvider = {
      type,
      credentials: async () => login,
      subscribe: async () => (subscribed++, [login, subscription]),
      onReAuthenticationError: () => undefined,
    };
    const client = createClient({ socket: { port: server.port }, credentialsProvider });
    await client.connect();
    const before = subscribed;
    const locks = new Locks(client);
    atEnd(t, () => client.close());
    atEnd(t, () => locks.close());
    await server.admin.call("ACL", "SETUSER", "default", "OFF");
    const hold = await locks.acquire("k");
    await assert.rejects(locks.acquire("k", { wait: 300 }), LockTimeoutError);
    await client.sendCommand(["DEL", "k"]);
    await eventually(() => hold.loss?.reason === "push", "the server tells of the loss");
    assert.equal(subscribed, before, "the library wants no news of it");
  });
}

test("a user of ioredis without a password logs in as itself", async (t) => {
  const server = await startServer(t);
  await server.admin.call("ACL", "SETUSER", "ann", "ON", "NOPASS", "~*", "&*", "+@all");
  const client = new Redis({ port: server.port, username: "ann" });
  const locks = new Locks(client);
  atEnd(t, () => client.disconnect());
  atEnd(t, () => locks.close());
  const hold = await locks.acquire("k");
  await assert.rejects(locks.acquire("k", { wait: 300 }), LockTimeoutError);
  const list = await server.admin.call("CLIENT", "LIST");
  const own = list.split("\n").filter((line) => line.includes(" name=redislock "));
  assert.ok(own.length > 0 && own.every((line) => line.includes(" user=ann ")), list);
  await hold.release();
});

test("one signal may cancel many requests and bodies, which Node takes for no leak", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const warned = [];
  const see = (warning) => warned.push(warning.message);
  process.on("warning", see);
  atEnd(t, () => process.off("warning", see));
  const stop = new AbortController();
  const { signal } = stop;
  const names = Array.from({ length: 20 }, (_, number) => `k${number}`);
  await Promise.all(names.map((name) => locks.run(name, { signal }, () => undefined)));
  const bodies = names.map((name) => locks.run(name, { signal }, (hold) => pause(9000, 0, { signal: hold.signal })));
  await eventually(async () => (await server.admin.dbsize()) === names.length, "all are held");
  const waiting = names.map((name) => locks.acquire(name, { signal }));
  await pause(100);
  stop.abort();
  const ended = await Promise.allSettled([...bodies, ...waiting]);
  const how = ended.map(({ reason }) => reason?.name);
  assert.deepEqual(how, [...names.map(() => "AbortError"), ...names.map(() => "AbortError")]);
  assert.deepEqual(warned, []);
  await eventually(async () => (await server.admin.dbsize()) === 0, "nothing is held");
});

test("a program that was busy for longer than its lease sees at once that nothing is held", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { lease: 300 });
  const [one, other] = [await locks.acquire("one"), await locks.acquire("other")];
  const leader = locks.leader("job", { onElected: () => undefined });
  await eventually(() => leader.isLeading, "it leads");
  assert.ok(one.loss === undefined && !other.signal.aborted && leader.hold !== undefined);
  // No timer runs meanwhile, and no reply is read.
  for (const end = performance.now() + 400; performance.now() < end; );
  assert.equal(leader.hold, undefined);
  assert.equal(one.loss?.reason, "deadline");
  assert.ok(other.signal.aborted && other.signal.reason.reason === "deadline");
});
