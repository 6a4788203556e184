// Compares this library with the driver's bare commands and node-redlock. Usage: node bench.mjs HOST:PORT [ROUNDS].
//
// Prints a line of JSON for each figure: client, subject, metric, values. `make bench` reads them. Pairs of acquire and
// release are measured as in a process that has run for a while. The first 3,000 pairs take two to four times as long,
// because V8 has not compiled everything yet. So each subject runs 5,000 pairs that are not counted. Then the subjects
// take turns in blocks of 100 pairs, 20 times in each round, so that other load on the machine affects all of them.

import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";

import { Locks } from "redislock";
import Redlock from "redlock";

import { connect } from "./test/clients.mjs";

const { positionals } = parseArgs({ allowPositionals: true });
const [address = "127.0.0.1:6379", rounds = "15"] = positionals;
/** The pairs of a block, and the blocks of each subject before the first round and in each round. */
const PAIRS = 100;
const WARM_UP = 50;
const BLOCKS = 20;
const LOSSES = 50;
const TASKS = 1000;
const PAIR = "microseconds for an acquire and its release";

const tell = (driver, subject, metric, values) => {
  console.log(JSON.stringify({ client: `Node, ${driver}`, subject, metric, values }));
};

/** The microseconds for one pair of each way, when the ways take turns in blocks. */
async function timesOf(ways, blocks) {
  const order = Object.entries(ways);
  const spent = Object.fromEntries(order.map(([way]) => [way, 0]));
  for (let block = 0; block < blocks; block++) {
    // In reverse order each time, so that no way always comes first.
    for (const [way, pair] of order.reverse()) {
      const start = performance.now();
      for (let number = 0; number < PAIRS; number++) await pair();
      spent[way] += performance.now() - start;
    }
  }
  return Object.entries(spent).map(([way, ms]) => [way, (ms * 1000) / (blocks * PAIRS)]);
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
  await timesOf(ways, WARM_UP);
  const times = Object.fromEntries(Object.keys(ways).map((way) => [way, []]));
  for (let round = 0; round < Number(rounds); round++) {
    for (const [way, time] of await timesOf(ways, BLOCKS)) times[way].push(time);
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
