// The recipes of docs/how-to/frameworks-node.md run as they stand, each with its framework.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { atEnd, eventually, locksOn, startServer } from "./servers.mjs";

const page = readFileSync(new URL("../frameworks-node.md", import.meta.url), "utf8");
const recipes = new Map([...page.matchAll(/^<!-- (\S+) -->\n```js\n(.*?)^```$/gms)].map(([, name, text]) => [name, text]));
const LIMIT = { timeout: 110_000 };

/** Writes a recipe where it finds the library, with the address of a server of its own. */
async function placed(t, name) {
  const server = await startServer(t);
  const folder = fileURLToPath(new URL(`../test-build/${name}/`, import.meta.url));
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const text = recipes.get(name).replaceAll("127.0.0.1:6379", server.address).replace("6379", String(server.port));
  writeFileSync(folder + name, text);
  return { server, path: folder + name, others: await locksOn(t, server, "ioredis") };
}

/** Runs a program, and collects its lines. */
function started(t, path) {
  const program = spawn(process.execPath, [path], { stdio: ["ignore", "pipe", "inherit"] });
  const ran = { program, text: "", ended: once(program, "exit") };
  program.stdout.on("data", (chunk) => (ran.text += chunk));
  atEnd(t, () => program.kill("SIGKILL"));
  return ran;
}

test("each recipe is run", () => {
  assert.deepEqual([...recipes.keys()], ["express.mjs", "bullmq.mjs", "threads.mjs", "cluster.mjs"]);
});

test("express", LIMIT, async (t) => {
  const { path, others, server } = await placed(t, "express.mjs");
  const { app, stop } = await import(path);
  const listener = app.listen(0, "127.0.0.1");
  await once(listener, "listening");
  const pay = (options) => globalThis.fetch(`http://127.0.0.1:${listener.address().port}/invoices/42/pay`, { method: "POST", ...options });
  assert.ok((await (await pay()).json()).token > 0);
  const hold = await others.acquire("invoice:42");
  assert.equal((await pay()).status, 423);
  const cancel = new globalThis.AbortController();
  const cancelled = pay({ signal: cancel.signal }).catch((error) => error.name);
  await eventually(async () => (await server.waiters("invoice:42")) === 1, "it waits");
  cancel.abort();
  assert.equal(await cancelled, "AbortError");
  await eventually(async () => (await server.waiters("invoice:42")) === 0, "its wait ends");
  await hold.release();
  listener.closeAllConnections();
  listener.close();
  await stop();
});

test("bullmq", LIMIT, async (t) => {
  const { path, others, server } = await placed(t, "bullmq.mjs");
  const { worker, stop } = await import(path);
  const { Queue, QueueEvents } = await import("bullmq");
  const connection = { host: "127.0.0.1", port: server.port };
  const [queue, events] = [new Queue("imports", { connection }), new QueueEvents("imports", { connection })];
  await Promise.all([worker.waitUntilReady(), events.waitUntilReady()]);
  const hold = await others.acquire("customer:ann");
  const delayed = await queue.add("import", { customer: "ann" });
  const other = await queue.add("import", { customer: "ben" });
  assert.equal(await other.waitUntilFinished(events, 90_000), "imported ben");
  await eventually(async () => (await delayed.getState()) === "delayed", "it waits without a worker");
  await hold.release();
  assert.equal(await delayed.waitUntilFinished(events, 90_000), "imported ann");
  await Promise.all([queue.close(), events.close()]);
  await stop();
});

test("worker threads", LIMIT, async (t) => {
  const { path } = await placed(t, "threads.mjs");
  const ran = started(t, path);
  const [code] = await ran.ended;
  const lines = ran.text.split("\n").filter(Boolean).sort();
  assert.deepEqual([code, lines], [0, [1, 2, 3].map((number) => `thread ${number} held it`)]);
});

test("cluster", LIMIT, async (t) => {
  const { path, others } = await placed(t, "cluster.mjs");
  const ran = started(t, path);
  const leads = () => [...ran.text.matchAll(/worker (\d) leads/g)].length;
  await eventually(() => leads() === 1, "a worker leads");
  const { holders } = await others.info("scheduler");
  const pid = Number(holders[0].owner.split(":")[1]);
  process.kill(pid, "SIGTERM");
  await eventually(() => leads() === 2, "another worker leads");
  const second = Number((await others.info("scheduler")).holders[0].owner.split(":")[1]);
  assert.notEqual(second, pid);
  process.kill(second, "SIGTERM");
  await ran.ended;
  assert.equal(await others.info("scheduler"), null);
});
