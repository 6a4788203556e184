// The conformance kit's adapter: JSON lines over standard input and output. clients/conformance/PROTOCOL.md.

import { once } from "node:events";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

import { LockError, Locks } from "redislock";
import { Redlock } from "redislock/redlock";

import { asksForLogin, connect, DRIVERS } from "./test/clients.mjs";

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

/** The objects that the adapter has open. */
const state = {
  locks: undefined,
  clients: [],
  holds: new Map(),
  leaders: new Map(),
  objects: new Map(),
  cancels: new Map(),
  counts: { grants: 0, timeouts: 0, losses: 0, releases: 0, waits: 0 },
};

const count = (name) => () => {
  state.counts[name]++;
};

const hooks = {
  granted: count("grants"),
  timedOut: count("timeouts"),
  lost: count("losses"),
  released: count("releases"),
  waiting: count("waits"),
};

/** Reports the library's log lines and warnings. */
const tell = (level) => (message) => say({ event: "log", level, message });
const logger = { debug: () => undefined, info: tell("info"), warn: tell("warning"), error: tell("error") };
process.on("warning", ({ name, message }) => name === "RedislockWarning" && logger.warn(message));

/** Makes the login of a driver, by a function that fails at some of its calls. */
function loginOf({ password, fails = [] }) {
  let calls = 0;
  return async () => {
    calls++;
    if (fails === "later" ? calls > 1 : fails.includes(calls)) throw new RangeError(`VAULT is sealed: call ${calls}`);
    return { username: "default", password };
  };
}

/** The lock of a request: the same object for requests that name one. */
function lockOf(request) {
  if (request.lock === undefined) return newLock(request);
  if (!state.objects.has(request.lock)) state.objects.set(request.lock, newLock(request));
  return state.objects.get(request.lock);
}

function newLock({ name, names, kind, limit }) {
  const { locks } = state;
  if (names !== undefined) return kind === "read" ? locks.readMany(names) : locks.many(names);
  if (kind === "read") return locks.read(name);
  if (kind === "write") return locks.write(name);
  if (kind === "semaphore") return locks.semaphore(name, limit);
  return locks.lock(name);
}

function optionsOf(request) {
  const cancel = new AbortController();
  state.cancels.set(request.id, cancel);
  return {
    lease: request.lease_ms,
    wait: request.wait_ms,
    renew: request.renew,
    minHold: request.min_hold_ms,
    maxHold: request.longest_ms,
    owner: request.owner,
    signal: cancel.signal,
  };
}

/** Reports the loss of a hold. */
function watch(id, hold) {
  const tell = () => {
    if (hold.loss) say({ event: "lost", hold: id, reason: hold.loss.reason, cause: hold.loss.cause?.message });
  };
  if (hold.signal.aborted) tell();
  else hold.signal.addEventListener("abort", tell, { once: true });
}

function keep(request, hold) {
  state.holds.set(request.hold, hold);
  const answer = { token: hold.token, remaining_ms: Math.floor(hold.remaining), owner: hold.owner };
  watch(request.hold, hold);
  return answer;
}

/** The works of a leader that run until the loss and throw it. */
const WORKS = {
  async signal(hold, ended) {
    await once(hold.signal, "abort");
    ended();
    throw hold.signal.reason;
  },
  async check(hold, ended) {
    try {
      for (;;) {
        hold.check();
        await pause(5);
      }
    } finally {
      ended();
    }
  },
  block(hold, ended) {
    try {
      for (;;) hold.check();
    } finally {
      ended();
    }
  },
};

