// Twenty jobs share a licence for three: a semaphore admits three at a time, in order of arrival.

import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { Locks } from "redislock";

const redis = new Redis("redis://127.0.0.1:6379");
const locks = new Locks(redis);
const licence = locks.semaphore("licence", 3);
let now = 0;
let most = 0;

// The example writes to this server, and removes its keys. It refuses a server without the module, or with keys.
await redis.call("LOCK.INFO", "example");
if ((await redis.dbsize()) > 0 && process.env.REDISLOCK_EXAMPLES !== "anywhere") {
  throw new Error("127.0.0.1:6379 has keys already: use an empty server, or set REDISLOCK_EXAMPLES=anywhere");
}

async function job(): Promise<void> {
  await licence.run({ wait: 60_000 }, async () => {
    now += 1;
    most = Math.max(most, now);
    await pause(20);
    now -= 1;
  });
}

await Promise.all(Array.from({ length: 20 }, job));
console.log(`${most} at once`); // prints: 3 at once

await locks.close();
await redis.quit();
