// The parts that need no server.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

const require = createRequire(import.meta.url);
const { allowance, Clock, deadlineOf, now, pauseBefore, renewalOf } = require("../dist/clock.js");
const { acquireCommand, freshOwner, hostLabel, tokenOf } = require("../dist/commands.js");
const errors = require("../dist/errors.js");
const { Lines } = require("../dist/lines.js");
const { LooseEnds, Taken } = require("../dist/loose.js");
const { overNodeRedis } = require("../dist/node-redis.js");
const { Decoder, encode, Push, ReplyError } = require("../dist/resp.js");
const { Scheduler } = require("../dist/scheduler.js");
const { slotOf } = require("../dist/slot.js");

test("a deadline is a lease after the request was sent, less 1 % and 2 ms", () => {
  assert.equal(allowance(30_000), 302);
  assert.equal(deadlineOf(1000, 30_000), 30_698);
  const renewals = Array.from({ length: 1000 }, () => renewalOf(1000, 30_000));
  assert.ok(Math.min(...renewals) >= 10_000 && Math.max(...renewals) <= 11_000, "a third, or up to a tenth less");
  assert.ok(Math.max(...renewals) - Math.min(...renewals) > 500, "spread at random");
  assert.deepEqual([0, 1, 2, 9].map(pauseBefore), [50, 100, 200, 1000]);
});

/** Clocks that are set by hand. The boot clock advances in ticks of `tick` milliseconds. */
function handClocks(tick = 10) {
  const times = { awake: 5, slept: 0, set: 0, asked: 0 };
  const clock = new Clock({
    monotonic: () => times.awake,
    wall: () => 1e12 + times.awake + times.slept + times.set,
    boot: () => {
      times.asked++;
      return Math.floor((98_765_432 + times.awake + times.slept) / tick) * tick;
    },
  });
  return { times, clock };
}

test("the clock goes on while the machine sleeps, and is right at once after that", () => {
  for (const tick of [10, 1000]) {
    const { times, clock } = handClocks(tick);
    assert.equal(clock.now(), 5);
    for (const slept of [60_000, 3_600_000]) {
      const before = clock.now();
      times.slept += slept;
      times.awake += 1;
      const after = clock.now() - before;
      assert.ok(after > slept && after <= slept + 3 + 2 * tick, `${slept} ms are ${after}`);
    }
  }
});

test("a sleep is seen soon, though somebody sets the wall clock back meanwhile", () => {
  const { times, clock } = handClocks();
  const before = clock.now();
  times.slept += 60_000;
  times.set -= 60_000;
  times.awake += 101;
  assert.ok(clock.now() - before > 60_000);
});

test("a wall clock that is set moves no deadline, nor do the ticks of the boot clock", () => {
  for (const tick of [10, 1000]) {
    const { times, clock } = handClocks(tick);
    for (const set of [3_600_000, -7_200_000, 15, ...Array(300).fill(0)]) {
      times.set += set;
      times.awake += 37;
      assert.equal(clock.now(), times.awake);
    }
  }
});

test("the boot clock is asked seldom", () => {
  const { times, clock } = handClocks();
  for (let number = 0; number < 1000; number++) {
    times.awake += 1;
    clock.now();
  }
  assert.ok(times.asked <= 12, `it was asked ${times.asked} times`);
});

test("a request names what is wanted, and how to wait for it", () => {
  const request = { keys: ["k"], owner: "me", kind: "exclusive", lease: 1000 };
  assert.deepEqual(acquireCommand(request), ["LOCK.ACQUIRE", "k", "me", "PX", "1000"]);
  assert.deepEqual(acquireCommand({ ...request, kind: "read" }, { queue: 5000 }).slice(5), ["QUEUE", "5000", "SHARED"]);
  const permit = acquireCommand({ ...request, kind: "semaphore", limit: 3 }, { queue: 1 });
  assert.deepEqual(permit.slice(5), ["QUEUE", "1", "LIMIT", "3"]);
  const many = acquireCommand({ ...request, keys: ["a", "b"] }, { block: 7 });
  assert.deepEqual(many, ["LOCK.MACQUIRE", "2", "a", "b", "me", "PX", "1000", "BLOCK", "7"]);
});

test("an owner is fresh, and tells host, process and a UUID", () => {
  const [one, other] = [freshOwner(hostLabel()), freshOwner(hostLabel())];
  assert.notEqual(one, other);
  assert.match(one, new RegExp(`^[^:]+:${process.pid}:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`));
});

test("a token is a number, also where the driver gives text", () => {
  assert.equal(tokenOf("1795243208114201"), 1795243208114201);
  assert.equal(tokenOf(null), undefined);
  assert.throws(() => tokenOf("OK"), /not a token/);
});

