// A program's view of servers, clients and addresses that fail: nothing waits, ends or is lost without a word.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { connect as connectPlain, createServer } from "node:net";
import { test } from "node:test";
import { createServer as createTlsServer } from "node:tls";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { ConnectionFailedError, FencedError, Locks, LockLostError, LockTimeoutError, ServerRefusedError } from "redislock";
import { Redlock } from "redislock/redlock";

import { connect, DRIVERS } from "./clients.mjs";
import { atEnd, eventually, locksOn, startProxy, startServer } from "./servers.mjs";

const BOTH = DRIVERS.slice(0, 2);

/** The output of a program, and its end. */
function ran(program) {
  const options = { cwd: fileURLToPath(new URL("..", import.meta.url)), timeout: 60_000 };
  return new Promise((resolve) => {
    execFile(process.execPath, ["--input-type=module", "-e", program], options, (error, stdout) => {
      resolve({ code: error === null ? 0 : error.code, lines: stdout.split("\n").filter(Boolean) });
    });
  });
}

/** Collects what the library logs. */
function newLog() {
  const lines = [];
  const at = (level) => (message) => lines.push(`${level} ${message}`);
  const logger = { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
  return { lines, logger, count: (pattern) => lines.filter((line) => pattern.test(line)).length };
}

/** The time that the promise took to fail, and its error. */
async function failure(promise) {
  const began = performance.now();
  const error = await promise.then(
    () => undefined,
    (reason) => reason,
  );
  return { error, took: performance.now() - began };
}

/** An address that moves from the first of these servers to the next. Connections that are open stay where they are. */
async function movingAddress(t, [from, to]) {
  const targets = [await startProxy(t, from), await startProxy(t, to)];
  const address = { moved: false };
  const listener = createServer((near) => {
    const { address: target } = targets[address.moved ? 1 : 0];
    const far = connectPlain(Number(target.split(":")[1]), "127.0.0.1");
    near.pipe(far).pipe(near);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      one.on("error", () => undefined).on("close", () => other.destroy());
    }
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  address.address = `127.0.0.1:${listener.address().port}`;
  atEnd(t, () => listener.close());
  return address;
}

/** Makes the second server the primary and the first one its replica, and moves the address. */
async function failOver([from, to], address) {
  await to.admin.call("REPLICAOF", "NO", "ONE");
  address.moved = true;
  await from.admin.call("REPLICAOF", "127.0.0.1", String(to.port));
}

async function startPair(t) {
  const words = ["--repl-diskless-sync-delay", "0"];
  const pair = await Promise.all([0, 1].map(() => startServer(t, { words })));
  await pair[1].admin.call("REPLICAOF", "127.0.0.1", String(pair[0].port));
  await eventually(async () => (await pair[1].info("master_link_status")) === "up", "the replica is linked");
  return pair;
}

for (const driver of BOTH) {
  const from = driver === "ioredis" ? 'import { Redis } from "ioredis"' : 'import { createClient } from "redis"';
  const end = driver === "ioredis" ? "quit" : "close";
  const client = (port) =>
    driver === "ioredis" ? `new Redis({ port: ${port} })` : `await createClient({ socket: { port: ${port} } }).connect()`;

  test(`a program whose client is closed before the release goes on to its end: ${driver}`, async (t) => {
    const server = await startServer(t);
    const program = `
      ${from}; import { Locks } from "redislock";
      const client = ${client(server.port)};
      const locks = new Locks(client);
      const hold = await locks.acquire("a");
      await locks.run("b", () => client.${end}());
      console.log("using");
      await hold.release();
      console.log("release");
      console.log(await locks.acquire("c").catch((error) => error.name + " " + error.message));
      console.log(await locks.acquire("c", { wait: 0 }).catch((error) => error.name));
      console.log(await locks.checkToken("c", 5).catch((error) => error.name));
      await locks.close();
      console.log("end");`;
    const { code, lines } = await ran(program);
    assert.equal(code, 0);
    assert.deepEqual(lines.slice(0, 2), ["using", "release"]);
    assert.match(lines[2], /^ConnectionFailedError could not acquire 'c' .*: the client of \S+ is closed, or was never connected$/);
    assert.equal(lines[3], "ConnectionFailedError");
    assert.match(lines[4], /^(ConnectionFailedError|FencedError)$/);
    assert.equal(lines[5], "end");
    for (const name of "ab") assert.ok(await server.isFree(name), `${name} is free`);
  });

  test(`a request to a server that is away ends in time, and says which: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    await server.kill();
    for (const [wait, least, most] of [
      [0, 0, 2000],
      [1000, 900, 3000],
      [undefined, 9000, 12_500],
    ]) {
      const { error, took } = await failure(locks.acquire("k", { wait }));
      assert.ok(error instanceof ConnectionFailedError, String(error));
      assert.ok(error.message.includes("'k'") && error.message.includes(server.address), error.message);
      assert.ok(error.cause !== undefined);
      assert.ok(took >= least && took < most + 3000, `wait ${wait}: ${took} ms`);
    }
  });

  test(`a wait at a replica goes on and is logged, and one with an end says what the server says: ${driver}`, async (t) => {
    const server = await startServer(t);
    const { lines, logger, count } = newLog();
    const locks = await locksOn(t, server, driver, { logger, serverTimeout: 1500 });
    await locks.acquire("warm", { wait: 0 }).then((hold) => hold.release());
    await server.admin.call("REPLICAOF", "127.0.0.1", "1");
    const waiting = locks.acquire("k");
    const { error } = await failure(locks.acquire("l", { wait: 1000 }));
    assert.ok(error instanceof ConnectionFailedError);
    assert.match(error.message, /^READONLY /);
    assert.ok(error.message.includes(server.address), error.message);
    await pause(3000);
    assert.equal(count(/^warn .*still asking for .*READONLY/), 1, lines.join("\n"));
    await server.admin.call("REPLICAOF", "NO", "ONE");
    assert.equal(await (await waiting).release(), true);
  });

  test(`a client that went silent holds up no new request: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver);
    const hold = await locks.acquire("a");
    proxy.see = (text) => (text.includes("HELLO") ? undefined : "freeze");
    locks.client.ping().catch(() => undefined);
    await pause(50);
    proxy.see = () => undefined;
    const began = performance.now();
    const next = await locks.acquire("b", { wait: 10_000 });
    const again = await locks.acquire("c", { wait: 10_000 });
    assert.ok(performance.now() - began < 5000, `${performance.now() - began} ms`);
    for (const each of [hold, next, again]) assert.equal(await each.release(), true);
    for (const name of "abc") await eventually(() => server.isFree(name), `${name} is free`, 5000);
  });

  test(`an address that moves is followed by requests, waits, holds and leaders: ${driver}`, async (t) => {
    const pair = await startPair(t);
    const address = await movingAddress(t, pair);
    const { lines, logger } = newLog();
    const lost = [];
    const hooks = { lost: ({ error }) => lost.push(error.message) };
    const locks = await locksOn(t, address, driver, { lease: 6000, logger, hooks });
    const hold = await locks.acquire("held");
    const leader = locks.leader("job", { onElected: () => undefined });
    await eventually(() => leader.isLeading, "it leads");
    const busy = await locks.acquire("busy");
    const waiting = locks.acquire("busy", { wait: 30_000 });
    await eventually(async () => (await pair[0].waiters("busy")) === 1, "it waits");
    await eventually(async () => (await pair[1].admin.call("DBSIZE")) === 3, "all is replicated");
    await failOver(pair, address);
    const fresh = await locks.acquire("fresh", { wait: 10_000 });
    await fresh.release();
    const both = await locks.many(["fresh", "other"]).acquire({ wait: 10_000 });
    assert.equal(await both.release(), true);
    await pause(7000);
    assert.deepEqual(lost, [], lines.join("\n"));
    assert.ok(leader.isLeading);
    assert.equal(await busy.release(), true);
    assert.equal(await (await waiting).release(), true);
    assert.equal(await hold.release(), true);
    await leader.resign();
    assert.equal(await pair[1].admin.call("DBSIZE"), 0);
    assert.ok(Number(await pair[0].info("total_connections_received")) < 60, "few connections are made to the old one");
  });

  test(`a replica's answer that a hold is not live is no loss: ${driver}`, async (t) => {
    const pair = await startPair(t);
    const address = await movingAddress(t, pair);
    const locks = await locksOn(t, address, driver);
    const hold = await locks.acquire("k");
    await eventually(async () => /lock.fence/i.test(await pair[0].admin.call("INFO", "commandstats")), "it listens");
    await eventually(async () => (await pair[1].admin.call("DBSIZE")) === 1, "it is replicated");
    await pair[1].admin.call("REPLICAOF", "NO", "ONE");
    address.moved = true;
    // Its data are replaced by those of an empty server.
    const empty = await startServer(t, { words: ["--repl-diskless-sync-delay", "0"] });
    await pair[0].admin.call("REPLICAOF", "127.0.0.1", String(empty.port));
    await eventually(async () => (await pair[0].admin.call("DBSIZE")) === 0, "it is synchronized");
    await pause(1000);
    assert.equal(hold.loss, undefined);
    await locks.checkToken("k", hold.token);
    await assert.rejects(locks.checkToken("k", hold.token + 1), FencedError);
    assert.equal(await hold.release(), true);
  });

  test(`an outage is logged once, with its end, and by hooks: ${driver}`, async (t) => {
    const server = await startServer(t);
    const { lines, logger, count } = newLog();
    const failed = [];
    const reconnected = [];
    const hooks = {
      renewalFailed: ({ hold, error }) => failed.push([hold.name, error]),
      reconnected: ({ address }) => reconnected.push(address),
    };
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver, { lease: 9000, logger, hooks });
    const hold = await locks.acquire("k");
    await pause(200);
    server.process.kill("SIGSTOP");
    await eventually(() => failed.length >= 2, "renewals fail");
    server.process.kill("SIGCONT");
    await eventually(() => count(/^warn redislock: renewed 'k' at \S+ after \d+ failed renewals$/) === 1, "they work again");
    assert.equal(count(/^warn redislock: could not renew 'k': .*no reply from 127\.0\.0\.1:\d+ for /), 1, lines.join("\n"));
    assert.ok(failed.every(([name, error]) => name === "k" && error instanceof ConnectionFailedError));
    proxy.cut();
    await eventually(() => reconnected.length > 0, "it connects again");
    assert.equal(reconnected[0], proxy.address);
    assert.ok(count(/^info redislock: reconnected to 127\.0\.0\.1:\d+$/) >= 1);
    assert.equal(await hold.release(), true);
  });

  test(`a loss in an outage names its cause: ${driver}`, async (t) => {
    const server = await startServer(t);
    const { lines, logger, count } = newLog();
    const locks = await locksOn(t, server, driver, { lease: 1500, logger });
    const hold = await locks.acquire("k");
    const lost = once(hold.signal, "abort");
    await server.kill();
    await lost;
    assert.equal(hold.loss.reason, "deadline");
    assert.ok(hold.loss.cause instanceof ConnectionFailedError);
    assert.ok(hold.loss.cause.message.includes(server.address), hold.loss.cause.message);
    assert.equal(count(/^warn redislock: lost 'k': its lease ended before it could be renewed: /), 1, lines.join("\n"));
  });

  test(`a wait outlasts a reply that took as long as the lease: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    await locks.acquire("warm").then((hold) => hold.release());
    const errors = [];
    const leader = locks.leader("job", { lease: 500, onElected: () => undefined, onError: (error) => errors.push(error) });
    await eventually(() => leader.isLeading, "it leads");
    server.process.kill("SIGSTOP");
    const taking = locks.acquire("k", { lease: 300, wait: 20_000 });
    await pause(900);
    server.process.kill("SIGCONT");
    await taking;
    await eventually(() => leader.isLeading, "it leads again");
    assert.deepEqual(errors, []);
  });

  test(`a hold that is not renewed is not released before its holder does so: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const releases = async () =>
      Number(/calls=(\d+)/.exec((await server.info("cmdstat_(?:lock.release|LOCK.RELEASE)")) ?? "calls=0")[1]);
    const lost = locks.run("k", { lease: 1000, renew: false }, async (hold) => {
      await once(hold.signal, "abort");
      assert.throws(() => hold.check(), LockLostError);
      await pause(500);
      assert.equal(await releases(), 0);
    });
    await assert.rejects(lost, LockLostError);
    await eventually(async () => (await releases()) === 1, "it is given up with its body");
  });

  test(`the longest hold is never exceeded: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const began = performance.now();
    const hold = await locks.acquire("k", { lease: 6000, maxHold: 3000 });
    assert.ok(hold.remaining <= 3000);
    await once(hold.signal, "abort");
    const took = performance.now() - began;
    assert.ok(took > 2500 && took < 3500, `${took} ms`);
    assert.match(hold.loss.message, /its longest hold \(maxHold\) is over/);
    await eventually(() => server.isFree("k"), "the server ends it, too", 2000);
    const late = await locks.acquire("l", { lease: 900, maxHold: 2000 });
    await once(late.signal, "abort");
    await eventually(() => server.isFree("l"), "its last lease was cut", 1000);
    const cut = await locks.acquire("m", { lease: 6000, maxHold: 3000 });
    const since = performance.now();
    await server.kill();
    await once(cut.signal, "abort");
    assert.ok(performance.now() - since < 3500, "in an outage");
  });

  test(`closing takes its time at most, whatever is held: ${driver}`, async (t) => {
    const server = await startServer(t);
    const { lines, logger, count } = newLog();
    const locks = await locksOn(t, server, driver, { logger });
    const names = Array.from({ length: 20 }, (_, number) => `k${number}`);
    const holds = await Promise.all(names.map((name) => locks.acquire(name)));
    const leader = locks.leader("job", { onElected: () => undefined });
    await eventually(() => leader.isLeading, "it leads");
    const waiting = assert.rejects(locks.acquire("k0"), { name: "LocksClosedError" });
    await pause(200);
    server.process.kill("SIGSTOP");
    atEnd(t, () => server.process.kill("SIGCONT"));
    const began = performance.now();
    await assert.rejects(async () => locks.close(-1), { name: "TypeError", message: /timeout must be .* milliseconds/ });
    await Promise.all([locks.close(), locks.close()]);
    const took = performance.now() - began;
    assert.ok(took > 3000 && took < 8000, `${took} ms`);
    await waiting;
    assert.ok(holds.every((hold) => hold.loss.reason === "close"));
    assert.equal(count(/no server confirmed the release of 'k0', .* within 5 s/), 1, lines.join("\n"));
  });
}

test("an outage of a server that nothing asks for is a loss that somebody hears of", async (t) => {
  const server = await startServer(t);
  const program = `
    import { Redis } from "ioredis"; import { Locks } from "redislock";
    const client = new Redis({ port: ${server.port} }).on("error", () => undefined);
    const locks = new Locks(client);
    process.on("warning", ({ name, message }) => console.log(name + " " + message));
    const hold = await locks.acquire("k", { lease: 1000 });
    process.kill(${server.process.pid}, "SIGKILL");
    await new Promise((resolve) => setTimeout(resolve, 2500));
    console.log(hold.remaining);
    process.exit(0);`;
  const { lines } = await ran(program);
  assert.match(lines[0], /^RedislockWarning lost 'k': its lease ended before it could be renewed: .*127\.0\.0\.1:|localhost:/);
  assert.equal(lines.at(-1), "0");
});

test("a task that waits for what its own locks hold is logged", async (t) => {
  const server = await startServer(t);
  const { logger, count } = newLog();
  const locks = await locksOn(t, server, "ioredis", { logger });
  const hold = await locks.acquire("k");
  await assert.rejects(locks.acquire("k", { wait: 1500 }), (error) => {
    assert.ok(error instanceof LockTimeoutError);
    assert.match(error.message, /^could not acquire 'k' within 1\.\d s$/);
    return true;
  });
  assert.equal(count(/^info redislock: waiting for 'k', which this very Locks holds \(/), 1);
  await hold.release();
});

test("a long wait is logged though no server replies to its first request", async (t) => {
  const server = await startServer(t);
  const { lines, logger, count } = newLog();
  const locks = await locksOn(t, server, "ioredis", { logger });
  await locks.acquire("k");
  server.process.kill("SIGSTOP");
  const cancel = new AbortController();
  const waiting = assert.rejects(locks.acquire("k", { signal: cancel.signal }), { name: "AbortError" });
  // Its request fails only after the serverTimeout of 10 s.
  await eventually(() => count(/^info redislock: waiting for 'k', which this very Locks holds \(/) === 1, lines, 6000);
  server.process.kill("SIGCONT");
  cancel.abort();
  await waiting;
});

test("a long wait is logged, with who holds the lock", async (t) => {
  const server = await startServer(t);
  const { lines, logger, count } = newLog();
  const locks = await locksOn(t, server, "ioredis", { logger });
  await server.admin.call("LOCK.ACQUIRE", "k", "somebody", "PX", "120000");
  const cancel = new AbortController();
  const waiting = assert.rejects(locks.acquire("k", { signal: cancel.signal }), { name: "AbortError" });
  await eventually(() => count(/^warn redislock: waiting for 'k' for 30 s: 'k' is held by somebody for 3\d/) === 1, lines, 60_000);
  cancel.abort();
  await waiting;
});

test("a login that fails for a while ends no request", async (t) => {
  const server = await startServer(t);
  await server.admin.call("CONFIG", "SET", "requirepass", "secret");
  const proxy = await startProxy(t, server);
  let calls = 0;
  let fails = false;
  const login = async () => {
    calls++;
    if (fails) throw new RangeError("VAULT is sealed");
    return { username: "default", password: "secret" };
  };
  const { client, close } = await connect("node-redis", "single", [proxy.address], undefined, login);
  const locks = new Locks(client);
  atEnd(t, async () => {
    await locks.close();
    await close();
  });
  const holder = await locks.acquire("k");
  const waiting = locks.acquire("k", { wait: 20_000 });
  await eventually(async () => (await server.waiters("k")) === 1, "it waits");
  const before = calls;
  fails = true;
  proxy.cut();
  await eventually(() => calls > before + 1, "it asks how to log in");
  const { error } = await failure(locks.acquire("l", { wait: 500 }));
  assert.ok(error instanceof ConnectionFailedError || error instanceof LockTimeoutError, String(error));
  fails = false;
  await holder.release();
  assert.equal(await (await waiting).release(), true);
});

/** A proxy that does not know HELLO. */
async function withoutHello(t, server) {
  const listener = createServer((near) => {
    const far = connectPlain(server.port, "127.0.0.1");
    near.on("data", (chunk) => {
      if (String(chunk).includes("HELLO")) near.write("-ERR unknown command 'HELLO'\r\n");
      else far.write(chunk);
    });
    far.pipe(near);
    for (const one of [near, far]) {
      one.on("error", () => undefined).on("close", () => {
        near.destroy();
        far.destroy();
      });
    }
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  atEnd(t, () => listener.close());
  return { address: `127.0.0.1:${listener.address().port}` };
}

test("a proxy that does not know HELLO is named as the reason", async (t) => {
  const server = await startServer(t);
  const proxy = await withoutHello(t, server);
  const { lines, logger, count } = newLog();
  const locks = await locksOn(t, proxy, "ioredis", { logger });
  const hold = await locks.acquire("k");
  await eventually(() => count(/^warn .*losses at \S+ are noticed by renewals alone: .*HELLO 3/) === 1, lines);
  await assert.rejects(locks.many(["k", "l"]).acquire({ wait: 5000 }), (error) => {
    assert.ok(error instanceof ServerRefusedError);
    assert.match(error.message, /^127\.0\.0\.1:\d+ does not know HELLO 3, .* RESP3/);
    return true;
  });
  const next = locks.acquire("k", { wait: 20_000 });
  await eventually(async () => (await server.waiters("k")) === 1, "one lock is waited for all the same");
  assert.equal(await hold.release(), true);
  await (await next).release();
});

for (const driver of BOTH) {
  test(`a port that wants TLS is named as a possible reason: ${driver}`, async (t) => {
    const listener = createTlsServer().listen(0, "127.0.0.1");
    await once(listener, "listening");
    atEnd(t, () => listener.close());
    const locks = await locksOn(t, { address: `127.0.0.1:${listener.address().port}` }, driver);
    for (const ask of [() => locks.ping(), () => locks.acquire("k", { wait: 0 }), () => locks.acquire("k", { wait: 1500 })]) {
      await assert.rejects(ask(), { name: "ConnectionFailedError", message: /if it wants TLS, set that in your client/ });
    }
  });
}

test("a cause that is known outlasts replies that come late", async (t) => {
  let ended = false;
  const listener = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.on("data", (bytes) => {
      if (ended) return; // it says nothing any more
      ended = bytes.includes("redislock");
      socket.end();
    });
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  atEnd(t, () => listener.close());
  const locks = await locksOn(t, { address: `127.0.0.1:${listener.address().port}` }, "ioredis");
  await assert.rejects(locks.acquire("k", { wait: 4000 }), {
    name: "ConnectionFailedError",
    message: /^could not acquire 'k' .*: the server closed the connection on the first request: if it wants TLS, set that/,
  });
});

test("independent servers that refuse to raise a token are told as that", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  for (const { admin } of servers) await admin.call("ACL", "SETUSER", "default", "-lock.renew");
  const made = await Promise.all(servers.map(({ address }) => connect("ioredis", "single", [address])));
  const locks = new Redlock(made.map(({ client }) => client));
  atEnd(t, async () => {
    await locks.close();
    await Promise.all(made.map(({ close }) => close()));
  });
  for (const wait of [0, 20_000]) {
    const { error, took } = await failure(locks.acquire("k", { wait }));
    assert.ok(error instanceof ServerRefusedError && error.code === "NOPERM", String(error));
    assert.ok(took < 10_000, `${took} ms`);
  }
});

test("what only looks like a client is refused at once, and so are wrong arguments", async (t) => {
  const server = await startServer(t);
  const { client, close } = await connect("node-redis", "single", [server.address]);
  const other = await connect("ioredis", "single", [server.address]);
  atEnd(t, close);
  atEnd(t, other.close);
  const wrong = (make, message) => assert.throws(make, { name: "TypeError", message });
  const looksLikeOne = /^a client of ioredis or node-redis is needed, /;
  for (const some of [client.legacy(), { sendCommand: () => undefined }, other.client.pipeline(), { call: () => 1 }]) {
    wrong(() => new Locks(some), looksLikeOne);
    wrong(() => new Redlock([some, some, some]), looksLikeOne);
  }
  const locks = new Locks(client);
  for (const name of ["", 1, undefined]) {
    for (const kind of ["lock", "read", "write"]) wrong(() => locks[kind](name), /^a name must /);
    wrong(() => locks.semaphore(name, 1), /^a name must /);
  }
  for (const limit of [0, -1, 1.5, true, "3", 1_000_001]) {
    wrong(() => locks.semaphore("k", limit), /^limit must be a whole number, 1 to 1000000: /);
  }
  wrong(() => locks.many(["a", "b", "a"]), /^a name must not be given twice: 'a'$/);
  wrong(() => new Locks(client, { logger: { warn: 1 } }), /^logger\.debug must be a function: /);
  wrong(() => new Locks(client, { logger: "console" }), /^logger must be an object, as console: /);
  wrong(() => new Locks(client, { login: { user: "me" } }), /^there is no option user; there are username, /);
  wrong(() => new Locks(client, { login: { password: 5 } }), /^login\.password must be a string$/);
  wrong(() => new Redlock("abc"), /^an array of clients is needed: 'abc'$/);
  const rejected = (promise, message) => assert.rejects(promise, { name: "TypeError", message });
  for (const token of [0, -1, 1.5, "5", undefined]) await rejected(locks.checkToken("k", token), /^token must be a whole number/);
  await rejected(locks.checkToken("", 5), /^a name must not be empty$/);
  await rejected(locks.info(""), /^a name must not be empty$/);
  await rejected(locks.acquire("k", { wait: Number.POSITIVE_INFINITY }), /^wait must be a whole number of milliseconds/);
  await rejected(locks.acquire("k", { maxHold: 50 }), /^maxHold must be a whole number of milliseconds, 100 or more: 50$/);
  await rejected(locks.acquire("k", { minHold: 50 }), /^minHold must be a whole number of milliseconds, 100 or more: 50$/);
  const longer = { minHold: 2000, maxHold: 1000 };
  await rejected(locks.acquire("k", longer), /^minHold must be maxHold \(1000 milliseconds\) or less: 2000$/);
  await rejected(locks.read("k").acquire({ minHold: 2000 }), /^minHold is for locks that one owner holds.* not for readers$/);
  await rejected(locks.tryAcquire("k", { wait: 5 }), /^there is no option wait; there are lease, /);
  await rejected(locks.acquire("k", { renew: 1 }), /^renew must be true or false: 1$/);
  await rejected(locks.acquire("k", { signal: {} }), /^signal must be an AbortSignal: /);
  assert.equal(await server.admin.call("DBSIZE"), 0);
});

test("a client of node-redis that was never connected fails at once", async () => {
  const { createClient } = await import("redis");
  const { error, took } = await failure(new Locks(createClient()).acquire("k"));
  assert.ok(error instanceof ConnectionFailedError && took < 1500, String(error));
});
