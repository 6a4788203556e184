// The examples of docs/how-to/migrate.md in Node, before and after: both work, and exclude each other meanwhile.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Redis } from "ioredis";
import { Locks, LockTimeoutError } from "redislock";
import Redlock from "redlock";

import { atEnd, startServer } from "./servers.mjs";

const page = readFileSync(new URL("../migrate.md", import.meta.url), "utf8");
const shown = Object.fromEntries(
  [...page.matchAll(/<!-- (before|after): node -->\n```js\n(.*?)```/gs)].map(([, when, source]) => [when, source]),
);

/** Runs what the page shows. */
async function runs(source, names) {
  const body = Object.getPrototypeOf(async () => undefined).constructor(...Object.keys(names), source);
  await body(...Object.values(names));
}

test("what the page on migrating shows works, and both exclude each other", async (t) => {
  const server = await startServer(t);
  await server.admin.call("CONFIG", "SET", "redislock.legacy-strings", "yes");
  const redis = new Redis({ port: server.port });
  const locks = new Locks(redis);
  atEnd(t, async () => {
    await locks.close();
    redis.disconnect();
  });
  const paid = [];
  const names = { redis, locks, Redlock, pay: (token) => paid.push(token) };
  await runs(shown.before, names);
  await runs(shown.after, names);
  assert.equal(paid.length, 2);
  assert.ok(paid[0] === undefined && paid[1] > 0);
  const inside = async () => {
    const atOnce = shown.after.replace("wait: 5_000", "wait: 0");
    await assert.rejects(runs(atOnce, { ...names, pay: () => assert.fail("both are inside") }), LockTimeoutError);
    paid.push("alone");
  };
  await runs(shown.before, { ...names, pay: inside });
  assert.equal(paid.at(-1), "alone");
});
