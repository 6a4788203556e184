// Metrics and spans, by OpenTelemetry's own SDK.

import assert from "node:assert/strict";
import { test } from "node:test";

import { context } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { LockKindMismatchError, Locks, LockTimeoutError } from "redislock";
import { telemetry } from "redislock/opentelemetry";
import { Server } from "redislock/testing";

import { atEnd, eventually, locksOn, startServer } from "./servers.mjs";

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());

const UNITS = {
  "redislock.client.wait.duration": "s",
  "redislock.client.hold.duration": "s",
  "redislock.client.waiter.count": "{waiter}",
  "redislock.client.hold.count": "{hold}",
  "redislock.client.renewal.failures": "{renewal}",
};

function recorder(t, options) {
  const spans = new InMemorySpanExporter();
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 });
  const meters = new MeterProvider({ readers: [reader] });
  const tracer = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }).getTracer("test");
  atEnd(t, () => meters.shutdown());
  const metrics = async () => {
    const { resourceMetrics } = await reader.collect();
    const all = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    for (const { descriptor } of all) assert.equal(descriptor.unit, UNITS[descriptor.name], descriptor.name);
    return Object.fromEntries(
      all.map(({ descriptor, dataPoints }) => [
        descriptor.name,
        dataPoints.map(({ attributes, value }) => [attributes, value.count ?? value]),
      ]),
    );
  };
  return { hooks: telemetry({ meter: meters.getMeter("test"), tracer, ...options }), tracer, spans, metrics };
}

const outcome = (is, more) => ({ "redislock.outcome": is, ...more });

test("metrics have the names of the convention", async (t) => {
  const recorded = recorder(t, { separator: ":", attributes: { "server.address": "localhost" } });
  const server = new Server();
  const locks = new Locks(server, { hooks: recorded.hooks });
  const about = { "server.address": "localhost", "redislock.lock.group": "invoice" };
  const hold = await locks.acquire("invoice:1");
  assert.deepEqual((await recorded.metrics())["redislock.client.hold.count"], [[about, 1]]);
  await assert.rejects(locks.acquire("invoice:1", { wait: 20 }), LockTimeoutError);
  await assert.rejects(locks.semaphore("invoice:1", 2).acquire(), LockKindMismatchError);
  await assert.rejects(locks.acquire("invoice:1", { signal: globalThis.AbortSignal.timeout(20) }), { name: "TimeoutError" });
  await hold.release();
  (await locks.acquire("invoice:2")).signal.addEventListener("abort", () => undefined);
  await server.lose("invoice:2");
  assert.deepEqual(await recorded.metrics(), {
    "redislock.client.wait.duration": [
      [{ ...about, ...outcome("granted") }, 2],
      [{ ...about, ...outcome("timeout") }, 1],
      [{ ...about, ...outcome("error", { "error.type": "LockKindMismatchError" }) }, 1],
      [{ ...about, ...outcome("error", { "error.type": "TimeoutError" }) }, 1],
    ],
    "redislock.client.hold.duration": [
      [{ ...about, ...outcome("released") }, 1],
      [{ ...about, ...outcome("lost", { "redislock.loss.reason": "push" }) }, 1],
    ],
    "redislock.client.waiter.count": [[about, 0]],
    "redislock.client.hold.count": [[about, 0]],
  });
  await locks.close();
});

test("each wait and each hold has a span, in the span that acquired it", async (t) => {
  const recorded = recorder(t);
  const server = new Server();
  const locks = new Locks(server, { hooks: recorded.hooks });
  await recorded.tracer.startActiveSpan("request", async (span) => {
    (await locks.acquire("k")).signal.addEventListener("abort", () => undefined);
    span.end();
  });
  await server.lose("k");
  const spans = recorded.spans.getFinishedSpans();
  assert.deepEqual(
    spans.map(({ name, attributes, status }) => [name, attributes, status.code]),
    [
      ["redislock.client.wait", outcome("granted"), 0],
      ["request", {}, 0],
      ["redislock.client.hold", outcome("lost", { "redislock.loss.reason": "push" }), 2],
    ],
  );
  const request = spans[1].spanContext().spanId;
  assert.deepEqual([spans[0], spans[2]].map((span) => span.parentSpanContext?.spanId), [request, request]);
  await locks.close();
});

test("a detached hold is counted where it was adopted", async (t) => {
  const [first, second] = [recorder(t), recorder(t)];
  const server = new Server();
  const events = [];
  const spied = Object.fromEntries(
    Object.entries(first.hooks).map(([name, hook]) => [name, (event) => events.push([name, event]) && hook(event)]),
  );
  const one = new Locks(server, { hooks: spied });
  const two = new Locks(server, { hooks: second.hooks });
  const hold = await one.acquire("k");
  const adopted = await two.adopt(await hold.detach());
  assert.deepEqual((await first.metrics())["redislock.client.hold.count"], [[{}, 0]]);
  assert.deepEqual((await first.metrics())["redislock.client.hold.duration"], [[outcome("detached"), 1]]);
  const [name, event] = events.at(-1);
  assert.deepEqual([name, event.hold, event.heldMs >= 0], ["detached", hold, true]);
  assert.deepEqual((await second.metrics())["redislock.client.hold.count"], [[{}, 1]]);
  await adopted.release();
  assert.deepEqual((await second.metrics())["redislock.client.hold.count"], [[{}, 0]]);
  assert.deepEqual((await second.metrics())["redislock.client.hold.duration"], [[outcome("released"), 1]]);
  await Promise.all([one.close(), two.close()]);
});

test("renewals that fail are counted", { timeout: 90_000 }, async (t) => {
  const recorded = recorder(t);
  const server = await startServer(t);
  const locks = await locksOn(t, server, "ioredis", { hooks: recorded.hooks });
  const hold = await locks.acquire("k", { lease: 3000 });
  await server.kill();
  await eventually(() => hold.signal.aborted, "it is lost");
  const [[attributes, count]] = (await recorded.metrics())["redislock.client.renewal.failures"];
  assert.ok(count >= 1);
  assert.equal(attributes["error.type"], "ConnectionFailedError");
});
