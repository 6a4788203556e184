// Workers take payments from a queue, and never work for the same customer at the same time. Each payment is a read,
// some work and a write: without the lock, some would be lost.

import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { Locks } from "redislock";

const redis = new Redis("redis://127.0.0.1:6379");
const locks = new Locks(redis);

// The example writes to this server, and removes its keys. It refuses a server without the module, or with keys.
await redis.call("LOCK.INFO", "example");
if ((await redis.dbsize()) > 0 && process.env.REDISLOCK_EXAMPLES !== "anywhere") {
  throw new Error("127.0.0.1:6379 has keys already: use an empty server, or set REDISLOCK_EXAMPLES=anywhere");
}

/** Works until the queue is empty. */
async function work(): Promise<void> {
  for (;;) {
    const customer = await redis.rpop("payments");
    if (customer === null) return;
    await locks.run(`customer:${customer}`, { lease: 10_000, wait: 60_000 }, async (hold) => {
      const before = Number(await redis.get(`balance:${customer}`));
      await pause(5, undefined, { signal: hold.signal }); // ends here if the lock is lost
      await redis.set(`balance:${customer}`, before + 1);
    });
  }
}

await redis.lpush("payments", ...Array.from({ length: 40 }, (_, number) => (number % 2 === 0 ? "ann" : "ben")));
await Promise.all([work(), work(), work(), work()]);
console.log(await redis.mget("balance:ann", "balance:ben")); // prints: [ '20', '20' ]

await redis.del("balance:ann", "balance:ben");
await locks.close();
await redis.quit();
