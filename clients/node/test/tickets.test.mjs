// Holds that one process hands on to another one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { ConnectionFailedError, LockLostError, LocksClosedError } from "redislock";
import { Redlock } from "redislock/redlock";

import { connect, DRIVERS } from "./clients.mjs";
import { atEnd, eventually, locksOn, startProxy, startServer } from "./servers.mjs";

const leftOn = async (locks, name) => (await locks.info(name)).holders[0].leftMs;
const isDetached = (error) => error instanceof LockLostError && error.reason === "detached";

for (const driver of DRIVERS.slice(0, 2)) {
  test(`a hold goes on where its ticket is adopted: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver, { lease: 60_000 });
    const others = await locksOn(t, server, driver, { lease: 1000 });
    let ticket;
    const hold = await locks.many(["a", "b"]).run(async (held) => {
      ticket = await held.detach(20_000);
      assert.throws(() => held.check(), isDetached);
      assert.equal(held.remaining, 0);
      assert.equal(held.loss, undefined, "it is no loss");
      await assert.rejects(held.detach(), isDetached);
      await assert.rejects(held.extend(1000), isDetached);
      return held;
    });
    assert.equal(await hold.release(), false);
    const { token, owner } = hold;
    assert.deepEqual(JSON.parse(ticket), { names: ["a", "b"], kind: "exclusive", limit: null, owner, token });
    await locks.close();
    assert.ok((await leftOn(others, "b")) <= 20_000, "the lease that was asked for");
    const adopted = await others.adopt(ticket);
    assert.deepEqual([adopted.token, adopted.owner, adopted.names], [token, owner, ["a", "b"]]);
    await pause(2500);
    adopted.check();
    assert.equal(await adopted.release(), true);
    assert.deepEqual([await server.isFree("a"), await server.isFree("b")], [true, true]);
    await assert.rejects(others.adopt(ticket), (error) => error instanceof LockLostError && error.reason === "renewal");
  });

  test(`a ticket is the same in each language, and has names without their prefix: ${driver}`, async (t) => {
    const server = await startServer(t);
    const locks = await locksOn(t, server, driver, { prefix: "lock:" });
    const token = await server.admin.call("LOCK.ACQUIRE", "lock:s", "host:7:x", "PX", "60000", "LIMIT", "2");
    // As Python writes it.
    const ticket = `{"names": ["s"], "kind": "semaphore", "limit": 2, "owner": "host:7:x", "token": ${token}}`;
    const adopted = await locks.adopt(ticket, 30_000);
    assert.deepEqual([adopted.name, adopted.token], ["s", Number(token)]);
    assert.ok(adopted.remaining > 20_000 && adopted.remaining < 30_000);
    assert.deepEqual(JSON.parse(await adopted.detach()), JSON.parse(ticket));
    await (await locks.adopt(ticket)).release();
    for (const [lock, kind] of [[locks.write("k"), "exclusive"], [locks.read("k"), "read"]]) {
      const hold = await lock.acquire();
      const written = await hold.detach();
      assert.equal(JSON.parse(written).kind, kind);
      assert.equal(await (await locks.adopt(written)).release(), true);
    }
    assert.equal(await server.isFree("lock:k"), true);
  });

  test(`nothing is handed on while a renewal may come late: ${driver}`, async (t) => {
    const server = await startServer(t);
    const proxy = await startProxy(t, server);
    const locks = await locksOn(t, proxy, driver, { lease: 60_000 });
    const hold = await locks.acquire("k");
    proxy.see = (text) => (text.includes("LOCK.RENEW") ? "freeze" : undefined);
    await assert.rejects(hold.detach(50_000), (error) => {
      assert.ok(error instanceof ConnectionFailedError && /may still come late/.test(error.message), error.message);
      return true;
    });
    proxy.see = () => undefined;
    hold.check();
    await hold.extend(40_000);
    await assert.rejects(hold.detach(), /may still come late/);
    assert.equal(await server.isFree("k"), false);
    assert.equal(await hold.release(), true);
  });
}

test("a hold that is not handed on is renewed as before", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { lease: 2000 });
  const hold = await locks.acquire("k");
  await server.admin.call("ACL", "SETUSER", "default", "-lock.renew");
  await assert.rejects(hold.detach(), /NOPERM/);
  await server.admin.call("ACL", "SETUSER", "default", "+lock.renew");
  await pause(2500); // longer than its lease
  hold.check();
  await hold.release();
  const lost = await locks.acquire("k");
  await server.admin.call("DEL", "k");
  await assert.rejects(lost.detach(), LockLostError);
});

test("a wrong ticket is refused, and a hold of a leader or of independent servers is not handed on", async (t) => {
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis");
  const good = { names: ["k"], kind: "exclusive", limit: null, owner: "o", token: 4711 };
  for (const wrong of [{ token: "7" }, { names: [] }, { names: [""] }, { names: "k" }, { names: ["\ud800"] }, { kind: "x" },
    { limit: 2 }, { kind: "semaphore" }, { owner: "*" }, { owner: undefined }]) {
    const ticket = JSON.stringify({ ...good, ...wrong });
    await assert.rejects(locks.adopt(ticket), { name: "TypeError", message: /^ticket must be what detach\(\) has given/ }, ticket);
  }
  for (const wrong of ["", "[]", "null", "{}", 7]) await assert.rejects(locks.adopt(wrong), TypeError);
  await assert.rejects(locks.adopt(JSON.stringify(good)), LockLostError);
  await assert.rejects(locks.adopt(JSON.stringify(good), 7), /lease must be/);
  const leader = locks.leader("job", { onElected: () => undefined });
  await eventually(() => leader.hold, "it leads");
  await assert.rejects(leader.hold.detach(), /^TypeError: a hold of a leader or of independent servers cannot be detached/);
  leader.hold.check();
  await leader.resign();
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const clients = await Promise.all(servers.map(({ address }) => connect("ioredis", "single", [address])));
  const group = new Redlock(clients.map(({ client }) => client));
  atEnd(t, async () => {
    await group.close();
    await Promise.all(clients.map(({ close }) => close()));
  });
  const hold = await group.acquire("k", { wait: 30_000 });
  await assert.rejects(hold.detach(), /^TypeError: a hold of a leader or of independent servers cannot be detached/);
  await hold.release();
  await locks.close();
  await assert.rejects(locks.adopt(JSON.stringify(good)), LocksClosedError);
});
