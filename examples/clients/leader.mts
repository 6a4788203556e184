// Of all instances of a program, one leads. When it resigns, dies or is cut off, the next candidate leads.

import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { type Leader, Locks } from "redislock";

const redis = new Redis("redis://127.0.0.1:6379");
const locks = new Locks(redis);
const tokens: number[] = [];

// The example writes to this server, and removes its keys. It refuses a server without the module, or with keys.
await redis.call("LOCK.INFO", "example");
if ((await redis.dbsize()) > 0 && process.env.REDISLOCK_EXAMPLES !== "anywhere") {
  throw new Error("127.0.0.1:6379 has keys already: use an empty server, or set REDISLOCK_EXAMPLES=anywhere");
}

/** One instance stands for election. */
function stand(instance: string): Leader {
  return locks.leader("scheduler", {
    onElected: (hold) => {
      tokens.push(hold.token);
      console.log(`${instance} leads`);
    },
  });
}

const first = stand("the first");
while (!first.isLeading) await pause(10); // prints: the first leads
const second = stand("the second");
await first.resign();
while (!second.isLeading) await pause(10); // prints: the second leads
await second.resign();
console.log(Number(tokens[1]) > Number(tokens[0])); // prints: true

await locks.close();
await redis.quit();
