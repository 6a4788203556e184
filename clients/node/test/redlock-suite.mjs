// Runs the tests of node-redlock, as its package has them, on our classes: a program for suite-of-redlock.test.mjs. The
// arguments are the ports of three servers. It prints the outcome of each test as JSON: "passed", or why not.

import { EventEmitter } from "node:events";
import Module, { createRequire } from "node:module";

import { Redis } from "ioredis";
import Mocha from "mocha";
import { createClient } from "redis";
import { Locks } from "redislock";
import { Redlock as ByMajority } from "redislock/redlock";

const require = createRequire(import.meta.url);
const SUITE = require.resolve("redlock/test.js");
// The promises that the suite expects of node-redlock.
const Promise = createRequire(SUITE)("bluebird");
/** A failed assertion fails its test. Bluebird's own ends the process. */
Promise.prototype.done = function done(...handlers) {
  this.then(...handlers).catch((error) => setTimeout(() => {
    throw error;
  }));
};
const ports = process.argv.slice(2);

/** A client of one of our drivers, with what the suite calls. */
class Client {
  constructor(driver, call, quit) {
    Object.assign(this, { driver, call, quit });
  }
  sadd(key, member, done) {
    Promise.resolve(this.call(["SADD", key, member])).asCallback(done);
  }
  del(key, done) {
    Promise.resolve(this.call(["DEL", key])).asCallback(done);
  }
  script(word, done) {
    Promise.resolve(this.call(["SCRIPT", word])).asCallback(done);
  }
}

/** The suite asks for one server, or for three databases of it: independent ones are servers of their own. */
class Ioredis extends Client {
  constructor({ db = 1 } = {}) {
    const redis = new Redis({ port: Number(ports[db - 1]) });
    super(redis, (words) => redis.call(...words), () => redis.quit());
  }
}

function nodeRedis() {
  const client = createClient({ socket: { port: Number(ports[0]) } });
  client.on("error", () => undefined);
  const connected = client.connect();
  const call = (words) => connected.then(() => client.sendCommand(words));
  return new Client(client, call, () => client.close());
}

class LockError extends Error {
  constructor(attempts, cause) {
    super(String(cause), { cause });
    this.attempts = attempts;
  }
}

class Lock {
  constructor(resource, hold, attempts, attemptsRemaining) {
    Object.assign(this, { resource, hold, attempts, attemptsRemaining, expiration: Date.now() + hold.remaining });
  }

  unlock(done) {
    return Promise.resolve(unlock(this)).asCallback(done);
  }

  extend(lease, done) {
    return Promise.resolve(extend(this, lease)).asCallback(done);
  }
}

// The suite inherits from a lock: private methods would refuse that.
async function unlock(lock) {
  lock.expiration = 0;
  lock.hold.check();
  await lock.hold.release();
}

async function extend(lock, lease) {
  try {
    await lock.hold.extend(lease);
  } catch (error) {
    throw new LockError(0, error);
  }
  lock.expiration = Date.now() + lock.hold.remaining;
  return lock;
}

/** The interface of node-redlock 4. One server has our ordinary locks, several have those by majority. */
class Redlock extends EventEmitter {
  static Lock = Lock;
  static LockError = LockError;

  constructor(servers, options) {
    super();
    const clients = servers.map(({ driver }) => driver);
    this.servers = servers;
    this.options = { retryCount: 10, retryDelay: 200, retryJitter: 100, ...options };
    this.locks = clients.length === 1 ? new Locks(clients[0]) : new ByMajority(clients);
  }

  /** Waits where node-redlock pauses between two attempts. */
  async #lock(resource, lease, options) {
    const { retryCount, retryDelay, retryJitter } = { ...this.options, ...options };
    const lock = resource instanceof Array ? this.locks.many(resource) : this.locks.lock(resource);
    for (let attempts = 1; ; attempts++) {
      const wait = attempts === 1 ? 0 : Math.round(retryDelay + Math.random() * retryJitter);
      try {
        return new Lock(resource, await lock.acquire({ lease, wait, renew: false }), attempts, retryCount - attempts);
      } catch (error) {
        if (error.name !== "LockTimeoutError") this.emit("clientError", error);
        if (error.name !== "LockTimeoutError" || attempts > retryCount) throw new LockError(attempts, error);
      }
    }
  }
  lock(resource, lease, done) {
    return this.lockWithOptions(resource, lease, {}, done);
  }
  lockWithOptions(resource, lease, options, done) {
    return Promise.resolve(this.#lock(resource, lease, options)).asCallback(done);
  }
  _lock(resource, value, lease, done) {
    return this.lock(resource, lease, done);
  }
  disposer(resource, lease, failed) {
    return this.lock(resource, lease).disposer((lock) => lock.unlock().catch(failed));
  }

  quit() {
    return Promise.all(this.servers.map((server) => server.quit()));
  }
}

// The modules that the suite loads from here. It gets the others, such as chai, unchanged.
const given = { "./redlock": Redlock, ioredis: Ioredis, redis: { createClient: nodeRedis } };
const load = Module._load;
Module._load = (name, parent, ...rest) => (parent?.filename === SUITE && given[name]) || load(name, parent, ...rest);

const outcomes = {};
const mocha = new Mocha({ timeout: 10_000, reporter: class {} });
mocha.addFile(SUITE);
const running = mocha.run(() => process.stdout.write(JSON.stringify(outcomes), () => process.exit()));
running.on("pass", (test) => {
  outcomes[test.fullTitle()] = "passed";
});
running.on("fail", (test, error) => {
  outcomes[test.fullTitle()] = error.message;
});