test("each error code is what the table of error codes says", () => {
  const meaning = (text) => errors.meaningOf(new Error(text));
  // docs/reference/errors.md, which `check` puts here.
  const table = readFileSync(new URL("../errors.md", import.meta.url), "utf8");
  const rows = table.split("\n").filter((row) => row.startsWith("| `"));
  const cells = rows.map((row) => row.slice(2).replaceAll("`", "").split(" | "));
  const kinds = cells.map(([code, text, , , , kind]) => [`${code} ${text}`, kind === "-" ? "ServerRefusedError" : kind]);
  assert.ok(kinds.length > 10);
  const missing = "ERR unknown command 'LOCK.ACQUIRE'";
  const unknown = "NEWCODE that no client knows";
  for (const [text, kind] of [...kinds, [missing, "ModuleMissingError"], [unknown, "ServerRefusedError"]]) {
    const found = meaning(text);
    assert.equal(found.kind ?? found, kind, text);
    assert.ok(kind === "again" || found instanceof errors[kind], text);
  }
  assert.equal(meaning("QUARANTINE 4711 milliseconds are left").leftMs, 4711);
  assert.match(meaning(missing).message, /--loadmodule/);
  assert.equal(meaning("WRONGTYPE Operation against a key").code, "WRONGTYPE");
  assert.deepEqual([meaning(unknown).code, meaning(unknown).message], ["NEWCODE", unknown]);
  for (const text of ["ASK 1 a:1", "LOADING Redis is loading", "Connection is closed."]) {
    assert.equal(meaning(text), "again", text);
  }
});

test("a deadlock tells who waits where for whom", () => {
  const text =
    "DEADLOCK this wait would never end: 'ben' waits for 'left' and there for 'ann', 'ann' waits for 'right' and " +
    "there for 'ben'";
  assert.deepEqual(errors.meaningOf(new Error(text)).cycle, [
    { owner: "ben", name: "left", holder: "ann" },
    { owner: "ann", name: "right", holder: "ben" },
  ]);
});

test("a setting of the server that allows less is read from its refusal", () => {
  const refusal = new Error("ERR QUEUE must be an integer from 1 to 400 (milliseconds)");
  assert.equal(errors.highestFor("QUEUE", refusal), 400);
  assert.equal(errors.highestFor("BLOCK", refusal), undefined);
});

test("slots are those of the cluster specification", () => {
  assert.equal(slotOf("123456789"), 0x31c3);
  assert.equal(slotOf("{user1000}.following"), slotOf("{user1000}.followers"));
  assert.notEqual(slotOf("foo{}{bar}"), slotOf("bar"));
  assert.equal(slotOf("foo{{bar}}zap"), slotOf("{bar"));
  assert.equal(slotOf("foo{bar}{zap}"), slotOf("bar"));
});

test("the timeout of node-redis ends a command only while the client connects", async () => {
  const sent = [];
  const client = { isOpen: true, isReady: false, sendCommand: async (_words, options) => sent.push(options) };
  const driver = overNodeRedis(client, {});
  await driver.send("k", ["PING"]);
  client.isReady = true;
  await driver.send("k", ["PING"]);
  assert.deepEqual(sent, [undefined, { timeout: undefined }]);
});

test("replies are read whole, wherever the bytes are cut", () => {
  const bytes = Buffer.from(
    "+OK\r\n:42\r\n$5\r\nh\r\nlo\r\n_\r\n$-1\r\n*2\r\n:1\r\n*-1\r\n%1\r\n+a\r\n#t\r\n-ERR no\r\n" +
      ">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n|1\r\n+x\r\n:1\r\n:7\r\n=6\r\ntxt:ab\r\n!4\r\nFOO \r\n,1.5\r\n",
  );
  const whole = new Decoder().feed(bytes);
  assert.deepEqual(whole.slice(0, 7), ["OK", 42, "h\r\nlo", null, null, [1, null], ["a", true]]);
  assert.ok(whole[7] instanceof ReplyError && whole[7].message === "ERR no");
  assert.ok(whole[8] instanceof Push);
  assert.deepEqual(whole[8].items, ["invalidate", ["k"]]);
  assert.deepEqual([whole[9], whole[10], whole[11].message, whole[12]], [7, "ab", "FOO ", 1.5]);
  const decoder = new Decoder();
  const bytewise = [...bytes].flatMap((byte) => decoder.feed(Buffer.from([byte])));
  assert.deepEqual(bytewise, whole);
});

