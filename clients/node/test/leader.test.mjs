// Leaders whose callbacks return promises.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { LocksClosedError } from "redislock";

import { eventually, locksOn, startServer } from "./servers.mjs";

test("a leader whose work rejects gives the lock up, tells of it and stands again", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const errors = [];
  const tokens = [];
  // An error that comes from other locks of the program must not end the leader without a word.
  const failures = [new RangeError("the work's"), new LocksClosedError()];
  const leader = locks.leader("job", {
    onElected: async ({ token }) => {
      tokens.push(token);
      await pause(50);
      if (tokens.length <= failures.length) throw failures[tokens.length - 1];
    },
    onError: (error) => {
      errors.push(error);
      assert.equal(leader.isLeading, false);
    },
  });
  await eventually(() => tokens.length === 3, "it is elected again", 10_000);
  await pause(300);
  assert.deepEqual(errors, failures);
  assert.ok(leader.isLeading, "work that has ended well leaves it leading");
  assert.ok(tokens[0] < tokens[1] && tokens[1] < tokens[2], "each time anew");
  await leader.resign();
  assert.ok(await server.isFree("job"));
});

test("a leader is deposed, though the loss ends its work in an error", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const told = [];
  const own = new RangeError("the work's");
  const leader = locks.leader("job", {
    onElected: async ({ signal }) => {
      told.push("elected");
      const ended = pause(10_000, undefined, { signal, ref: false });
      // The first work is ended by the loss; the second one fails when it cleans up after it.
      await (told.length === 1 ? ended : ended.catch(() => Promise.reject(own)));
    },
    onDeposed: async (reason) => {
      told.push(reason);
      if (told.length === 2) throw new TypeError("of the callback");
    },
    onError: (error) => told.push(error.message),
  });
  for (const times of [3, 6]) {
    await eventually(() => leader.isLeading, "it leads");
    await pause(200);
    await server.admin.del("job");
    await eventually(() => told.length >= times, "it is told", 5000);
  }
  await eventually(() => leader.isLeading, "it leads again");
  const [first, second] = [told.slice(0, told.indexOf("elected", 1)), told.slice(told.indexOf("elected", 1), -1)];
  assert.deepEqual(first.sort(), ["elected", "of the callback", "push"]);
  assert.deepEqual(second.sort(), ["elected", "push", "the work's"]);
  await leader.resign();
});

test("a leader whose work blocks beyond the lease, and throws the loss, is deposed and stands again", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const told = [];
  const leader = locks.leader("job", {
    lease: 300,
    onElected: (hold) => {
      told.push("elected");
      while (told.length === 1) hold.check();
    },
    onDeposed: (reason) => told.push(reason),
    onError: (error) => told.push(error.message),
  });
  await eventually(() => told.length >= 3, "it is elected again", 5000);
  assert.deepEqual(told, ["elected", "deadline", "elected"]);
  await leader.resign();
});
