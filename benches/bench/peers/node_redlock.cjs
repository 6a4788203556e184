// node-redlock: contenders for one lock, each with a Redlock of its own over a connection of its own.
//
//     node node_redlock.cjs PORT        in the folder that has its node_modules
//
// It speaks the lines of benches/contend/main.rs. The settings are the defaults: a script that takes the lock, tried
// again after 200 ms plus up to 100 ms; but without an end, where the default gives up after 10 times.

"use strict";

const readline = require("node:readline");

const from = (name) => require(require.resolve(name, { paths: [process.cwd()] }));
const { Redis } = from("ioredis");
const Redlock = from("redlock").default;

const LEASE_MS = 60_000;
const now = () => process.hrtime.bigint();
const port = Number(process.argv[2]);
const contenders = [];

async function open(count) {
  for (let who = contenders.length; who < count; who++) {
    const client = new Redis({ port });
    await client.ping();
    contenders.push(new Redlock([client], { retryCount: -1 }));
  }
  return {};
}

async function turns(who, holdMs, opening, end, seen) {
  for (;;) {
    const asked = now();
    if (asked >= end) return;
    const lock = await contenders[who].acquire(["lock:node-redlock"], LEASE_MS);
    const granted = now();
    const keepMs = Math.max(holdMs, Number(opening - granted) / 1e6);
    if (keepMs > 0) await new Promise((resolve) => setTimeout(resolve, keepMs));
    const freed = now();
    await lock.release();
    seen.push([who, Number(asked), Number(granted), Number(freed)]);
  }
}

async function run(count, holdUs, opening, end) {
  const seen = [];
  await Promise.all(Array.from({ length: count }, (_, who) => turns(who, holdUs / 1000, opening, end, seen)));
  return { turns: seen };
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, count, ...rest] = line.split(" ");
    const [holdUs, opening, end] = rest.map(BigInt);
    const answer =
      verb === "open" ? await open(Number(count)) : await run(Number(count), Number(holdUs), opening, end);
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
  process.exit(0);
}

main();
