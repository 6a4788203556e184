// Nothing is left of ended locks, over each driver.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DRIVERS } from "./clients.mjs";
import { eventually, locksOn, startServer } from "./servers.mjs";

for (const driver of DRIVERS) {
  test(`ten thousand locks leave no trace: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver);
    const cycle = async (times) => {
      for (let number = 0; number < times; number++) await locks.run(`k${number % 7}`, () => undefined);
    };
    const heap = () => {
      globalThis.gc();
      return process.memoryUsage().heapUsed;
    };
    await cycle(3000);
    const connections = await server.info("total_connections_received");
    const before = heap();
    await cycle(10_000);
    // A trace of 100 bytes for each lock would be a megabyte. A driver may keep its time-outs for some seconds.
    await eventually(() => heap() - before < 1_000_000, "the heap is as small as before");
    assert.equal(await server.info("total_connections_received"), connections);
    assert.equal(await server.info("redislock_locks"), "0");
  });
}
