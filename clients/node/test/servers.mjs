// Real servers for the tests: REDISLOCK_SERVER is "NAME VERSION SERVER CLI", REDISLOCK_MODULE the module's file.

import { spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect as connectPlain, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

import { Redis } from "ioredis";
import { Locks } from "redislock";

import { connect } from "./clients.mjs";

const [, , BINARY] = (process.env.REDISLOCK_SERVER ?? "").split(" ");
const MODULE = process.env.REDISLOCK_MODULE;
if (!BINARY || !MODULE) throw new Error("REDISLOCK_SERVER and REDISLOCK_MODULE say what is tested");

/** The time that a busy machine may need. */
const PATIENCE_MS = 30_000;

/** Polls until the condition holds, and returns what it gave. */
export async function eventually(condition, what, limit = PATIENCE_MS) {
  const end = performance.now() + limit;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (performance.now() > end) throw new Error(`in vain: ${what}`);
    await pause(5);
  }
}

/**
 * A port that is free now. It is below those that Linux chooses where a program names none. So no search for a free port
 * finds that of a server that a test has killed.
 */
async function freePort() {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = randomInt(12_000, 32_000);
    const holder = createServer();
    const isFree = await new Promise((resolve) => {
      holder.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true));
    });
    if (!isFree) continue;
    holder.close();
    await once(holder, "close");
    return port;
  }
  throw new Error("no port is free");
}

const ENDS = new WeakMap();

/** Runs this at the end of the test, before what was said earlier: clients end before their servers. */
export function atEnd(t, work) {
  if (!ENDS.has(t)) {
    const ends = [];
    ENDS.set(t, ends);
    t.after(async () => {
      for (const end of ends.reverse()) await end();
    });
  }
  ENDS.get(t).push(work);
}

class Server {
  constructor(port, folder, words) {
    this.port = port;
    this.address = `127.0.0.1:${port}`;
    this.folder = folder;
    this.words = words;
  }

  /** Starts it; false if the port was taken meanwhile. */
  async start() {
    this.process = spawn(BINARY, this.words, { stdio: ["ignore", "ignore", "inherit"], cwd: this.folder });
    this.admin = new Redis({ port: this.port, lazyConnect: true, retryStrategy: () => 50, maxRetriesPerRequest: null });
    this.admin.on("error", () => undefined);
    this.admin.connect().catch(() => undefined);
    const ready = this.admin.call("ROLE").then(() => this.isOurs());
    const ended = once(this.process, "exit").then(() => false);
    // Without ref: this timer would keep the process for as long, when all tests are through.
    const patience = pause(PATIENCE_MS, false, { ref: false });
    let started = false;
    try {
      started = await Promise.race([ready, ended, patience]);
    } finally {
      // Otherwise it would connect again for ever, and this process would not end.
      if (!started) this.admin.disconnect();
    }
    return started;
  }

  /** Returns true if the process that answers is ours, and not another server that was faster to take the port. */
  async isOurs() {
    return (await this.info("process_id")) === String(this.process.pid);
  }

  /** Ends it at once, as a power cut does. */
  async kill() {
    this.admin.disconnect();
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill("SIGKILL");
      await once(this.process, "exit");
    }
  }

  async stop() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** The number of requests that wait for the lock. */
  async waiters(name) {
    const info = await this.admin.call("LOCK.INFO", name);
    return info === null ? 0 : info[info.indexOf("waiters") + 1];
  }

  async isFree(name) {
    return (await this.admin.call("LOCK.INFO", name)) === null;
  }

  /** One field of INFO. */
  async info(field) {
    const text = await this.admin.call("INFO", "everything");
    return new RegExp(`^${field}:(.*)\\r$`, "m").exec(text)?.[1];
  }
}