const ops = {
  async open({ mode, addresses, service, lease_ms, waiting_connections, driver = DRIVERS[0], login, prefix, label }) {
    const options = { lease: lease_ms, hooks, logger, prefix, label };
    if (mode === "independent") {
      state.clients = await Promise.all(addresses.map((each) => connect(driver, "single", [each])));
      state.locks = new Redlock(
        state.clients.map(({ client }) => client),
        options,
      );
    } else {
      state.clients = [await connect(driver, mode, addresses, service, login && loginOf(login))];
      state.locks = new Locks(state.clients[0].client, { ...options, waitingConnections: waiting_connections });
    }
    const features = ["push", "cancel", "body", "tasks", "leader", "stats", "sentinel", "cluster", "independent"];
    features.push("log", "client", "min_hold", "ticket");
    if (asksForLogin(driver)) features.push("provider");
    if (mode !== "independent") features.push("fence");
    // Versions 5 of both drivers are covered by the client's own tests.
    return { drivers: DRIVERS.slice(0, 2), features };
  },
  async acquire(request) {
    return keep(request, await lockOf(request).acquire(optionsOf(request)));
  },
  async try(request) {
    const options = optionsOf(request);
    delete options.wait;
    const hold = await lockOf(request).tryAcquire(options);
    return hold === null ? {} : keep(request, hold);
  },
  async info({ name }) {
    const info = (await state.locks.info(name)) ?? { holders: [], waiters: 0 };
    const holders = info.holders.map(({ owner, token, leftMs }) => ({ owner, token, left_ms: Math.floor(leftMs) }));
    return { holders, waiters: info.waiters };
  },
  async ping() {
    return { version: await state.locks.ping() };
  },
  async detach({ hold, lease_ms }) {
    return { ticket: await state.holds.get(hold).detach(lease_ms) };
  },
  async adopt(request) {
    return keep(request, await state.locks.adopt(request.ticket, request.lease_ms));
  },
  async check({ hold }) {
    const held = state.holds.get(hold);
    held.check();
    return { remaining_ms: Math.floor(held.remaining) };
  },
  async release({ hold }) {
    await state.holds.get(hold).release();
    state.holds.delete(hold);
    return {};
  },
  async run(request) {
    let token = 0;
    let body = "finished";
    try {
      await lockOf(request).run(optionsOf(request), async (hold) => {
        token = hold.token;
        watch(request.hold, hold);
        await pause(request.body_ms, undefined, { signal: hold.signal }).catch((error) => {
          body = "cancelled";
          throw error;
        });
        if (request.raise) {
          body = "raised";
          throw new RangeError("the body's own error");
        }
      });
    } catch (error) {
      if (!(error instanceof RangeError)) throw Object.assign(error, { body });
    }
    return { token, body };
  },
  async cycle(request) {
    const options = optionsOf(request);
    for (let number = 0; number < request.times; number++) {
      const hold = await lockOf(request).acquire(options);
      await hold.release();
    }
    return { times: request.times };
  },
  async cancel({ of }) {
    state.cancels.get(of)?.abort();
    return {};
  },
  async fence({ name, token }) {
    await state.locks.checkToken(name, token);
    return {};
  },
  async lead({ leader, name, lease_ms, fail = false, until_lost }) {
    const options = {
      lease: lease_ms,
      onElected(hold) {
        say({ event: "elected", leader, token: hold.token });
        if (fail) throw new RangeError("the leader's own error");
        return WORKS[until_lost]?.(hold, () => say({ event: "ended", leader }));
      },
      onDeposed: (reason) => say({ event: "deposed", leader, reason }),
      onError: ({ message }) => say({ event: "failed", leader, message }),
    };
    state.leaders.set(leader, state.locks.leader(name, options));
    return {};
  },
  async resign({ leader }) {
    await state.leaders.get(leader).resign();
    return {};
  },
  async stats() {
    return state.counts;
  },
  async threads() {
    globalThis.gc?.();
    const status = readFileSync("/proc/self/status", "utf8");
    const number = (word) => Number(new RegExp(`${word}:\\s+(\\d+)`).exec(status)[1]);
    return { threads: number("Threads"), connections: connections(), memory_kb: number("VmRSS") };
  },
  async quit() {
    await Promise.all(state.clients.map(({ close }) => close()));
    state.clients = [];
    return {};
  },
  async close() {
    await close();
    return {};
  },
};

/** The number of TCP connections that this process has established. */
function connections() {
  const rows = readFileSync("/proc/net/tcp", "utf8").split("\n").slice(1);
  const established = new Set(
    rows.map((row) => row.trim().split(/\s+/)).flatMap((row) => (row[3] === "01" ? row[9] : [])),
  );
  return readdirSync("/proc/self/fd").filter((fd) => {
    try {
      const socket = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/self/fd/${fd}`));
      return socket !== null && established.has(socket[1]);
    } catch {
      return false;
    }
  }).length;
}

async function close() {
  await state.locks?.close();
  await Promise.all(state.clients.map(({ close }) => close()));
  state.clients = [];
}

function errorOf(error) {
  if (error instanceof LockError) {
    // The kit uses the names of the concepts, which end in Error here.
    const word = error.kind.replace(/Error$/, "");
    const kind = { ServerRefused: "Other", LocksClosed: "Cancelled" }[word] ?? word;
    const more = { cycle: error.cycle, left_ms: error.leftMs, body: error.body };
    return { kind, message: error.message, ...more };
  }
  if (error.name === "AbortError") return { kind: "Cancelled", message: error.message };
  return { kind: "Other", message: String(error.stack ?? error) };
}

async function answer(line) {
  const request = JSON.parse(line);
  const { id, op } = request;
  try {
    if (ops[op] === undefined) say({ id, error: { kind: "Unsupported", message: op } });
    else say({ id, ok: await ops[op](request) });
  } catch (error) {
    say({ id, error: errorOf(error) });
  } finally {
    state.cancels.delete(id);
  }
}

const running = new Set();
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const work = answer(line);
  running.add(work);
  work.finally(() => running.delete(work));
});
lines.on("close", async () => {
  await close();
  process.exit(0);
});