test("what is no reply, or too long or too deep, is refused", () => {
  assert.throws(() => new Decoder().feed(Buffer.from("HTTP/1.1 400\r\n")), /does not speak RESP/);
  assert.throws(() => new Decoder().feed(Buffer.from("$99999999999\r\n")), /too long/);
  assert.throws(() => new Decoder().feed(Buffer.from("*1\r\n".repeat(20))), /too deeply/);
  assert.equal(encode(["A", "é"]), "*2\r\n$1\r\nA\r\n$2\r\né\r\n");
});

test("the scheduler runs what is due, in order, and forgets what is cancelled", async () => {
  const scheduler = new Scheduler();
  // The scheduler keeps no process alive.
  const alive = setTimeout(() => undefined, 30_000);
  const ran = [];
  const start = now();
  const entries = Array.from({ length: 200 }, (_, number) => {
    const after = (number * 37) % 100;
    return { after, entry: scheduler.at(start + after, () => ran.push(after)) };
  });
  for (const { entry } of entries.filter(({ after }) => after % 3 === 0)) scheduler.cancel(entry);
  await new Promise((resolve) => {
    scheduler.at(start + 120, resolve);
  });
  clearTimeout(alive);
  const expected = entries.map(({ after }) => after).filter((after) => after % 3 !== 0);
  assert.deepEqual(
    ran,
    expected.sort((one, other) => one - other),
  );
  assert.equal(scheduler.size, 0);
});

/** Servers that say to all that they are primaries: `endpoints`, and the connections that are `open` to any of them. */
async function primaries(t, count) {
  const seen = { endpoints: [], open: new Set() };
  for (let number = 0; number < count; number++) {
    const listener = createServer((socket) => {
      seen.open.add(socket);
      socket.on("data", () => socket.write("%1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"));
      socket.on("error", () => undefined).on("close", () => seen.open.delete(socket));
    }).listen(0, "127.0.0.1");
    await once(listener, "listening");
    t.after(() => listener.close());
    seen.endpoints.push({ host: "127.0.0.1", port: listener.address().port });
  }
  return seen;
}

/** Returns whether a connection is available at once. */
async function hasRoom(lines) {
  const { ready, stop } = lines.room();
  const isReady = await Promise.race([ready.then(() => true), pause(0, false)]);
  stop();
  return isReady;
}

test("no more connections wait than may, to several servers too", async (t) => {
  const seen = await primaries(t, 2);
  const lines = new Lines({ endpoint: async (key) => seen.endpoints[key] }, 2);
  t.after(() => lines.close());
  for (const key of [0, 1, 0]) {
    await Promise.all([lines.room().ready, lines.room().ready]);
    const taken = await Promise.all([lines.take(key, 10_000), lines.take(key, 10_000)]);
    assert.equal(await hasRoom(lines), false);
    for (const end = now() + 2000; seen.open.size !== 2; await pause(5)) assert.ok(now() < end, `${seen.open.size} are open`);
    for (const line of taken) lines.give(line);
    for (const end = now() + 2000; seen.open.size !== 0; await pause(5)) assert.ok(now() < end, `${seen.open.size} are open`);
  }
});

test("room that was waited for is kept for the one that waited", async (t) => {
  const seen = await primaries(t, 1);
  const lines = new Lines({ endpoint: async () => seen.endpoints[0] }, 1);
  t.after(() => lines.close());
  await lines.room().ready;
  const first = await lines.take("a", 10_000);
  const [kept, given, gone, urgent] = [lines.room(), lines.room(), lines.room(), lines.room()];
  gone.stop();
  urgent.hurry();
  await urgent.ready;
  urgent.stop();
  lines.give(first);
  await kept.ready;
  assert.equal(await hasRoom(lines), false);
  kept.stop();
  await given.ready;
  lines.give(await lines.take("a", 10_000));
  assert.equal(await hasRoom(lines), true);
  await lines.room().ready;
  assert.equal(await hasRoom(lines), false);
});

test("an owner that asks for hundreds of names, while as many releases are unanswered, is told at once", () => {
  const loose = new LooseEnds();
  const ends = Array.from({ length: 600 }, () => new Taken());
  const settles = ends.map((taken, index) => loose.add("me", taken, () => index === 0));
  const began = performance.now();
  for (let number = 0; number < 600; number++) assert.equal(loose.take("me", [`k${number}`]), true);
  const took = performance.now() - began;
  assert.ok(took < 3000, `${took} ms, in which nothing else runs`);
  assert.ok(ends.every((taken) => taken.has("k0") && taken.has("k599") && !taken.has("k600")));
  settles[0]();
  settles[0]();
  assert.equal(loose.take("me", ["k"]), false);
  assert.equal(ends[0].has("k"), false);
  for (const settle of settles) settle();
  assert.equal(loose.take("me", ["k"]), undefined);
  assert.equal(loose.take("you", ["k"]), undefined);
});
