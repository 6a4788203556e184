// Measures what a hand-over costs: `locks.acquire`, which waits by QUEUE and a push, against BLOCK over the same driver.
// Usage: node handover.mjs HOST:PORT [ROUNDS].
//
// Each contender is a process of its own, which takes the one lock and releases it at once, again and again. The two ways
// take turns in each round, so that other load on the machine affects both. Prints medians as lines of JSON.

import { fork } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

import { Redis } from "ioredis";
import { Locks } from "redislock";

const SECONDS = 2;
const KEY = "handed-over";
const [address = "127.0.0.1:6379", rounds = "5", way] = process.argv.slice(2);
const [host, port] = address.split(":");
const client = new Redis({ host, port: Number(port) });

/** Takes the lock for as long as the measurement lasts, and reports how often that was. */
async function contend() {
  const locks = new Locks(client);
  const ways = {
    async BLOCK() {
      const owner = randomUUID();
      const token = await client.call("LOCK.ACQUIRE", KEY, owner, "PX", "30000", "BLOCK", "30000");
      await client.call("LOCK.RELEASE", KEY, owner, "TOKEN", String(token));
    },
    async "locks.acquire"() {
      await (await locks.acquire(KEY)).release();
    },
  };
  await ways[way]();
  process.send("ready");
  await once(process, "message");
  let grants = 0;
  for (const end = performance.now() + SECONDS * 1000; performance.now() < end; grants++) await ways[way]();
  await locks.close();
  client.disconnect();
  process.send(grants);
  process.disconnect();
}

const commandsSoFar = async () => Number(/total_commands_processed:(\d+)/.exec(await client.info("stats"))[1]);

/** Lets the contenders compete. Returns their grants in a second, and the commands for each grant. */
async function measure(name, contenders) {
  const program = fileURLToPath(import.meta.url);
  const all = Array.from({ length: contenders }, () => fork(program, [address, rounds, name]));
  await Promise.all(all.map((each) => once(each, "message")));
  const before = await commandsSoFar();
  const counts = all.map((each) => once(each, "message"));
  for (const each of all) each.send("go");
  const grants = (await Promise.all(counts)).reduce((sum, [count]) => sum + count, 0);
  return { grants: grants / SECONDS, commands: ((await commandsSoFar()) - before) / grants };
}

const median = (values) => values.sort((one, other) => one - other)[Math.floor(values.length / 2)];

async function main() {
  for (const contenders of [2, 10]) {
    const found = { BLOCK: [], "locks.acquire": [] };
    for (let round = 0; round < Number(rounds); round++) {
      for (const name of Object.keys(found)) found[name].push(await measure(name, contenders));
    }
    for (const [name, values] of Object.entries(found)) {
      const figures = ["grants", "commands"].map((figure) => median(values.map((each) => each[figure])));
      const [each, commands] = figures;
      console.log(JSON.stringify({ contenders, way: name, "grants a second": Math.round(each), "commands for each": commands.toFixed(1) }));
    }
  }
  client.disconnect();
}

await (way === undefined ? main() : contend());
