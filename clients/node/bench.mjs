// Measures acquire and release against the bare driver's two commands and node-redlock, side by side in one run, and
// what a loss and a thousand waiters cost. Usage: node bench.mjs [HOST:PORT]; the server has the module.

import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";

import { Locks } from "redislock";
import Redlock from "redlock";

import { connect } from "./test/clients.mjs";

const { positionals } = parseArgs({ allowPositionals: true });
const [address = "127.0.0.1:6379"] = positionals;
const ROUNDS = 31;
const PAIRS = 300;
const TASKS = 1000;

const median = (values) => values.sort((one, other) => one - other)[Math.floor(values.length / 2)];
const row = (words) => console.log(`| ${words.join(" | ")} |`);

/** Microseconds of one pair, when so many run one after the other. */
async function timeOf(pair) {
  const start = performance.now();
  for (let number = 0; number < PAIRS; number++) await pair(number);
  return ((performance.now() - start) * 1000) / PAIRS;
}

/** The contestants, in turn in each round, so that what else the machine does falls on all alike. */
async function sideBySide(contestants) {
  const times = contestants.map(() => []);
  for (const pair of contestants.map(([, pair]) => pair)) await timeOf(pair);
  for (let round = 0; round < ROUNDS; round++) {
    for (const [number, [, pair]] of contestants.entries()) times[number].push(await timeOf(pair));
  }
  const [bare] = times;
  return contestants.map(([name], number) => ({
    name,
    micros: median([...times[number]]),
    ratio: median(times[number].map((time, round) => time / bare[round])),
  }));
}

async function pairs(driver, client, locks) {
  const send = client.call ? (...words) => client.call(...words) : (...words) => client.sendCommand(words);
  const contestants = [
    [
      "the bare commands",
      async () => {
        const owner = randomUUID();
        await send("LOCK.ACQUIRE", "bare", owner, "PX", "30000");
        await send("LOCK.RELEASE", "bare", owner);
      },
    ],
    ["redislock", async () => (await locks.acquire("ours")).release()],
    ["redislock, using", () => locks.using("ours", () => undefined)],
  ];
  if (client.call) {
    const redlock = new Redlock([client], { retryCount: 0 });
    contestants.push(["node-redlock", async () => (await redlock.lock("theirs", 30_000)).unlock()]);
  }
  for (const { name, micros, ratio } of await sideBySide(contestants)) {
    row([driver, name, `${micros.toFixed(0)} us`, ratio.toFixed(2)]);
  }
}

async function losses(client, locks) {
  const times = [];
  for (let number = 0; number < 100; number++) {
    const hold = await locks.acquire("lost");
    await new Promise((resolve) => setTimeout(resolve, 80));
    const told = new Promise((resolve) => hold.signal.addEventListener("abort", resolve));
    const start = performance.now();
    client.del("lost").catch(() => undefined);
    await told;
    times.push(performance.now() - start);
    await hold.release();
  }
  const longest = Math.max(...times);
  return `from DEL to the signal: median ${median(times).toFixed(2)} ms, longest ${longest.toFixed(2)} ms`;
}

async function tasks(locks) {
  const holder = await locks.acquire("crowd");
  const all = Array.from({ length: TASKS }, () => locks.using("crowd", () => undefined));
  await new Promise((resolve) => setTimeout(resolve, 1500));
  const idle = process.cpuUsage();
  await new Promise((resolve) => setTimeout(resolve, 3000));
  const waiting = process.cpuUsage(idle);
  const start = performance.now();
  const busy = process.cpuUsage();
  await holder.release();
  await Promise.all(all);
  const took = performance.now() - start;
  const used = process.cpuUsage(busy);
  const share = ((waiting.user + waiting.system) / 3_000_000) * 100;
  const cpu = (used.user + used.system) / 1000;
  const served = `served in ${took.toFixed(0)} ms, ${cpu.toFixed(0)} ms of CPU`;
  return `${TASKS} tasks: waiting costs ${share.toFixed(1)} % of a core; ${served}`;
}

row(["driver", "acquire and release", "median", "of the bare commands"]);
row(["---", "---", "---", "---"]);
const notes = [];
for (const driver of ["ioredis", "node-redis"]) {
  const { client, close } = await connect(driver, "single", [address]);
  const locks = new Locks(client);
  await pairs(driver, client, locks);
  notes.push(`${driver}: ${await losses(client, locks)}`, `${driver}: ${await tasks(locks)}`);
  await locks.close();
  await close();
}
console.log(`\n${notes.join("\n")}`);
