// What a proxy or the server does to requests at the wrong moment.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LockLost } from "redislock";

import { DRIVERS } from "./clients.mjs";
import { eventually, locksOn, startProxy, startServer } from "./servers.mjs";

for (const driver of DRIVERS.slice(0, 2)) {
  test(`a grant whose reply took as long as the lease is handed to nobody: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const told = [];
    const hooks = { granted: () => told.push("granted"), lost: ({ error }) => told.push(error.reason) };
    const locks = await locksOn(t, proxy, driver, { lease: 1000, hooks });
    proxy.replyDelay = 1500;
    const isLate = (error) => error instanceof LockLost && error.reason === "deadline";
    await assert.rejects(locks.acquire("k", { wait: 0 }), isLate);
    const body = locks.using("l", { wait: 0 }, () => assert.fail("the body has begun"));
    await assert.rejects(body, isLate);
    assert.deepEqual(told, ["granted", "deadline", "granted", "deadline"]);
    proxy.replyDelay = 0;
    for (const name of "kl") await eventually(() => server.isFree(name), "it is given up");
  });
}
