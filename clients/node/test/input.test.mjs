// A program's mistakes are refused, in words that name the argument, and nothing is taken.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Locks, LockTimeoutError, ModuleMissingError, ServerRefusedError } from "redislock";
import { Redlock } from "redislock/redlock";

import { connect } from "./clients.mjs";
import { atEnd, locksOn, startProxy, startServer } from "./servers.mjs";

/** Locks over clients of three servers, which end with the test. */
async function independentOn(t, servers, options) {
  const made = await Promise.all(servers.map(({ address }) => connect("ioredis", "single", [address])));
  const clients = made.map(({ client }) => client);
  const locks = new Redlock(clients, options);
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
    const lead = () => locks.leader("k", { owner, onElected: () => undefined });
    assert.throws(lead, { name: "TypeError", message: range });
  }
  for (const { admin } of servers) assert.equal(await admin.call("DBSIZE"), 0);
  await (await locks.acquire("k", { owner: "é".repeat(128) })).release();
});

test("a leader that could never lead is refused at once", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const onElected = () => undefined;
  const refused = (options, message) => {
    assert.throws(() => locks.leader("job", options), { name: "TypeError", message });
  };
  refused(undefined, /^the options must be an object: undefined$/);
  refused({}, /^onElected must be a function: undefined$/);
  refused({ onElect: onElected }, /^there is no option onElect; there are onElected, onDeposed, onError, lease, owner$/);
  refused({ onElected, wait: 0 }, /^there is no option wait; /);
  refused({ onElected, onDeposed: 1 }, /^onDeposed must be a function: 1$/);
  refused({ onElected, onError: "x" }, /^onError must be a function: 'x'$/);
  refused({ onElected, lease: "5" }, /^lease must be a whole number of milliseconds, 100 or more: '5'$/);
  refused({ onElected, lease: 99 }, /^lease must be a whole number of milliseconds, 100 or more: 99$/);
  assert.throws(() => locks.leader(42, { onElected }), { name: "TypeError", message: /^a name must be a string: 42$/ });
  assert.doesNotMatch(await server.admin.call("INFO", "commandstats"), /lock\.acquire/i, "none has asked for the lock");
});

test("a setting of the locks that is wrong is refused", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const { client, close } = await connect("ioredis", "single", [servers[0].address]);
  atEnd(t, close);
  const { clients } = await independentOn(t, servers);
  const refused = (options, message, makes = [(some) => new Locks(client, some)]) => {
    for (const make of makes) assert.throws(() => make(options), { name: "TypeError", message });
  };
  const both = [(some) => new Locks(client, some), (some) => new Redlock(clients, some)];
  for (const waitingConnections of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, "4"]) {
    refused({ waitingConnections }, /^waitingConnections must be a whole number, 1 or more: /);
  }
  refused({ maxQueuedPerLock: 0 }, /^maxQueuedPerLock must be a whole number, 1 or more: /);
  refused({ leaseMs: 1000 }, /^there is no option leaseMs; there are lease, serverTimeout, label, prefix, hooks/, both);
  refused({ wait: 100 }, /^there is no option wait; there are lease, /, both);
  refused({ waitingConnections: 4 }, /^there is no option waitingConnections; /, both.slice(1));
  refused(5, /^the options must be an object: 5$/, both);
  for (const lease of [99, "30000"]) refused({ lease }, /^lease must be a whole number .*, 100 or more: /, both);
  for (const serverTimeout of [0, "x", Number.NaN]) {
    refused({ serverTimeout }, /^serverTimeout must be a whole number .*, 1 or more: /, both);
  }
  for (const label of ["", 5, "x".repeat(201)]) refused({ label }, /^label must be a string of 1 to 200 bytes: /, both);
  refused({ prefix: 5 }, /^prefix must be a string: 5$/, both);
  refused({ hooks: () => 1 }, /^hooks must be an object: /, both);
  refused({ hooks: { granted: 1 } }, /^the hook granted must be a function: 1$/, both);
});

test("a server without the module is told without the words of the request", async (t) => {
  const bare = await startServer(t, { withModule: false });
  for (const driver of ["ioredis", "node-redis"]) {
    const locks = await locksOn(t, bare, driver);
    for (const lock of [locks.lock("secret"), locks.many(["secret", "l"])]) {
      await assert.rejects(lock.acquire(), (error) => {
        assert.ok(error instanceof ModuleMissingError);
        assert.match(error.message, /^ERR unknown command \S+ - load the module: /);
        return true;
      });
    }
  }
});

test("a module that is too old is logged once for a server", { timeout: 90_000 }, async (t) => {
  const server = await startServer(t);
  for (const version of [":300", ":209"]) {
    const proxy = await startProxy(t, server);
    // The module says 300, which is 0.3.0.
    proxy.change = (chunk) => Buffer.from(chunk.toString("latin1").replace("ver\r\n:300", `ver\r\n${version}`), "latin1");
    const lines = [];
    const log = (line) => lines.push(line);
    const logger = { debug: log, info: log, warn: log, error: log };
    const locks = await locksOn(t, proxy, "ioredis", { logger });
    for (let round = 0; round < 2; round++) {
      const hold = await locks.acquire("k");
      await assert.rejects(locks.acquire("k", { wait: 300 }), LockTimeoutError);
      await hold.release();
    }
    const need = "this client needs 0.3.0 or later: upgrade the module";
    const told = [`redislock: the module redislock on ${proxy.address} is version 0.2.9, and ${need}`];
    assert.deepEqual(lines.filter((line) => line.includes("is version")), version === ":209" ? told : []);
  }
});

test("a lease above the server's is refused in the words of the option", async (t) => {
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  for (const { admin } of servers) await admin.call("CONFIG", "SET", "redislock.max-lease", "60000");
  const { locks: independent } = await independentOn(t, servers);
  const locks = await locksOn(t, servers[0], "ioredis");
  const range = "from 100 to 60000 milliseconds (redislock.max-lease of the server, or its quarantine)";
  const message = `lease must be ${range}: 60001`;
  const isTold = (error) => {
    assert.ok(error instanceof ServerRefusedError);
    assert.equal(error.message, message);
    assert.equal(error.code, "ERR");
    assert.match(String(error.cause), /PX must be an integer/);
    return true;
  };
  for (const wait of [0, 300, undefined]) {
    for (const lock of [locks.lock("k"), locks.many(["k", "l"]), independent.lock("k")]) {
      await assert.rejects(lock.acquire({ lease: 60_001, wait }), isTold);
    }
  }
  await (await locks.acquire("k", { lease: 60_000 })).release();
});
