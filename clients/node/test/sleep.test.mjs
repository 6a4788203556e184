// A machine that sleeps while a lock is held. It only looks so: the clocks that continue meanwhile are set forward.

import assert from "node:assert/strict";
import os from "node:os";
import { test } from "node:test";

import { LockLostError } from "redislock";

import { eventually, locksOn, startServer } from "./servers.mjs";

const isLinux = process.platform === "linux";

test("a hold whose lease ended while the machine slept is lost at once", { skip: !isLinux }, async (t) => {
  const server = await startServer(t);
  const told = [];
  const locks = await locksOn(t, server, "ioredis", { hooks: { lost: ({ hold }) => told.push(hold.name) } });
  const holds = [await locks.acquire("a"), await locks.acquire("b"), await locks.acquire("c", { lease: 3_600_000 })];
  const { uptime } = os;
  const wall = Date.now;
  t.after(() => Object.assign(os, { uptime }) && Object.assign(Date, { now: wall }));
  os.uptime = () => uptime() + 60;
  Date.now = () => wall() + 60_000;
  const isLate = (error) => error instanceof LockLostError && error.reason === "deadline";
  assert.equal(holds[0].remaining, 0);
  assert.throws(() => holds[0].check(), isLate);
  await eventually(() => told.length === 2, "the other one is told", 2500);
  assert.throws(() => holds[1].check(), isLate);
  holds[2].check();
  const next = await locks.acquire("d");
  next.check();
});