/** Starts a server; `t` is the test, at whose end the server is stopped. */
export async function startServer(t, { words = [], withModule = true } = {}) {
  for (let attempt = 0; attempt < 5; attempt++) {
    const port = await freePort();
    const folder = mkdtempSync(join(tmpdir(), "redislock-node-"));
    const module = withModule ? ["--loadmodule", MODULE] : [];
    const place = ["--port", String(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--logfile", "log"];
    const server = new Server(port, folder, [...place, ...module, ...words]);
    if (await server.start()) {
      atEnd(t, () => server.stop());
      return server;
    }
    if (attempt === 4) throw new Error(readFileSync(join(folder, "log"), "utf8"));
    await server.stop();
  }
}

/**
 * A proxy before this server. `replyDelay` is by how many milliseconds replies come later. `see` is called with what a
 * client sends: "cut" ends that connection, "freeze" lets the request through and nothing after it. A number is by how
 * many milliseconds that connection's replies come later from then on. `change` gives what a client gets of a reply.
 */
export async function startProxy(t, server) {
  const pairs = new Set();
  const proxy = {
    replyDelay: 0,
    see: () => undefined,
    change: (chunk) => chunk,
    cut() {
      for (const socket of [...pairs].flat()) socket.destroy();
    },
  };
  const listener = createServer((near) => {
    const far = connectPlain(server.port, "127.0.0.1");
    const pair = [near, far];
    pairs.add(pair);
    let isFrozen = false;
    let at = 0;
    let delay = 0;
    near.on("data", (chunk) => {
      if (isFrozen) return;
      const fate = proxy.see(String(chunk));
      if (fate === "cut") near.destroy();
      else far.write(chunk);
      isFrozen = fate === "freeze";
      if (typeof fate === "number") delay = fate;
    });
    far.on("data", (chunk) => {
      at = Math.max(at, performance.now() + proxy.replyDelay + delay);
      setTimeout(() => isFrozen || near.write(proxy.change(chunk)), Math.max(at - performance.now(), 0));
    });
    for (const [one, other] of [pair, [far, near]]) {
      one.on("error", () => undefined);
      one.on("close", () => {
        pairs.delete(pair);
        other.destroy();
      });
    }
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  proxy.address = `127.0.0.1:${listener.address().port}`;
  atEnd(t, () => {
    listener.close();
    proxy.cut();
  });
  return proxy;
}

/** Locks over this driver, which end with the test, and their client. */
export async function locksOn(t, server, driver, options) {
  const { client, close } = await connect(driver, "single", [server.address]);
  const locks = new Locks(client, options);
  locks.client = client;
  atEnd(t, async () => {
    await locks.close();
    await close();
  });
  return locks;
}

/** Three primaries that share the slots. */
export async function startCluster(t) {
  const words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"];
  const nodes = await Promise.all([0, 1, 2].map(() => startServer(t, { words })));
  const share = Math.ceil(16384 / nodes.length);
  for (const [number, { admin }] of nodes.entries()) {
    const last = Math.min((number + 1) * share, 16384) - 1;
    await admin.call("CLUSTER", "ADDSLOTSRANGE", String(number * share), String(last));
    await admin.call("CLUSTER", "SET-CONFIG-EPOCH", String(number + 1));
  }
  for (const { port } of nodes.slice(1)) await nodes[0].admin.call("CLUSTER", "MEET", "127.0.0.1", String(port));
  for (const { admin } of nodes) {
    const isWhole = async () => {
      const info = await admin.call("CLUSTER", "INFO");
      return info.includes("cluster_state:ok") && info.includes("cluster_known_nodes:3");
    };
    await eventually(isWhole, "the cluster is whole");
  }
  return nodes;
}

/** A primary, its replica, and three sentinels that watch them under the name "group". */
export async function startSentinels(t) {
  const words = ["--repl-diskless-sync-delay", "0"];
  const [primary, replica] = await Promise.all([0, 1].map(() => startServer(t, { words })));
  await replica.admin.call("REPLICAOF", "127.0.0.1", String(primary.port));
  const isLinked = async () => (await replica.info("master_link_status")) === "up";
  await eventually(isLinked, "the replica has the primary's data");
  const sentinels = await Promise.all([0, 1, 2].map(() => startSentinel(t, primary.port)));
  for (const { admin } of sentinels) {
    const seesAll = async () => {
      const [group] = await admin.call("SENTINEL", "MASTERS");
      const value = (field) => group[group.indexOf(field) + 1];
      return value("num-slaves") === "1" && value("num-other-sentinels") === "2" && value("flags") === "master";
    };
    await eventually(seesAll, "the sentinels know each other");
  }
  return { primary, replica, sentinels };
}

async function startSentinel(t, primaryPort) {
  const folder = mkdtempSync(join(tmpdir(), "redislock-node-"));
  const port = await freePort();
  const lines = [
    `port ${port}`,
    "bind 127.0.0.1",
    `dir ${folder}`,
    `sentinel monitor group 127.0.0.1 ${primaryPort} 2`,
    "sentinel down-after-milliseconds group 1000",
    "sentinel failover-timeout group 3000",
  ];
  const path = join(folder, "sentinel.conf");
  writeFileSync(path, `${lines.join("\n")}\n`);
  const sentinel = new Server(port, folder, [path, "--sentinel", "--logfile", "log"]);
  if (!(await sentinel.start())) throw new Error("a sentinel did not start");
  atEnd(t, () => sentinel.stop());
  return sentinel;
}
