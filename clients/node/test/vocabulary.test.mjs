// The words of the library are those of the table that all client libraries have: docs/reference/client-words.md.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as library from "redislock";
import * as opentelemetry from "redislock/opentelemetry";
import * as redlock from "redislock/redlock";
import * as testing from "redislock/testing";

import { DRIVERS } from "./clients.mjs";
import { locksOn, startServer } from "./servers.mjs";

/** Each word of the column, and whether the library is said to lack it. */
function words() {
  const found = [];
  let column;
  for (const line of readFileSync(new URL("../client-words.md", import.meta.url), "utf8").split("\n")) {
    const cells = line.split(" | ");
    if (line.startsWith("| concept |")) {
      column = cells.indexOf("Node");
    } else if (line.startsWith("| ") && column !== undefined) {
      const parts = cells[column].split("`");
      assert.ok(parts.length > 1 || cells[column] === "-", line);
      for (let at = 1; at < parts.length; at += 2) found.push([parts[at], parts[at - 1].trim() === "lacks"]);
    }
  }
  assert.ok(found.length > 50, `${found.length} words`);
  return found;
}

/** The options that a function takes, as it names them where it is given another one. */
async function optionsOf(text, call) {
  const error = await Promise.resolve().then(call).then(() => assert.fail(text), (reason) => reason);
  const [, named] = /there are (.*)$/.exec(error.message);
  return named.split(", ").map((option) => `${text}({ ${option} })`);
}

test("the words are those of the table of all client libraries", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, DRIVERS[0]);
  const hold = await locks.acquire("k");
  const leader = locks.leader("l", { onElected: () => undefined });
  const others = { bogus: 1 };
  const found = new Set(Object.keys(library));
  for (const options of await Promise.all([
    optionsOf("new Locks", () => new library.Locks({ call() {}, status: "ready" }, others)),
    optionsOf("acquire", () => locks.acquire("k", others)),
    optionsOf("leader", () => locks.leader("l", others)),
  ])) {
    for (const option of options) found.add(option);
  }
  for (const thing of [locks, locks.lock("k"), hold, leader]) {
    const { name } = thing.constructor;
    for (const member of Object.getOwnPropertyNames(thing)) found.add(`${name}.${member}`);
    for (let kind = thing.constructor; kind.prototype !== undefined; kind = Object.getPrototypeOf(kind)) {
      for (const member of Object.getOwnPropertyNames(kind.prototype)) found.add(`${name}.${member}`);
    }
  }
  for (const [entry, its] of Object.entries({ opentelemetry, redlock, testing })) {
    for (const name of Object.keys(its)) found.add(`${entry}.${name}`);
  }
  for (const member of Object.getOwnPropertyNames(testing.Server.prototype)) found.add(`testing.Server.${member}`);
  await leader.resign();
  await hold.release();
  for (const [word, isLacking] of words()) {
    assert.equal(found.has(word), !isLacking, `${word}, which the table says that it ${isLacking ? "lacks" : "has"}`);
  }
});
