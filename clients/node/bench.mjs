// Compares this library with the driver's bare commands and node-redlock. Usage: node bench.mjs HOST:PORT [ROUNDS].
//
// Prints a line of JSON for each figure: client, subject, metric, values. `make bench` reads them. The subjects take
// turns in each round, so that other load on the machine affects all of them.

import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";

import { Locks } from "redislock";
import Redlock from "redlock";

import { connect } from "./test/clients.mjs";

const { positionals } = parseArgs({ allowPositionals: true });
const [address = "127.0.0.1:6379", rounds = "15"] = positionals;
const PAIRS = 300;
const LOSSES = 50;
const TASKS = 1000;
const PAIR = "microseconds for an acquire and its release";

const tell = (driver, subject, metric, values) => {
  console.log(JSON.stringify({ client: `Node, ${driver}`, subject, metric, values }));
};

/** The microseconds for one pair, when `PAIRS` of them run one after the other. */
async function timeOf(pair) {
  const start = performance.now();
  for (let number = 0; number < PAIRS; number++) await pair(number);
  return ((performance.now() - start) * 1000) / PAIRS;
}

async function pairs(driver, client, locks) {
  const send = client.call ? (...words) => client.call(...words) : (...words) => client.sendCommand(words);
  const ways = {
    redislock: () => locks.run("ours", () => undefined),
    "the bare commands": async () => {
      const owner = randomUUID();
      const token = await send("LOCK.ACQUIRE", "bare", owner, "PX", "30000");
      await send("LOCK.RELEASE", "bare", owner, "TOKEN", String(token));
    },
  };
  if (client.call) {
    const redlock = new Redlock([client], { retryCount: 0 });
    ways["node-redlock"] = async () => (await redlock.lock("theirs", 30_000)).unlock();
  }
  const times = Object.fromEntries(Object.keys(ways).map((way) => [way, []]));
  for (let round = 0; round <= Number(rounds); round++) {
    // Every other round runs in reverse order, so that no subject always comes first.
    const order = Object.entries(ways);
    for (const [way, pair] of round % 2 ? order.reverse() : order) {
      const time = await timeOf(pair);
      if (round) times[way].push(time);
    }
  }
  for (const [way, values] of Object.entries(times)) tell(driver, way, PAIR, values);
}

/** The time from DEL until the holder is notified. */
async function losses(driver, client, locks) {
  const times = [];
  for (let number = 0; number < LOSSES; number++) {
    const hold = await locks.acquire("lost");
    await pause(50);
    const told = new Promise((resolve) => hold.signal.addEventListener("abort", resolve));
    const start = performance.now();
    client.del("lost").catch(() => undefined);
    await told;
    times.push(performance.now() - start);
    await hold.release();
  }
  tell(driver, "redislock", "milliseconds from DEL until the holder is told", times);
}

const processorMs = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};

/** Many tasks wait for one lock, and each releases it at once. */
async function crowd(driver, client, locks) {
  const send = client.call ? (...words) => client.call(...words) : (...words) => client.sendCommand(words);
  const holder = await locks.acquire("crowd");
  const all = Array.from({ length: TASKS }, () => locks.run("crowd", () => undefined));
  await pause(2000);
  const connections = String(await send("CLIENT", "LIST")).trim().split("\n").length;
  tell(driver, "redislock", `connections while ${TASKS} tasks wait`, [connections]);
  const idle = processorMs();
  await pause(2000);
  tell(driver, "redislock", "per cent of a core while they wait", [(processorMs() - idle) / 20]);
  const [start, busy] = [performance.now(), processorMs()];
  await holder.release();
  await Promise.all(all);
  tell(driver, "redislock", "milliseconds to serve them all", [performance.now() - start]);
  tell(driver, "redislock", "milliseconds of processor for it", [processorMs() - busy]);
}

for (const driver of ["ioredis", "node-redis"]) {
  const { client, close } = await connect(driver, "single", [address]);
  const locks = new Locks(client);
  await pairs(driver, client, locks);
  await losses(driver, client, locks);
  await crowd(driver, client, locks);
  await locks.close();
  await close();
}
